"""Runs a run's hooks on this node: `before` its first rank begins, and `after` its last one has ended and none is wanted.

A hook is a child of the shim, named hook.RUN.before or hook.RUN.after. So an agent that is killed meanwhile finds it
again, and a hook that has ended is not run twice. The shim keeps the record of `before` until `after` has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agents.agent import surroundings
from agents.agent.codes import NotHere
from agents.agent.shim_client import ShimClient, ShimLost, ShimRefused
from agents.agent.shim_client import record as to_record
from agents.agent.surroundings import StartFailed
from agents.shim.settings import Settings
from supervisor.core.evidence import error_text
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.spec import EnvSpec
from supervisor.wire import logged
from supervisor.wire.aside import Aside
from supervisor.wire.code_tree import Tree
from supervisor.wire.records import (
    MISCONFIGURED,
    PEERS_GONE,
    TERMINATED,
    NodeDesired,
    ProcessRecord,
    RecordError,
    Stay,
    TrainerDesired,
    decode,
    encode,
)

log = logging.getLogger(__name__)

Which = Literal["before", "after"]

LOOK_S = 0.2
"""Seconds between two looks whether a hook is late, or its run no longer wanted."""
LATE = 124
"""Exit code of a rank whose hook took too long, as that of timeout(1)."""
OF_A_RANK = (PEERS_GONE, MISCONFIGURED, TERMINATED)
"""Exit codes that mean something else in a rank: a hook's failure is reported as 1 in their place."""
LAST_LINES, LAST_BYTES = 5, 1000
"""The most of a hook's output in its error."""


