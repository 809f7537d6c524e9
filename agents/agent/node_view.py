"""Assembles what runs on the node for a report: the shim's records, the ranks' progress, the decoded exits."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.agent.codes import Here
from agents.agent.names import LighthouseName, TrainerName, about, parse
from agents.health import exit_decoder
from agents.health.cpu_state import ProcessorUse
from agents.health.facts.files import takes_nothing
from agents.health.progress_file import ProgressFile, milestones
from agents.health.stack_dump import Stacks
from agents.health.step_timing import Pace
from agents.health.stopped_ranks import Stopped
from agents.shim.active_clock import Still
from agents.shim.settings import Settings
from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.observed import StuckView
from supervisor.core.model.spec import HangSpec
from supervisor.wire import activity
from supervisor.wire.address import free_port
from supervisor.wire.records import (
    ExitObserved,
    LighthouseObserved,
    NodeObserved,
    ProcessRecord,
    TrainerObserved,
)

log = logging.getLogger(__name__)

NEARLY = 0.9
"""Share of its bound from which a rank is reported with one of its group that hangs. Each one's waits for others do not
count, so they do not reach the bound at the same instant."""


@dataclass(frozen=True)
class Seen:
    """Content of the files of all that runs here, at one look."""

    news: tuple[str, ...]
    """Ranks whose progress is new."""
    activities: Mapping[str, tuple[int, activity.Activity] | None]
    gates: Mapping[str, tuple[Hashable, dict[str, Any]]]
    """Gate -> a mark that changes when its file is touched, and the file's content."""
    disk_free_bytes: int


