"""A rank that stands at a breakpoint, and the way to talk to its debugger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.client.errors import EverstepError, sentences

if TYPE_CHECKING:
    from supervisor.shell.etcd import EtcdStore
    from supervisor.shell.inspect.debugging import Stopped


class Breakpoint:
    """One rank that stands in Python's debugger, made by `Run.breakpoints`. It stands until `resume`."""

    def __init__(self, store: EtcdStore, at: Stopped) -> None:
        self._store = store
        self.at = at
        """Where it stands: run, group, rank, generation, node, function, file, line, since_unix_s."""
        self.stands = True
        """False: it goes on, or has ended."""

    def __repr__(self) -> str:
        return f"<Breakpoint {self.at.name} in {self.at.function} ({self.at.file}:{self.at.line})>"

    @sentences()
    def command(self, line: str) -> str:
        """Gives the debugger a command of pdb's (`p loss`, `bt`, `next`), and returns what it prints. What takes longer
        than 30 s goes on: its output comes with the next one. Raises EverstepError if the rank does not stand any more."""
        from supervisor.client.pool import mirror_of
        from supervisor.shell.inspect import debugging

        mirror = mirror_of(self._store)
        now = debugging.stopped(mirror, self.at.run)
        names = [(each.name, each.generation) for each in now]
        if (self.at.name, self.at.generation) not in names:
            self.stands = False  # its group may have started again, and stopped elsewhere
            raise EverstepError(
                f"rank {self.at.name} does not stand any more: run.breakpoints() returns those that stand now"
            )
        reply = debugging.tell(self._store, mirror, self.at, line)
        if reply.error:
            raise EverstepError(f"rank {self.at.name}: {reply.error}")
        self.stands = reply.stopped
        return reply.output

    def resume(self) -> None:
        """Lets it go on: it takes the others' state, and steps with them again."""
        self.command("continue")