class Hooks:
    """The hooks of one node."""

    def __init__(
        self,
        settings: Settings,
        shim: ShimClient,
        tree: Callable[[CodeVersion | None], Tree | None] = lambda code: None,
    ) -> None:
        """`tree`: finds a version of the code here; raises NotHere."""
        self._settings, self._tree = settings, tree
        self._shim = shim
        self._folder = settings.node_folder / "hooks"
        self._files = Aside("hooks")
        self._records: dict[str, ProcessRecord] = {}
        self._stays = _stays(self._folder)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, str] = {}
        """Run -> why its hook `after` failed when it left this node last."""
        self._news = asyncio.Event()
        self._stopping = False

    def take(self, record: ProcessRecord) -> bool:
        """Takes in what the shim reports of a process; false if that is no hook."""
        match record.name.split("."):
            case ["hook", _, "before" | "after"]:
                known = self._records.get(record.name)
                if known is None or not known.exited:
                    self._records[record.name] = record
                self._news.set()
                self._news = asyncio.Event()
                return True
        return False

    def problems(self) -> tuple[str, ...]:
        return tuple(self._failed.values())

    async def begin(self, desired: TrainerDesired, wanted: Callable[[], bool]) -> tuple[dict[str, Any], bool] | None:
        """Returns the surroundings of a generation's ranks once the hook `before` has ended well, and true if it ran
        now. None: the generation is not `wanted` any more. Raises StartFailed."""
        run, hooks = desired.run, desired.hooks
        async with self._locks[run]:
            if self._stopping or not wanted():
                return None  # it would be another stay, in which the run never trains
            self._failed.pop(run, None)
            around = await self._around(desired.env, desired.code)
            if not (hooks.before or hooks.after):
                return around, False
            group = self._stays[run].group if run in self._stays else desired.group
            stay = Stay(run=run, group=group, run_dir=desired.run_dir, env=desired.env, hooks=hooks, code=desired.code)
            if self._stays.get(run) != stay:
                await self._files.done(partial(_write, self._folder / run / "stay.json", encode(stay)))
                self._stays[run] = stay
            done = self._records.get(_name(run, "before"))
            if not hooks.before or (done is not None and done.exited and done.exit_code == 0):
                return around, False
            record = await self._run(stay, "before", around, wanted)
            if record.exited and record.exit_code == 0:
                return around, True
            await self._forget(run, "before")
            if not wanted():
                return None
            raise StartFailed(await self._files.done(partial(self._why, stay, "before", record)), _code(record))

    async def _around(self, env: EnvSpec, code: CodeVersion | None) -> dict[str, Any]:
        return await self._files.done(lambda: surroundings.fields(env, self._settings.node, self._tree(code)))

    def left(self) -> bool:
        """Returns true while a run with hooks has not left this node."""
        return bool(self._stays)

    def look(self, wanted: Mapping[str, NodeDesired], busy: Collection[str], stopping: bool) -> None:
        """Begins the hook `after` of each run that has left this node. `busy`: runs with ranks here. `stopping`: the
        node ends, and so all runs leave it. Else a run without a record in `wanted` is unknown, and stays."""
        self._stopping = stopping
        for run, stay in self._stays.items():
            there = wanted.get(run)
            leaves = stopping or (there is not None and not there.trainers)
            if not leaves or run in busy or run in self._leaving or self._locks[run].locked():
                continue
            self._leaving[run] = asyncio.create_task(self._leave(stay))

    async def _leave(self, stay: Stay) -> None:
        run = stay.run
        try:
            async with self._locks[run]:
                if stay.hooks.after and (why := await self._after(stay)):
                    self._failed[run] = why
                    log.warning("%s", why, extra=logged.about(run=run))
                for which in ("before", "after"):
                    await self._forget(run, which)
                await self._files.done(partial((self._folder / run / "stay.json").unlink, missing_ok=True))
                self._stays.pop(run, None)
        except (ShimLost, OSError) as error:
            log.warning("the hooks of run %s are not done: %s; they are looked at again", run, error)
        finally:
            self._leaving.pop(run, None)

    async def _after(self, stay: Stay) -> str:
        """Runs the hook `after`. Returns why it failed; empty if it did not."""
        try:
            record = await self._run(stay, "after", await self._around(stay.env, stay.code), lambda: True)
        except (StartFailed, ShimRefused, NotHere) as error:
            return f"hook after of run {stay.run} cannot run on node {self._settings.node}: {error}"
        return "" if record.exit_code == 0 else await self._files.done(partial(self._why, stay, "after", record))

    async def _run(self, stay: Stay, which: Which, around: dict[str, Any], wanted: Callable[[], bool]) -> ProcessRecord:
        """Runs a hook to its end, or goes on with one that an earlier agent began. Kills it if it takes too long, or
        once its run is not wanted any more. Raises ShimRefused, OSError."""
        name, log_file = _name(stay.run, which), self._log(stay.run, which)
        if name not in self._records:
            await self._files.done(partial(log_file.unlink, missing_ok=True))
        of_the_hook = {
            "EVERSTEP_HOOK": which,
            "EVERSTEP_RUN": stay.run,
            "EVERSTEP_RUN_DIR": stay.run_dir,
            "EVERSTEP_NODE": self._settings.node,
            "EVERSTEP_GROUP": str(stay.group),
        }
        answer = await self._shim.ask(
            "spawn",
            **{**around, "env": {**around["env"], **of_the_hook}},
            name=name,
            # a program that is missing is the hook's own failure, 127, and no refusal of the shim
            argv=["/bin/sh", "-c", 'exec "$@"', "sh", *getattr(stay.hooks, which)],
            folder=str(log_file.parent),
            log=str(log_file),
            launch=None,
            cold=True,
        )
        self.take(to_record(answer["process"]))
        log.info(
            "hook %s of run %s: pid %d", which, stay.run, answer["process"]["pid"], extra=logged.about(run=stay.run)
        )
        loop, killed = asyncio.get_running_loop(), False
        until = loop.time() + stay.hooks.timeout_s
        while not (record := self._records[name]).exited:
            why = _late(stay) if loop.time() >= until else "" if wanted() else "its run is no longer wanted here"
            if why and not killed:
                killed = True
                with contextlib.suppress(ShimRefused):  # it has ended meanwhile
                    await self._shim.ask("signal", name=name, signal=int(signal.SIGKILL), why=why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
        return record

    async def _forget(self, run: str, which: Which | str) -> None:
        name = _name(run, which)
        if self._records.pop(name, None) is not None:
            await self._shim.ask("forget", name=name)

    def _log(self, run: str, which: Which) -> Path:
        return self._folder / run / f"{which}.log"

    def _why(self, stay: Stay, which: Which, record: ProcessRecord) -> str:
        ended = record.told or (
            f"ended by signal {record.signal}"
            if record.signal is not None
            else f"ended with exit code {record.exit_code}"
        )
        path = self._log(stay.run, which)
        last = _last_lines(path)
        said = f"; its last lines: {last}" if last else "; it printed nothing"
        return (
            f"hook {which} of run {stay.run} failed on node {self._settings.node}: {ended}{said} (all of them: {path})"
        )


def _late(stay: Stay) -> str:
    return f"it took longer than hooks.timeout_s = {stay.hooks.timeout_s:g} s and was killed"


def _code(record: ProcessRecord) -> int:
    if record.told:
        return LATE  # also where a shell ended by itself, because its child had got the signal before it
    if record.exit_code is None:
        return 128 + (record.signal or 0)
    return 1 if record.exit_code in OF_A_RANK else record.exit_code


def _name(run: str, which: Which | str) -> str:
    return f"hook.{run}.{which}"


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LAST_BYTES))
            text = error_text.printable(file.read(LAST_BYTES).decode(errors="replace"))
    except OSError:
        return ""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-LAST_LINES:])


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def _stays(folder: Path) -> dict[str, Stay]:
    """Returns the stays that an earlier agent of this node began and that have not ended."""
    found = {}
    for path in folder.glob("*/stay.json"):
        try:
            stay = decode(path.read_bytes(), Stay)
        except (OSError, RecordError) as error:
            log.warning("%s cannot be read (%s): the hook after of that run is not run", path, error)
            continue
        found[stay.run] = stay
    return found
