"""Reads what happened in a run from files only: the journal, the shims' histories, the trainers' step records.

All times are the wall clock of one machine: a history is read where one machine wrote it (ADR 3)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from supervisor.shell.history.one_clock import retimed
from supervisor.shell.history.outcomes import built_on, of_journal
from supervisor.shell.history.schema import wrong_with, wrong_with_journal, wrong_with_shim
from supervisor.wire.node_logs import rank_of
from supervisor.wire.records import Account

ACCOUNT = TypeAdapter(Account)


class Unknown(Exception):
    """Raised where the files lack what a checker needs; the text names what is missing."""


@dataclass(frozen=True)
class Decided:
    """One decision: what was intended, and whether it was committed."""

    t: float
    epoch: int
    number: int
    actions: tuple[dict[str, Any], ...]
    incidents: tuple[dict[str, Any], ...]
    groups: dict[int, dict[str, Any]]
    committed_at: float | None = None
    """None: refused, or its supervisor died before it could record an outcome."""
    refused: str = ""
    line: int = 0
    """Line of its intent in the journal."""
    replaced: bool = False
    """True if its number was used again by a leader that had not found this decision in etcd."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one decision, also of one that did nothing. Lines are places in the journal, which is only
    appended to: they give an order that no clock can reverse."""

    number: int
    epoch: int
    line: int
    intent_line: int | None
    """None: no intent was found for it."""
    revision: int | None
    """The store's revision when it was committed."""
    refused: bool


@dataclass(frozen=True)
class Process:
    """A rank's process, from the shim that was its parent."""

    node: str
    run: str
    group: int
    generation: int
    rank: int
    pid: int
    spawned: float
    exited: float | None = None
    signal: int | None = None
    exit_code: int | None = None
    over_by: float | None = None
    """The latest time at which it had ended. A shim starts only when nothing is left of the one before, nor of what it
    killed. None: no shim saw it."""


@dataclass(frozen=True)
class Signalled:
    """A signal that a shim sent to a rank's process."""

    node: str
    group: int
    generation: int
    rank: int
    t: float
    number: int
    why: str = ""
    node_ending: bool = False
    """True if the shim was ordered to end, and ended its processes."""
    allocation: str | None = None
    """The node's allocation. None: its shim did not record it, nor would it record an order to end."""
    cut_off_s: float | None = None
    """`policy.cut_off_stop_s`, if the agent ended it by that; None: for another reason."""


@dataclass(frozen=True)
class Steps:
    """The lines of one rank's steps.jsonl."""

    group: int
    generation: int
    rank: int
    node: str
    lines: tuple[dict[str, Any], ...]

    def committed(self) -> list[dict[str, Any]]:
        """Returns its committed steps, in order."""
        return [line for line in self.lines if line.get("event") == "step" and line.get("committed")]

    @property
    def name(self) -> str:
        """Names the generation in sentences."""
        return f"group {self.group} generation {self.generation}"


