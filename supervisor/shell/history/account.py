"""Accounts for the seconds of a run from its files: by group, by incident and in all."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from supervisor.core.goodput.causes import Cause, Interval, totals
from supervisor.core.remediation.restore import ENDED
from supervisor.ports.errors import Fatal
from supervisor.shell.control.journal import read as read_journal
from supervisor.shell.dev.home import system_folder
from supervisor.shell.history.files import History, read, without_later
from supervisor.shell.history.goodput import SHARE, SLACK_S, Span, does_not_add_up, in_short, ledger, of_group, windows
from supervisor.shell.history.incident_cost import of_incidents
from supervisor.shell.history.incidents import lasted, recovered_at
from supervisor.shell.history.one_clock import retimed
from supervisor.shell.history.outcomes import of_journal
from supervisor.shell.processes import holder

IN_FLIGHT = 2.0
"""In a run that goes on, the time since the newest step counts once it exceeds this many ordinary steps."""

SILENT_S = 300.0
"""Seconds without a line in any file (or twice a trainer's longest silence) after which a run may be unsupervised."""

ROUNDED_S = 0.0005
"""Seconds below which a value counts as none, as JSON has milliseconds."""


def of_run(folder: Path, now: float | None = None) -> dict[str, Any]:
    """Returns what `--json` prints, in seconds. `now`: this machine's clock, up to which a run that is not over counts.
    Raises Fatal where there is no journal, or no decision yet."""
    name, system = located(folder)
    folder = folder.resolve()
    lines = list(read_journal(folder / "journal.jsonl"))
    history = without_later(read(name, folder, system))
    lines = retimed(lines, history.processes, history.newest())
    whole = lasts(lines, time.time() if now is None else now)
    if whole is None:
        raise Fatal(f"run {name}: its journal has no decision yet")
    whole = _heard(whole, lines, history, system)
    span, in_flight_s = _span(history, whole)
    ledgers = {g: ledger(history, g, span) for g in sorted({g for d in history.decisions for g in d.groups})}
    missing = [
        f"node {n}: its files are not below {system}: what its groups did there counts as no process"
        for n in nodes_not_here(history, system)
    ]
    short = in_short(history, ledgers, span)
    by_group = {g: _seconds(totals(intervals)) for g, intervals in ledgers.items()}
    causes = totals(interval for intervals in ledgers.values() for interval in intervals)
    costs = of_incidents(history, ledgers)
    return {
        "run": name,
        "seconds": short.seconds,
        "halted_s": round(span.halted_s(span.begin, span.end), 3),
        "begin_unix_s": short.begin_unix_s,
        "end_unix_s": short.end_unix_s,
        "phase": whole.phase,
        "over": whole.over,
        "silent_since_unix_s": whole.until if whole.silent else None,
        "ettr": short.ettr,
        "badput": short.badput,
        "causes": _seconds(short.causes),
        "groups": by_group,
        "incidents": [
            {
                **{name: i[name] for name in ("id", "kind", "group", "rung")},
                "lasted_s": lasted(history, i),
                "recovered_unix_s": recovered_at(history, i),
                "lost_s": _seconds(costs[i["id"]]),
            }
            for i in (window.incident for window in windows(history))
        ],
        "no_incident_s": _seconds(_without(causes, costs.values())),
        "wrong": [
            *missing,
            *(() if missing else short.apart),
            *_without_a_trace(history, system),
            *(f"{where} is no JSON" for where in history.unreadable),
            *does_not_add_up(history, ledgers, span),
            *_not_all_of_it(history, ledgers, whole, in_flight_s),
        ],
    }


def located(folder: Path) -> tuple[str, Path]:
    """Returns the name of the run with this folder, and the folder that holds `nodes/`. Raises Fatal where there is no
    journal."""
    journal = folder / "journal.jsonl"
    if not journal.is_file():
        raise Fatal(
            f"{folder} holds no journal.jsonl: give the folder of a run, as runs/NAME, on the machine of its supervisor"
        )
    folder = folder.resolve()
    system = next((s for s in map(system_folder, (folder, folder.parent)) if s.is_dir()), system_folder(folder.parent))
    return _name(read_journal(journal), system) or folder.name, system


def _name(lines: Iterable[Mapping[str, Any]], system: Path) -> str:
    """Returns the run's name, whatever its folder is called: from the first allocation that its journal requests, else
    from its ranks' folders. Empty: neither shows it."""
    keys = (str(action.get("key", "")) for line in lines for action in line.get("actions", ()))
    found = next((match[1] for key in keys if (match := re.fullmatch(r"acquire:(.+)-a\d+", key))), "")
    ranks = {path.name.rsplit(".", 3)[0] for path in system.glob("nodes/*/ranks/*.*.*.*")}
    return found or (ranks.pop() if len(ranks) == 1 else "")


@dataclass(frozen=True)
class Lasted:
    """How long a run has lasted, by its journal alone and this machine's clock."""

    began: float
    until: float
    """Its end. For a run that is not over: now, or its last sign of life."""
    phase: str
    over: bool
    silent: bool = False
    """True if it showed no sign of life since."""
    halts: tuple[tuple[float, float], ...] = ()
    """Beginning and end of each halt from which it was resumed."""


def lasts(lines: Iterable[Mapping[str, Any]], now: float) -> Lasted | None:
    """Returns how long the run lasted: from the first decision until it ended for good, or now. None: no decision."""
    found = of_journal(
        (line for line in lines if "t" in line), lambda line: (float(line["t"]), str(line.get("phase", "")))
    )
    # also one without a recorded outcome: its supervisor may have died before it could
    phases = [intent.kept for intent in found.intents if found.took_effect(intent) is not False]
    if not phases:
        return None
    ended: float | None = None
    halts: list[tuple[float, float]] = []
    for at, phase in phases:
        if phase not in ENDED and ended is not None:
            halts.append((ended, at))
        ended = (at if ended is None else ended) if phase in ENDED else None
    return Lasted(phases[0][0], now if ended is None else ended, phase, ended is not None, halts=tuple(halts))


def from_start_to_end(run_dir: Path, otherwise: Span) -> Span:
    """Returns the time of a run by its journal, up to now where it goes on. `otherwise`: where there is no decision."""
    lasted = lasts(read_journal(run_dir / "journal.jsonl"), time.time())
    return Span(lasted.began, lasted.until, lasted.halts) if lasted is not None else otherwise


def _heard(lasted: Lasted, lines: Iterable[Mapping[str, Any]], history: History, system: Path) -> Lasted:
    """Cuts a run that is not over and has no supervisor to its last sign of life: what came later is unknown."""
    steps = [[line["t"] for line in s.lines if "t" in line] for s in history.steps]
    longest_s = max((two - one for times in steps for one, two in itertools.pairwise(times)), default=0.0)
    shims = (at for p in history.processes for at in (p.spawned, p.exited) if at is not None)
    newest = max(itertools.chain((float(line.get("t") or 0.0) for line in lines), shims, *steps), default=lasted.began)
    # while a `supervisor up` of this folder lives, a run that stands still is silent, but costs
    silent = lasted.until - newest > max(SILENT_S, 2 * longest_s) and not any(map(holder, system.glob("up*.lock")))
    return lasted if lasted.over or not silent else replace(lasted, until=newest, silent=True)


def _span(history: History, lasted: Lasted) -> tuple[Span, float]:
    """Returns what is counted, and how long the newest step may go uncounted, its cause being still unknown."""
    steps = [line for s in history.steps for line in s.committed() if "start" in line]
    if lasted.over or lasted.silent or not steps:
        return Span(lasted.began, lasted.until, lasted.halts), 0.0
    newest, in_flight_s = max(line["t"] for line in steps), IN_FLIGHT * median(x["t"] - x["start"] for x in steps)
    goes_on = lasted.until - newest <= in_flight_s
    return Span(lasted.began, newest if goes_on else lasted.until, lasted.halts), in_flight_s


def _not_all_of_it(
    history: History, ledgers: Mapping[int, list[Interval]], lasted: Lasted, in_flight_s: float
) -> Iterator[str]:
    """Yields what the ledgers leave out of the run, by its journal and its trainers."""
    for group, intervals in ledgers.items():
        whole = of_group(history, group, Span(lasted.began, lasted.until, lasted.halts)).seconds
        seconds = sum(interval.seconds for interval in intervals)
        if abs(seconds - whole) > SHARE * whole + in_flight_s:
            yield f"group {group}: {seconds:.1f} s are under a cause, and the run has lasted {whole:.1f} s by its journal"
    for steps in history.steps:
        for what, since, until in (
            *(("a halt", *halt) for halt in lasted.halts),
            ("the end of the run", lasted.until, float("inf")),
        ):
            # a trainer that is ordered to end commits the step that it is in
            began = (line for line in steps.committed() if line.get("start", line["t"]) > since + SLACK_S)
            late = [line["t"] for line in began if line["t"] <= until]
            if late:
                yield f"{steps.name}: steps until {max(late) - since:.1f} s after {what}: they are not counted"


def _without(causes: Mapping[Cause, float], costs: Iterable[Mapping[Cause, float]]) -> dict[Cause, float]:
    """Returns what did not train and belongs to no incident: how a run begins and ends, and the overhead of steps."""
    costs = list(costs)
    left = {cause: seconds - sum(of.get(cause, 0.0) for of in costs) for cause, seconds in causes.items()}
    return {cause: seconds for cause, seconds in left.items() if cause != Cause.PRODUCTIVE and seconds > ROUNDED_S}


def _seconds(found: Mapping[str, float] | Mapping[Cause, float]) -> dict[str, float]:
    return {str(cause): round(seconds, 3) for cause, seconds in sorted(found.items(), key=lambda each: -each[1])}


def nodes_not_here(history: History, system: Path) -> list[str]:
    """Returns the nodes of the run whose files are not on this machine. `system`: the folder that holds `nodes/`."""
    groups = (g for d in history.committed() for g in d.groups.values())
    nodes = {str(node) for g in groups for node in g.get("nodes") or [g.get("node") or ""]} - {""}
    return sorted(node for node in nodes if not (system / "nodes" / node).is_dir())


def _without_a_trace(history: History, system: Path) -> list[str]:
    """Returns generations that trained by the journal, on nodes whose files are here but lack them."""
    known = {(p.group, p.generation) for p in history.processes} | {(s.group, s.generation) for s in history.steps}
    trained = {
        (group, int(says["generation"]), str(says.get("node") or ""))
        for d in history.committed()
        for group, says in d.groups.items()
        if says.get("phase") == "running"
    }
    return [
        f"group {group} generation {generation}: it has trained, and there is no step file and no shim's line of it below {system}"
        for group, generation, node in sorted(trained)
        if (group, generation) not in known and (not node or (system / "nodes" / node).is_dir())
    ]
