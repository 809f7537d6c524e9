"""Runs that are in etcd: a client, and one object for each run. Functions import what they need: connecting costs most."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from supervisor.client.errors import EverstepError, sentences
from supervisor.client.pool import Pool, mirror_of, synced
from supervisor.ports.errors import Fatal, Retryable

if TYPE_CHECKING:
    from supervisor.client.breakpoints import Breakpoint
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.code.sync import Done
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.engines.registry import Context
    from supervisor.shell.etcd import EtcdStore
    from supervisor.shell.inspect.decision_replay import Why
    from supervisor.shell.inspect.execution import Executed
    from supervisor.shell.inspect.incident_times import IncidentStatus
    from supervisor.shell.inspect.merged_log import Entry
    from supervisor.shell.inspect.stacks import RankStacks
    from supervisor.shell.inspect.status import RunStatus
    from supervisor.shell.inspect.training import Metrics
    from supervisor.wire.records import RunRecord

log = logging.getLogger(__name__)


@sentences()
def connect(etcd: str | None = None, home: str | Path | None = None, security: str | Path | None = None) -> Client:
    """Connects to the etcd of a system, found as the command line finds it.

    `etcd`: HOST:PORT, several by commas; None: SUPERVISOR_ETCD, or the etcd of the `supervisor up` in `home`, or etcd's
    default. `home`: folder of the runs; None: SUPERVISOR_HOME, or `runs`. `security`: security file; None:
    SUPERVISOR_SECURITY, or that of `up`. Raises EverstepError if no etcd answers.
    """
    from supervisor.shell import etcd as etcd_store
    from supervisor.shell.dev.home import HOME, endpoints_in, security_of, system_folder, why_away
    from supervisor.shell.engines.registry import Context
    from supervisor.wire.security import VARIABLE, checked, host_and_port

    folder = Path(home or os.environ.get("SUPERVISOR_HOME") or HOME)
    for endpoint in etcd.split(",") if etcd is not None else ():
        try:
            host_and_port(endpoint)
        except ValueError as error:
            raise EverstepError(f"etcd: {error}") from None
    given = etcd or os.environ.get("SUPERVISOR_ETCD") or ""
    endpoints = endpoints_in(given, folder)
    file = str(security or os.environ.get(VARIABLE) or security_of(folder))
    try:
        store = etcd_store.connect(endpoints, security=checked(file, endpoints))
    except Retryable as error:
        if given:
            raise
        raise Fatal(why_away(folder, endpoints)) from error
    return Client(store, folder, Context(home=system_folder(folder), etcd=tuple(endpoints), security=file))


class Client:
    """The runs of one etcd, made by `connect`. Its methods may be called from several threads."""

    def __init__(self, store: EtcdStore, home: Path, context: Context) -> None:
        self._store, self._home, self._context = store, home, context

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection. The runs go on."""
        self._store.close()

    @sentences()
    def runs(self) -> tuple[Run, ...]:
        """Returns all runs in etcd, newest first."""
        from supervisor.shell.control import observe

        found = [r for r in observe.runs(mirror_of(self._store)).values() if not r.spec.is_pool]
        newest_first = sorted(found, key=lambda r: -r.launched_unix_s)
        return tuple(map(self._run, newest_first))

    @sentences()
    def run(self, name: str = "") -> Run:
        """Returns a run, or the newest if no name is given. Raises EverstepError if there is none."""
        from supervisor.shell.inspect import client

        return self._run(client.choose_run(mirror_of(self._store), name))

    @sentences()
    def launch(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec,
        name: str | None = None,
        set: Mapping[str, Any] | None = None,
        on: str = "",
        resume_from: str | Path | None = None,
    ) -> Run:
        """Checks a run as `supervisor launch` does, which takes seconds, and starts it.

        `run`: path of a run file, its contents as a dictionary, or a RunSpec; relative paths in it are seen from the
        file's folder, else from the current one. `name`: in the place of its own. `set`: dotted keys of the run file and
        their values ({"groups.count": 4}); None: the default. `on`: name of a pool whose nodes it gets. `resume_from`:
        folder of another run's checkpoint to begin with. Raises EverstepError with all problems.
        """
        from supervisor.client import launching
        from supervisor.shell.code.local import tree_of
        from supervisor.shell.inspect import client
        from supervisor.wire.security import load

        spec, what = launching.spec_of(run, name, set or {}, on)
        begins_with = client.resumed_from(Path(resume_from), spec) if resume_from is not None else None
        client.refuse_unfit(self._store, spec)  # before the check, which takes seconds
        with tree_of(self._store, spec.allocation.pool, load(self._context.security)) as tree:
            notes = launching.checked(spec, what, mirror_of(self._store), self._context, tree)
        record = client.launch(self._store, spec, self._home, notes.append, begins_with)
        return self._run(record, tuple(notes))

    @sentences()
    def execute(self, node: str, *command: str, limit_s: float = 60.0) -> Executed:
        """Runs a command on a node, in the node's folder. No shell reads it; it is ended after `limit_s`, or 1 MiB of
        output. Its exit code and what it printed are in the result."""
        from supervisor.shell.inspect import execution

        mirror = mirror_of(self._store)
        return execution.execute(self._store, mirror, execution.request(mirror, node, "", command, limit_s))

    @sentences()
    def hold(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec | None = None,
        name: str = "pool",
        nodes: int | None = None,
        for_: str | None = None,
    ) -> Pool:
        """Holds nodes for runs, with their agents and warm processes, until `Pool.release`. They come while it returns.

        `run`: as for `launch`, for its engine and the ranks of a node; None: local nodes of one rank each. `nodes`: how
        many; None: as many as that run would ask for. `for_`: give them back after this time ("8h"), once no run uses
        them; None: as the run file says.
        """
        from supervisor.client import launching
        from supervisor.shell.engines.registry import before_launch
        from supervisor.shell.inspect import client, pools

        spec, _ = launching.spec_of({} if run is None else run, name, {})
        try:
            for_s = pools.seconds_of(for_) if for_ is not None else None
        except ValueError as error:
            raise EverstepError(f"for_: {error}") from None
        held = pools.spec_of(spec, nodes, for_s)
        client.refuse_name(self._store, name)
        if note := before_launch(held, self._context):
            log.info("%s", note)
        client.launch(self._store, held, self._home, log.info)
        return Pool(self._store, self, name)

    @sentences()
    def pool(self, name: str) -> Pool:
        """Returns a pool. Raises EverstepError if there is none of this name."""
        from supervisor.shell.inspect import pool_fit, pools

        mirror = mirror_of(self._store)
        if pools.named(mirror, name) is None:
            raise EverstepError(f"there is no pool {name!r}; known: {pool_fit.known(mirror)}")
        return Pool(self._store, self, name)

    @sentences()
    def pools(self) -> tuple[Pool, ...]:
        """Returns all pools: those that hold nodes first, then the newest first."""
        from supervisor.shell.inspect import pools

        return tuple(Pool(self._store, self, each.pool) for each in pools.every(mirror_of(self._store)))

    def _run(self, record: RunRecord, notes: tuple[str, ...] = ()) -> Run:
        return Run(self._store, self._home, self._context, record, notes)