# --- of a run that is broken on purpose ---


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The plan of a broken run, and the promises of its policy."""

    seed: int
    plan: tuple[str, ...]
    """One sentence for each fault, in order."""
    planned: int
    groups: int
    ranks: int
    began: float
    ended: float
    budgets: dict[str, int]
    """restart, replace, reallocate."""
    window_s: float
    breaker_window_s: float | None = None
    """Seconds in which nothing is paid for after a person gives up what is lost. None: an older history without it."""
    to_its_end: bool = False
    """True if the run had ended when this was written. A live one goes on."""
    given_up: str = ""
    """Why the plan was not finished; empty: it was, or an older history without it."""
    not_available: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    nodes: int = 1
    """Nodes of a group, with as many of its ranks on each."""


@dataclass(frozen=True, kw_only=True)
class FaultDone:
    """One fault, from its injection until all is well again."""

    number: int
    name: str
    group: int
    rank: int
    generation: int
    node: str
    step: int
    """Newest committed step of the run."""
    began: float
    """Just before it was made."""
    made: float | None
    """When its evidence was there. None: it did not happen."""
    evidence: str
    healed: float | None
    """When what it broke was undone. None: not yet."""
    over: float | None
    """When everything trained again. None: never."""
    before: str = ""
    """The reason why the run was not well before it; empty: it was."""
    after: str = ""
    """The reason why it did not happen, or the run is not well afterwards; empty: neither."""
    kinds: tuple[str, ...] = ()
    """Kinds of the one incident that is right; empty: no action is right."""
    echoes: tuple[str, ...] = ()
    drifts: bool = False
    within_s: float
    """Most seconds from its beginning until all is well."""
    others_within_s: float
    """Most seconds that a group which was not hit may stand still."""

    @property
    def mute(self) -> bool:
        """True if what its group commits meanwhile may not be written down."""
        return self.name == "disk_full" and self.made is not None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A record in etcd, and when it reached the watcher."""

    t: float
    what: str
    """group, incident, run or leader."""
    subject: str
    says: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A time in which the leader did not reach the store, by its machine's wall clock."""

    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Left:
    """Processes and allocations left when all had ended, or those of older generations while the run goes on."""

    processes: tuple[str, ...]
    allocations: tuple[str, ...]


@dataclass
class History:
    """Everything of one run."""

    run: str
    decisions: list[Decided] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    steps: list[Steps] = field(default_factory=list)
    signals: list[Signalled] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    """Outcomes of all decisions, in the journal's order."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Maps an epoch to the journal's line at which it was first seen to lead."""
    elected: dict[int, int] = field(default_factory=dict)
    """Maps an epoch to the recorded revision of its election, which it equals until a backup is restored."""
    unreadable: list[str] = field(default_factory=list)
    """Lines that are no JSON, with their file: with one, no checker may pass."""
    told: set[int] = field(default_factory=set)
    """Numbers of all decisions with an outcome, also of those that did nothing about the cluster."""
    reached: int = 0
    """The newest decision that is known to have taken effect."""
    outages: list[Outage] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """Number of groups from each relaunch on, with its time; the launched number is not here."""
    setting: Setting | None = None
    faults: list[FaultDone] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    left: Left | None = None
    account: Account | None = None
    """The leader's newest account of the run, as on the page. None: its journal holds none."""

    def committed(self) -> list[Decided]:
        """Returns the decisions that took effect. One may lack an outcome, as its supervisor died or the store went
        away. It counts if a later decision built on it and none used its number again."""
        return [d for d in self.decisions if self._took_effect(d)]

    def unresolved(self) -> list[Decided]:
        """Returns decisions whose effect is unknown: their supervisor died before recording it, and none was made
        after."""
        return [d for d in self.decisions if self._took_effect(d) is None]

    def _took_effect(self, d: Decided) -> bool | None:
        if d.committed_at is not None or d.refused:
            return not d.refused
        return built_on(d.number, d.replaced, self.told, self.reached)

    def started(self) -> dict[int, list[int]]:
        """Returns the generations that each group has started, by the journal."""
        found: dict[int, list[int]] = {}
        for decided in self.decisions:
            for group, says in decided.groups.items():
                if says.get("phase") in ("starting", "running"):
                    found.setdefault(group, []).append(int(says["generation"]))
        return found

    def newest(self) -> float:
        """Returns the newest time in the files of the nodes."""
        steps = (float(s.lines[-1].get("t") or 0.0) for s in self.steps if s.lines)
        shims = (max(p.spawned, p.exited or 0.0) for p in self.processes)
        return max((*steps, *shims), default=0.0)

    def of_group(self, group: int, rank: int = 0) -> list[Steps]:
        """Returns the step records of a group's generations, oldest first."""
        return sorted((s for s in self.steps if (s.group, s.rank) == (group, rank)), key=lambda s: s.generation)


