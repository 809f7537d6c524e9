"""The logs of a past run, from the files beside its folder. No etcd is asked, so they outlive `up` and `rm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from supervisor.ports.errors import Fatal
from supervisor.shell.control.journal import read as read_journal
from supervisor.shell.history import account, files
from supervisor.shell.inspect import logs, merged_log
from supervisor.shell.inspect.logs import HookTail
from supervisor.shell.inspect.merged_log import Entry, Wish


def is_folder(given: str) -> bool:
    """Returns true for the folder of a run: no run's name has a slash or a dot."""
    return "/" in given or "." in given


def opened(folder: Path) -> PastLogs:
    """Finds the logs of the run with this folder. Raises Fatal where there is no journal."""
    name, system = account.located(folder)
    history = files.of_lines(name, read_journal(folder / "journal.jsonl"), (), ())
    return PastLogs(
        run=name,
        folder=folder.resolve(),
        system=system,
        started=history.started(),
        away=tuple(account.nodes_not_here(history, system)),
    )


@dataclass(frozen=True, kw_only=True)
class PastLogs:
    """The logs that this machine has of a past run, without those of other runs that had its name."""

    run: str
    folder: Path
    system: Path
    """The folder that holds `nodes/`."""
    started: Mapping[int, Sequence[int]]
    """Generations that each group has started, by the journal."""
    away: tuple[str, ...]
    """Its nodes whose files are not here."""

    def hooks(self, lines: int) -> list[HookTail]:
        """Returns the newest lines of the hooks, by node. Raises Fatal if there are none."""
        return logs.of_hooks(self.system, self.run, lines) or self._none(f"output of hooks of run {self.run}")

    def entries(self, wish: Wish) -> list[Entry]:
        """Returns the lines, starts, ends and incidents that are wanted as one log. Raises Fatal if there is no log."""
        found = merged_log.of_this_machine(self.system, self.run, self.folder, wish) or ()
        ours = [entry for entry in found if entry.what == "incident" or self._ours(entry)]
        if all(entry.what == "incident" for entry in ours):
            self._no_log(wish.group, wish.rank)
        return wish.chosen(ours)

    def _ours(self, of: Entry) -> bool:
        started = self.started.get(of.group)
        if started is None:
            return not self.started  # a journal without one decision knows no group
        return min(started) <= of.generation <= max(started)

    def _no_log(self, group: int | None, rank: int | None) -> NoReturn:
        if group is not None and self.started and group not in self.started:
            had = ", ".join(map(str, sorted(self.started)))
            raise Fatal(f"run {self.run} has no group {group}; its journal has: {had}")
        chosen = (("group", group), ("rank", rank))
        which = [f"run {self.run}", *(f"{what} {number}" for what, number in chosen if number is not None)]
        self._none(f"logs of {', '.join(which)}")

    def _none(self, what: str) -> NoReturn:
        where = self.system / "nodes"
        raise Fatal(f"no {what} below {where}: look on the machines of its nodes, below the --home of each agent")