class Run:
    """One run in etcd, by its name, made by a Client. Each call reads its state again."""

    def __init__(
        self, store: EtcdStore, home: Path, context: Context, record: RunRecord, notes: tuple[str, ...] = ()
    ) -> None:
        self._store, self._home, self._context = store, home, context
        self.name = record.spec.name
        self.folder = Path(record.run_dir)
        """Folder of its journal and checkpoints, which `open` reads, on the machine of its supervisor."""
        self.notes = notes
        """Sentences that `supervisor launch`, or the newest `relaunch` or `scale`, prints and that keep no run from starting;
        empty if none of them was called here."""

    def __repr__(self) -> str:
        return f"<Run {self.name}>"

    @sentences()
    def status(self) -> RunStatus:
        """Returns its phase, groups, steps, budgets, problems, and what it waits for."""
        from supervisor.shell.inspect import status

        mirror, record = self._now()
        return status.status_now(self._store, mirror, record)

    @sentences()
    def incidents(self) -> tuple[IncidentStatus, ...]:
        """Returns its failures, oldest first: what was seen and done, and why."""
        from supervisor.shell.inspect import incident_times

        return incident_times.of_run(*self._now())

    @sentences()
    def explain(self, incident: str) -> Why:
        """Explains an incident: `print(run.explain("i1"))` prints what the command prints."""
        from supervisor.shell.inspect import client, decision_replay

        mirror, record = self._now()
        return decision_replay.of_run(mirror, record, client.incidents(mirror, self.name), incident)

    @sentences()
    def logs(
        self,
        group: int | None = None,
        rank: int | None = None,
        since: float | None = None,
        tail: int | None = None,
        grep: str = "",
        remote: bool | None = None,
    ) -> Iterator[Entry]:
        """Returns the lines of all ranks and generations as one log, the oldest first.

        `remote`: ask the nodes; False: read the files of this machine, which have process ends and incidents too. None:
        ask if this machine has none. Of each log the newest 256 KiB are read, with `since`, `grep` or a `tail` above 1000 4 MiB.
        `group`, `rank`: only theirs. `since`: Unix seconds, by the node's clock; a line without a time has that of the
        line before. `tail`: at most that many, the newest; nodes give 1000 without it. `grep`: only lines with this text.
        Raises EverstepError if there are no logs, or a node does not answer.
        """
        from supervisor.client import lines
        from supervisor.shell.inspect import client, logs, merged_log

        mirror, record = self._now()
        wish = merged_log.Wish(group=group, rank=rank, since=since, tail=tail, grep=grep)
        if not remote:
            here = logs.kept_in(self._home)
            found = merged_log.of_this_machine(here, self.name, Path(record.run_dir), wish)
            if found is not None:
                return iter(wish.chosen(found))
            if remote is False:
                raise EverstepError(logs.none_below(self._home, self.name))
        client.require(record, group, rank)
        return iter(lines.of_nodes(self._store, mirror, self.name, wish))

    @sentences()
    def stacks(self, group: int | None = None, rank: int | None = None) -> tuple[RankStacks, ...]:
        """Returns where each rank is now, with all of its threads; nothing is paused. One that did not answer has the
        reason in `unknown`."""
        from supervisor.shell.inspect import client, stacks

        mirror, record = self._now()
        client.require(record, group, rank)
        return tuple(stacks.read(self._store, mirror, self.name, group, rank, stacks.LIMIT_S))

    @sentences()
    def execute(self, rank: str, *command: str, limit_s: float = 60.0) -> Executed:
        """Runs a command on the node of a rank ("1.0"), in its folder and with its environment: Client.execute."""
        from supervisor.shell.inspect import execution

        mirror, _ = self._now()
        return execution.execute(self._store, mirror, execution.request(mirror, rank, self.name, command, limit_s))

    @sentences()
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """Returns the ranks that stand at a `breakpoint()`, by group and rank (docs/DEBUG.md)."""
        from supervisor.client.breakpoints import Breakpoint
        from supervisor.shell.inspect import debugging

        mirror, _ = self._now()
        return tuple(Breakpoint(self._store, at) for at in debugging.stopped(mirror, self.name))

    @sentences()
    def metrics(self) -> Metrics:
        """Returns its newest step, loss, tokens per second and step time, of the run and of each group."""
        from supervisor.shell.inspect import status, training

        return training.metrics(status.run_status(*self._now()))

    @sentences()
    def wait(self, for_: str = "running", timeout_s: float = math.inf) -> str:
        """Waits until it trains, has made a step, or is finished: "running", "step=N" or "finished". Returns a sentence.
        Raises EverstepError if it ends otherwise, or is not there within `timeout_s`."""
        from supervisor.shell.inspect import follow

        try:
            goal = follow.Goal.of(for_)
        except ValueError as error:
            raise EverstepError(f"for_: {error}") from None
        until = time.monotonic() + timeout_s
        reached, sentence = follow.wait(self._store, self.name, goal, until, log.info)
        if not reached:
            raise EverstepError(sentence)
        return sentence

    @sentences()
    def relaunch(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec | None = None,
        set: Mapping[str, Any] | None = None,
        because: str = "",
        from_memory: bool = False,
    ) -> str:
        """Changes what it trains by, on the nodes that it has: its groups end after one step with a checkpoint, and start
        again from that. `run`: as for `launch`; None: what it runs by now. `set`: keys to change. `from_memory`: states stay
        in the nodes' memory, and no checkpoint is written. The check takes seconds. Returns what was requested; raises
        EverstepError with all problems."""
        from supervisor.client import launching
        from supervisor.shell.code.local import tree_of
        from supervisor.shell.engines.registry import before_launch
        from supervisor.shell.inspect import relaunch
        from supervisor.wire.security import load

        mirror, record = self._now()
        given = relaunch.base(mirror, record) if run is None else run
        spec, what = launching.spec_of(given, self.name, set or {}, record.spec.allocation.pool)
        spec, notes = relaunch.kept(mirror, record, spec)
        relaunch.refuse(mirror, record, spec)
        if from_memory:
            relaunch.refuse_from_memory(mirror, record, spec)
        with tree_of(self._store, self.name, load(self._context.security)) as tree:
            notes += launching.checked_titan(spec, what, tree)
        if not relaunch.keeps_nodes(mirror, self.name):
            notes += filter(None, [before_launch(spec, self._context)])
        self.notes = tuple(notes)
        return relaunch.relaunch(self._store, mirror, record, spec, because, from_memory)

    @sentences()
    def scale(self, groups: int | None = None, spares: int | None = None, because: str = "") -> str:
        """Changes its number of groups or spares while the other groups train on. None: as now."""
        from supervisor.shell.engines.registry import before_scale
        from supervisor.shell.inspect import client, relaunch

        mirror, record = self._now()
        client.refuse_ended(mirror, record, "scale")
        given = relaunch.sized(relaunch.base(mirror, record), groups, spares)
        spec, notes = relaunch.kept(mirror, record, given)
        relaunch.refuse(mirror, record, spec)
        self.notes = tuple(filter(None, [*notes, before_scale(record.spec, spec, self._context)]))
        return relaunch.relaunch(self._store, mirror, record, spec, because)

    @sentences()
    def sync(self, folder: str | Path, most_mib: float = 1024.0) -> Done:
        """Makes a folder its code, as Pool.sync does for a pool. A run's own code counts before that of its pool."""
        return synced(self._store, self.name, folder, most_mib, self._context)

    @sentences()
    def pause(self) -> str:
        """Leaves it alone until `resume`; training goes on. Returns what was done, as all requests do."""
        from supervisor.shell.inspect import client

        return client.pause(self._store, *self._now())

    @sentences()
    def resume(self, because: str = "", they_are_down: bool = False) -> str:
        """Acts again after `pause`, or starts a halted or stopped run from its newest checkpoint. `because`: the reason,
        which the journal keeps; a halted run needs one. `they_are_down`: you have checked that nothing runs any more on
        its silent nodes."""
        from supervisor.shell.inspect import client

        mirror, record = self._now()
        if why := client.lacks_reason(mirror, record, because.strip()):
            raise EverstepError(why)
        return client.resume(self._store, mirror, record, because.strip(), they_are_down)

    @sentences()
    def stop(self) -> str:
        """Requests its end: all groups end after the same step. Returns at once; `status` shows when it is stopped."""
        from supervisor.shell.inspect import client

        return client.stop(self._store, *self._now())

    @sentences()
    def restart(self, group: int) -> str:
        """Requests a restart of a group's processes on their nodes. The other groups go on; no budget is charged."""
        from supervisor.shell.inspect import client

        mirror, record = self._now()
        client.refuse_ended(mirror, record, "restart")
        return client.restart(self._store, record, group)

    @sentences()
    def remove(self, files: bool = False) -> str:
        """Removes a run that has ended from etcd; its name can be used again. `files`: deletes its folder too."""
        from supervisor.shell.inspect import removal

        return "\n".join(removal.remove(self._store, self.name, files))

    def _now(self) -> tuple[Mirror, RunRecord]:
        from supervisor.shell.inspect import client

        mirror = mirror_of(self._store)
        return mirror, client.choose_run(mirror, self.name)