def read(run: str, run_dir: Path, system: Path) -> History:
    """Reads everything that there is about a run; `system` is the folder that holds `nodes/`. Leaves out generations
    below those that its journal has started: they are of a run that had its name before (`supervisor rm`)."""
    unreadable: list[str] = []
    journal = _right(run_dir / "journal.jsonl", unreadable, wrong_with_journal)
    shims = (
        (path.parent.name, _right(path, unreadable, wrong_with_shim))
        for path in sorted(system.glob("nodes/*/shim.jsonl"))
    )
    steps = []
    for path in sorted(system.glob(f"nodes/*/ranks/{run}.*/steps.jsonl")):
        name = rank_of(path.parent.name, run)
        if name is not None:
            steps.append(Steps(*name, path.parts[-4], tuple(_right(path, unreadable, wrong_with))))
    history = of_lines(run, journal, shims, steps)
    history.unreadable += unreadable
    return _only(history, lambda generation, started: generation >= min(started))


def without_later(history: History) -> History:
    """Leaves out generations above those that its journal has started, of a run that has had its name since. No journal
    vouches for that: only for people, never for a checker."""
    return _only(history, lambda generation, started: generation <= max(started))


def _only(history: History, ours: Callable[[int, Sequence[int]], bool]) -> History:
    """Returns the history without the processes, steps and signals of generations that are not ours. `ours` judges a
    generation by those that its group started."""
    started = history.started()

    def holds(each: Process | Steps | Signalled) -> bool:
        return each.group not in started or ours(each.generation, started[each.group])

    return replace(
        history,
        processes=[each for each in history.processes if holds(each)],
        steps=[each for each in history.steps if holds(each)],
        signals=[each for each in history.signals if holds(each)],
    )


def _right(
    path: Path, unreadable: list[str], wrong_with_it: Callable[[dict[str, Any]], str]
) -> Iterator[dict[str, Any]]:
    for line in _lines(path, unreadable):
        if wrong := wrong_with_it(line):
            unreadable.append(f"{path.name} of {path.parent.name}: {wrong}")
        else:
            yield line


def of_lines(
    run: str,
    journal: Iterable[dict[str, Any]],
    shims: Iterable[tuple[str, Iterable[dict[str, Any]]]],
    steps: Iterable[Steps],
) -> History:
    """Builds a history from the lines of a journal, of each node's shim and of each rank, wherever they were kept."""
    history = History(run, steps=list(steps))
    for node, lines in shims:
        _read_shim(history, lines, node)
    history.processes.sort(key=lambda p: p.spawned)
    _read_journal(history, retimed(journal, history.processes, history.newest()))
    history.signals.sort(key=lambda s: s.t)
    return history


def _read_journal(history: History, lines: Iterable[dict[str, Any]]) -> None:
    lines = list(lines)
    away: float | None = None
    last = 0.0
    for at, line in enumerate(lines):
        last = float(line.get("t") or last)
        if line.get("entry") == "event" and line.get("event") in ("store", "term"):
            back = bool(line.get("up", True))  # the leader has reached it
            if away is not None and back:
                history.outages.append(Outage(start=away, end=last))
            away = None if back else last - float(line.get("silent_s") or 0.0) if away is None else away
        if isinstance(line.get("epoch"), int):
            history.epochs.setdefault(line["epoch"], at)
        if line.get("event") == "term" and isinstance(line.get("elected"), int):
            history.elected[int(line["epoch"])] = line["elected"]
        if line.get("event") == "relaunch":
            history.sizes.append((float(line["t"]), int(line["groups"])))
        if line.get("event") == "account":
            history.account = ACCOUNT.validate_python(line["account"])
    if away is not None:
        history.outages.append(Outage(start=away, end=last))
    found = of_journal(lines, lambda line: line)
    history.told, history.reached = found.told, found.reached
    history.outcomes = [
        _outcome(line, at, intent.at if intent is not None else None) for at, line, intent in found.named
    ]
    history.decisions = [
        Decided(
            t=intent.kept["t"],
            epoch=intent.kept["epoch"],
            number=intent.number,
            actions=tuple(intent.kept.get("actions", ())),
            incidents=tuple(intent.kept.get("incidents", ())),
            groups={int(g): v for g, v in intent.kept.get("groups", {}).items()},
            committed_at=intent.outcome["t"] if intent.outcome is not None and not intent.refused else None,
            refused=intent.refused,
            line=intent.at,
            replaced=intent.given_again,
        )
        for intent in found.intents
        if intent.kept.get("actions") or intent.kept.get("incidents")
    ]