class View:
    """The process table as the agent knows it. Memory only: a new agent reads it again from the shim."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = _free_store(settings)
        self.processes: dict[str, ProcessRecord] = {}
        self.progress: dict[str, ProgressFile] = {}
        self._exits: dict[str, ExitObserved] = {}
        self._addresses: dict[str, str] = {}
        """Gate -> the address on which it listens."""
        self._gate_marks: dict[str, Hashable] = {}
        self._stills: dict[str, Still] = {}
        self._activities: Mapping[str, tuple[int, activity.Activity] | None] = {}
        self.disk_free_bytes = 0
        """Free bytes on the disk of this node's files."""
        self._paces: dict[str, Pace] = {}
        self._uses: dict[str, ProcessorUse] = {}
        self._stopped: dict[str, Stopped] = {}
        self._for_good: dict[str, str] = {}
        """Rank -> why it is stopped, for those stopped as long as the policy allows."""
        self._stuck: dict[str, StuckView] = {}
        self._stuck_in: dict[str, tuple[int, activity.Activity] | None] = {}
        """Rank -> its activity when its hang was reported, with the count of such changes."""
        self._blind = False
        """True while reported hangs may be over."""
        self._stacks = Stacks()
        self.gates: dict[str, tuple[str, str]] = {}
        """Way -> gate and its node, as this agent set them and the shim has answered."""
        self.reaches: dict[str, bool] = {}
        """Way -> true if its forwarder reaches the gate, as the shim reports."""
        self.trips: dict[str, float] = {}
        """Way -> milliseconds to the gate and back, as the shim reports."""
        self.hearing: dict[str, dict[str, str]] = {}
        """Run -> group -> how this node's gate hears it, for metrics."""
        self.announced: frozenset[TrainerName] = frozenset()
        """Ranks about to start: reported before they do, so that this node is not taken for free of them."""
        self.leaving = ""
        self.here = Here()
        """Versions of the code that are wanted and lie here."""
        """Why the scheduler will end this node soon, as the shim reports; empty: no notice."""
        self.mesh = ""
        """Owner of the Monarch mesh here; empty: there is none."""

    def put(self, record: ProcessRecord, end: ExitObserved | None = None, last: ProgressFile | None = None) -> bool:
        """Takes in a started or ended process; true when that is news. `end`, `last`: as `last_words` has read them,
        else the exit is read now."""
        known = self.processes.get(record.name)
        if known == record or (known is not None and known.exited):
            return False
        self.processes[record.name] = record
        if isinstance(parse(record.name), TrainerName):
            file = self.progress.setdefault(record.name, ProgressFile(record.folder))
            if last is not None and last.newer_than(file):
                self.progress[record.name] = last
        if record.exited:
            self._exits[record.name] = end or self.decode(record)
        return True

    def last_words(self, record: ProcessRecord) -> tuple[ExitObserved, ProgressFile]:
        """Returns how the process ended, and its last progress: it may be finished, which no look has seen yet. Reads
        files and no state, so it may run in any thread."""
        last = ProgressFile(record.folder)
        last.poll(0.0)
        last.ended(record.exit_code)
        return self.decode(record), last

    def decode(self, record: ProcessRecord) -> ExitObserved:
        """Decodes how the process ended from the files that it left."""
        return replace(exit_decoder.decode(record), disk=takes_nothing(self._settings.node_folder))

    def drop(self, name: str) -> None:
        of_files = (self.processes, self.progress, self._exits, self._addresses, self._gate_marks, self._stills)
        for table in (*of_files, self._paces, self._uses, self._stopped, self._for_good, self._stuck, self._stuck_in):
            table.pop(name, None)
        self._stacks.drop(name)
        way = name.rpartition(".")[0]
        if not any(other.rpartition(".")[0] == way for other in self.processes):
            self.gates.pop(way, None)
            self.reaches.pop(way, None)
            self.trips.pop(way, None)

    def poll(self, now: float) -> list[str]:
        """Looks at the files of what runs or has just ended; returns the ranks whose progress is new."""
        return self.take(self.look(now)())

    def look(self, now: float) -> Callable[[], Seen]:
        """Returns `poll`'s reading, for any thread, one at a time: a file system that stalls may hold it forever."""
        ranks = [(name, file, self.processes[name].folder) for name, file in self.progress.items()]
        gates = [
            (name, Path(record.folder) / "gate.json")
            for name, record in self.processes.items()
            if isinstance(parse(name), LighthouseName) and not record.exited
        ]
        folder = self._settings.node_folder

        def see() -> Seen:
            return Seen(
                news=tuple(name for name, file, _ in ranks if file.poll(now)),
                activities={name: (0, "other") if file.plain else activity.read(at) for name, file, at in ranks},
                gates={name: said for name, path in gates if (said := _gate(path)) is not None},
                disk_free_bytes=_disk_free(folder),
            )

        return see

    def take(self, seen: Seen) -> list[str]:
        """Takes in a look, for processes that are still there; returns the ranks whose progress is new."""
        for text, (mark, state) in seen.gates.items():
            name = parse(text)
            if text in self.processes and isinstance(name, LighthouseName):
                self._gate_marks[text] = mark
                self._addresses[text] = f"{self._settings.address}:{state['port']}"
                self.hearing[name.run] = state["hearing"]
        self._activities = seen.activities
        self.disk_free_bytes = seen.disk_free_bytes
        return [name for name in seen.news if name in self.progress]

    def unseen(self) -> None:
        """Notes that the files do not answer: what the ranks do, and whether hung ones still hang, is unknown."""
        self._blind = True
        for pace in self._paces.values():
            pace.unseen()

    def still_gates(self, awake: float, seen: bool = True) -> dict[str, float]:
        """Returns the seconds, by a clock that runs while we look, for which each listening gate has not touched its
        file. Not `seen`: the files do not answer, and the count begins again."""
        seconds: dict[str, float] = {}
        if not seen:
            self._stills.clear()
            return seconds
        for name, mark in self._gate_marks.items():
            if not self.processes[name].exited:
                seconds[name] = self._stills.setdefault(name, Still()).look(mark, awake)
        return seconds

    def look_for_stops(self, limits: Mapping[str, HangSpec], awake: float) -> None:
        """Finds ranks that the kernel shows as stopped. `limits`, `awake`: as in `look_for_hangs`. Reads no rank's
        file."""
        self._for_good = {}
        for name, rank in self._ranks():
            stopped, limit_s = self._stopped.setdefault(name, Stopped()), limits.get(rank.way, HangSpec()).stopped_s
            stopped.look(self.processes[name].pid, awake)
            if stopped.why and stopped.for_s >= limit_s > 0:
                self._for_good[name] = stopped.why

    def beyond_term(self, name: str) -> str:
        """Returns a sentence on why SIGTERM and its grace are of no use: the process, or a rank of its generation, is
        stopped. Empty if they are of use."""
        way = name.rpartition(".")[0]
        return next((f"{n} {why}" for n, why in self._for_good.items() if n.rpartition(".")[0] == way), "")

    def look_for_hangs(self, limits: Mapping[str, HangSpec], awake: float, untold: bool = False) -> None:
        """Finds ranks whose step takes too long. `limits` are by way; `awake` is a clock that runs while we look;
        `untold`: ranks cannot write their progress here."""
        self._blind = False
        ways: dict[str, list[str]] = {}
        debugged = self.debugged()
        for name, file in self.progress.items():
            record, parsed = self.processes[name], parse(name)
            if not isinstance(parsed, TrainerName):
                continue
            starved_s = self._uses.setdefault(name, ProcessorUse()).look(awake, record.pid)
            # the time in the debugger counts as little as that without a gate
            goes = self.reaches.get(parsed.way, True) and parsed.way not in debugged
            self._paces.setdefault(name, Pace()).look(
                awake, file.newest, self._activities.get(name), goes, untold, starved_s
            )
            ways.setdefault(parsed.way, []).append(name)
        for way, names in ways.items():
            self._look_at(names, limits.get(way, HangSpec()), awake)

    def _look_at(self, names: list[str], limits: HangSpec, awake: float) -> None:
        """Looks at the ranks of one generation, and reports all that hang at once, each with its stack. Acting on the
        first ends the processes that the other stacks are read from, and the first is not always to blame."""
        running = [name for name in names if not self.processes[name].exited]
        # ranks commit together: one that saves, or has learned that it takes longer, makes the others wait as long
        bound_s = max((self._paces[name].bound_s(limits) for name in running), default=0.0)
        longest_s = limits.at_most_s
        hangs = any(self._paces[name].stuck(awake, bound_s, longest_s) is not None for name in running)
        share = NEARLY if hangs else 1.0
        found = {n: s for n in running if (s := self._paces[n].stuck(awake, bound_s, longest_s, share)) is not None}
        for name in names:
            stands = self._paces[name].stands(awake)
            if name not in found or (stands is not None and self._stuck_in.get(name, stands) != stands):
                for table in (self._stuck, self._stuck_in):
                    table.pop(name, None)
                self._stacks.drop(name)  # that hang is over
        at = {name: (self.processes[name].pid, self.processes[name].folder) for name in found}
        stacks = {name: self._stacks.of(name, *at[name]) for name in found}
        if None in stacks.values():
            return
        for name in found.keys() - self._stuck.keys():
            self._stuck_in[name] = self._paces[name].stands(awake)
            self._stuck[name] = replace(found[name], process=self._uses[name].state(at[name][0]), where=stacks[name])
            said = (name, found[name].bound_s, stacks[name])
            log.warning("%s hangs: no step for %g s: %s", *said, extra=about(name))

    def debugged(self) -> frozenset[str]:
        """Returns the generations of which a person has a running rank stopped in the debugger here."""
        newest = ((name.way, self.progress[text].newest) for text, name in self._ranks() if text in self.progress)
        return frozenset(way for way, last in newest if last is not None and last.debugging is not None)

    def running_ways(self) -> dict[str, list[str]]:
        """Returns the generations that run here, with their running ranks."""
        ways: dict[str, list[str]] = {}
        for text, name in self._ranks():
            ways.setdefault(name.way, []).append(text)
        return ways

    def _ranks(self) -> list[tuple[str, TrainerName]]:
        """Returns the ranks that run here."""
        return [(text, name) for text in self.running() if isinstance(name := parse(text), TrainerName)]

    def ways(self) -> frozenset[str]:
        """Returns the generations that have processes here, including ended ones."""
        return frozenset(name.way for text in self.processes if isinstance(name := parse(text), TrainerName))

    def runs(self) -> set[str]:
        return {name.run for text in self.processes if (name := parse(text)) is not None}

    def running(self) -> list[str]:
        return [name for name, record in self.processes.items() if not record.exited]

    def problems(self) -> tuple[str, ...]:
        return tuple(file.problem for file in self.progress.values() if file.problem)

    def observed(self) -> NodeObserved:
        """Returns the record to report; the reporter fills in its sequence."""
        trainers, lighthouses = [], []
        for text, record in sorted(self.processes.items()):
            match parse(text):
                case TrainerName() as name:
                    trainers.append(self._trainer(name, record))
                case LighthouseName() as name:
                    lighthouses.append(self._lighthouse(name, record))
        trainers += [
            TrainerObserved(
                run=name.run, group=name.group, generation=name.generation, rank=name.rank, pid=0, state="starting"
            )
            for name in sorted(self.announced)
            if str(name) not in self.processes
        ]
        return NodeObserved(
            node=self._settings.node,
            sequence=0,
            trainers=tuple(trainers),
            lighthouses=tuple(lighthouses),
            leaving=self.leaving,
            store=self._store,
            mesh=self.mesh,
            codes=self.here.versions,
            code_error=self.here.error,
        )

    def used(self, store: str) -> None:
        """Notes the store of a generation that was started: if it is this node's, the next one gets another port."""
        if store == self._store:
            self._store = _free_store(self._settings)

    def milestones(self) -> Hashable:
        """Returns a value that changes when something is worth a report at once."""
        return (
            tuple((name, record.exited) for name, record in sorted(self.processes.items())),
            tuple(milestones(file.newest) for _, file in sorted(self.progress.items())),
            tuple(sorted(self._addresses.items())),
            tuple(sorted(self.gates.items())),
            tuple(sorted(self.reaches.items())),
            () if self._blind else tuple(sorted((name, stuck.activity) for name, stuck in self._stuck.items())),
            tuple(sorted((name, rank.why, name in self._for_good) for name, rank in self._stopped.items() if rank.why)),
            self.announced,
            self.leaving,
            self._store,
            self.mesh,
            self.here,
        )

    def _trainer(self, name: TrainerName, record: ProcessRecord) -> TrainerObserved:
        progress = self.progress[record.name].newest
        begun = progress is not None and progress.phase != "starting"
        gate = self.gates.get(name.way)
        pace = self._paces.get(record.name, Pace())
        own, past = pace.own, pace.past
        stopped = self._stopped.get(record.name, Stopped())
        return TrainerObserved(
            run=name.run,
            group=name.group,
            generation=name.generation,
            rank=name.rank,
            pid=record.pid,
            state="exited" if record.exited else "running" if begun else "starting",
            exit=self._exits.get(record.name),
            progress=progress,
            gate=None if gate is None else gate[0],
            reaches_gate=self.reaches.get(name.way),
            stuck=None if self._blind else self._stuck.get(record.name),
            stopped=stopped.why if not record.exited else "",
            stopped_s=round(stopped.for_s, 2),
            compute_s=own.compute_s,
            data_s=own.data_s,
            compute_past_s=past.compute_s,
            data_past_s=past.data_s,
            measured=self._measured(name, record),
        )

    def _measured(self, name: TrainerName, record: ProcessRecord) -> Measured:
        pace = self._paces.get(record.name)
        return replace(pace.measured if pace is not None else NOTHING, gate_ms=self.trips.get(name.way, 0.0))

    def _lighthouse(self, name: LighthouseName, record: ProcessRecord) -> LighthouseObserved:
        address = self._addresses.get(record.name, "")
        return LighthouseObserved(
            run=name.run,
            generation=name.generation,
            state="exited" if record.exited else "running" if address else "starting",
            address=address,
            exit=self._exits.get(record.name),
        )


def _gate(path: Path) -> tuple[Hashable, dict[str, Any]] | None:
    """Returns mark and content of a gate's file; None: it does not listen yet."""
    try:
        stat = os.stat(path)
        state = json.loads(path.read_bytes())
        return (stat.st_ino, stat.st_mtime_ns), {"port": int(state["port"]), "hearing": dict(state["hearing"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _disk_free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def kind(name: str) -> str:
    """Returns `trainer` or `lighthouse`, for metrics."""
    return "lighthouse" if isinstance(parse(name), LighthouseName) else "trainer"


def _free_store(settings: Settings) -> str:
    """Returns an address at which the ranks of a group can meet; empty where they never do, or no port is free."""
    if settings.role != "trainer":
        return ""
    try:
        return f"{settings.address}:{free_port(settings.address)}"
    except OSError as error:
        log.warning("no port is free for a group to meet at: %s", error)
        return ""