def _outcome(line: Mapping[str, Any], at: int, intent_at: int | None) -> Outcome:
    revision = line.get("revision")
    return Outcome(
        number=int(line["decision"]),
        epoch=int(line["epoch"]),
        line=at,
        intent_line=intent_at,
        revision=int(revision) if revision is not None else None,
        refused=bool(line.get("refused")),
    )


def _read_shim(history: History, lines: Iterable[dict[str, Any]], node: str) -> None:
    alive: dict[tuple[str, int], dict[str, Any]] = {}
    killed: list[tuple[dict[str, Any], dict[str, Any]]] = []  # recorded just before the signal
    ending, allocation = False, None
    for line in lines:
        event = line.get("event")
        if event == "shim_started":
            ending, allocation = False, line.get("allocation")
            for spawn in alive.values():  # its shim died with it, or before it
                history.processes.append(_process(node, history.run, spawn, None, over_by=float(line["t"])))
            for spawn, end in killed:
                history.processes.append(_process(node, history.run, spawn, end, over_by=float(line["t"])))
            alive.clear()
            killed.clear()
        elif event == "shim_stopping":
            ending = True
        name = rank_of(str(line.get("name", "")), history.run)
        if name is None:
            continue
        key = (str(line["name"]), int(line["pid"]))
        if event == "spawned":
            alive[key] = line
        elif event == "exited" and key in alive:
            history.processes.append(_process(node, history.run, alive.pop(key), line, over_by=float(line["t"])))
        elif event == "leftover_killed" and key in alive:
            killed.append((alive.pop(key), line))
        elif event == "signalled":
            history.signals.append(
                Signalled(
                    node,
                    *name,
                    float(line["t"]),
                    int(line["signal"]),
                    str(line.get("why") or ""),
                    ending,
                    allocation,
                    _cut_off_s(line),
                )
            )
    for spawn in alive.values():
        history.processes.append(_process(node, history.run, spawn, None, over_by=None))
    for spawn, end in killed:
        history.processes.append(_process(node, history.run, spawn, end, over_by=None))


def _cut_off_s(line: dict[str, Any]) -> float | None:
    """Returns the policy of the agent's own by which a signal was sent. Shims of 0.1 recorded it in the words alone."""
    if "cut_off_s" in line:
        return None if line["cut_off_s"] is None else float(line["cut_off_s"])
    told = re.search(r"policy\.cut_off_stop_s is ([0-9.e+]+)", str(line.get("why") or ""))
    return float(told[1]) if told else None


def _process(
    node: str, run: str, spawn: dict[str, Any], exit_: dict[str, Any] | None, over_by: float | None
) -> Process:
    name = rank_of(str(spawn["name"]), run)
    assert name is not None
    exited = float(exit_["t"]) if exit_ is not None else None
    return Process(
        node=node,
        run=run,
        group=name[0],
        generation=name[1],
        rank=name[2],
        pid=int(spawn["pid"]),
        spawned=float(spawn["t"]),
        exited=exited,
        signal=exit_.get("signal") if exit_ is not None else None,
        exit_code=exit_.get("exit_code") if exit_ is not None else None,
        over_by=over_by,
    )


def _lines(path: Path, unreadable: list[str]) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    rows = path.read_text(errors="replace").split("\n")
    torn = ""
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        try:
            body = json.loads(row)
        except (ValueError, RecursionError):
            # A process that is killed while it writes leaves a torn last line, which is no loss of history.
            if number != len(rows):
                torn = f"{path.name} of {path.parent.name}: line {number}"
                unreadable.append(torn)
            continue
        if torn and isinstance(body, dict) and body.get("event") == "term":
            unreadable.remove(torn)  # the last line of a supervisor that was killed, completed by the next one
        torn = ""
        if isinstance(body, dict):
            yield body
