"""Explains why an incident went as it did, from the journal, and compares it with what `decide` would do today."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from supervisor.core.decide import decide
from supervisor.core.model.decision import Action
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind
from supervisor.core.model.reason import BREAKER
from supervisor.core.report.decision_diff import Answer, answer, compare
from supervisor.core.report.durations import lasted_s
from supervisor.core.report.explain import explain, named, started
from supervisor.core.report.words import say
from supervisor.ports.errors import Fatal
from supervisor.shell.control import decision_inputs
from supervisor.shell.control.build_info import program
from supervisor.shell.control.journal import read
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.history.outcomes import of_journal
from supervisor.shell.inspect import status
from supervisor.wire import keys
from supervisor.wire.records import Digest, RunRecord

MOST_LINES = 24
"""Most lines of steps that a page shows."""


SAME_S = 0.01
"""Times on the run clock that are closer than this are equal, despite rounding."""

EXACT_S = 0.0001
"""Rounding error of the journal's times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision that changed the incident or acted on it."""

    decision: int
    epoch: int
    at_unix_s: float
    """Wall clock of its leader."""
    clock: float
    """Run clock."""
    policy: int | None
    """Version of the policy; 0: the launched one. None if the journal does not record it."""
    input: str
    """Digest of its input; empty if no input is kept."""
    known: bool
    """True if it took effect: the journal records it, or a later decision was made on it, or etcd has its digest."""
    then: Answer
    """The whole decision, for the comparison."""
    own: tuple[Action, ...]
    """Its actions on the incident."""
    waits: tuple[str, ...] = ()
    """Reasons why nothing was done about it yet."""
    cut_off: bool = False
    """True if its supervisor ended before it wrote the outcome: the input was then not written either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A decision that was computed again."""

    decision: int
    verdict: Literal["same", "words", "another", "unknown"]
    differences: tuple[str, ...] = ()
    """For unknown: the reason."""
    program: str = ""
    """The program that decided originally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The whole explanation of an incident."""

    incident: Incident
    journal: str
    decided: tuple[Decided, ...]
    again: tuple[Again, ...]
    digests: tuple[Digest, ...] = ()
    """Digests in etcd of the decisions about it: only the newest."""
    gaps: tuple[str, ...] = ()
    """Parts that the journal lacks, because another supervisor led then."""
    stood: tuple[tuple[float, float], ...] = ()
    """Standstills of the run clock as in Account.stood, with those that only the journal shows."""

    @property
    def same(self) -> bool:
        """True if every decision about it was computed again and would be the same today."""
        return bool(self.again) and not self.gaps and all(a.verdict in ("same", "words") for a in self.again)

    def __str__(self) -> str:
        """Returns the explanation as text, as `supervisor explain` prints it."""
        return "\n".join(page(self))

    @property
    def elsewhere(self) -> tuple[Digest, ...]:
        """Digests of decisions that are not in the journal."""
        here = {(d.epoch, d.decision) for d in self.decided}
        return tuple(d for d in self.digests if (d.epoch, d.decision) not in here)


def why(
    incident: Incident,
    journal: Path,
    digests: tuple[Digest, ...] = (),
    stood: tuple[tuple[float, float], ...] = (),
) -> Why:
    """Reads the journal, and runs `decide` again on each recorded input. `stood`: Account.stood, if etcd is read.
    Raises OSError if a file cannot be read."""
    exact = [at for at in (incident.opened, incident.decided, incident.acted, incident.recovered) if at is not None]
    exact += [at for at, _ in stood]
    found = _decided(journal, incident.id, {d.decision: d.epoch for d in digests})
    # a time that was rounded up would seem to be after the term that it ends
    decided = tuple(replace(d, clock=next((at for at in exact if abs(at - d.clock) < EXACT_S), d.clock)) for d in found)
    kept = decision_inputs.find(journal.parent, {d.input for d in decided if d.input})
    again = tuple(_again(d, kept.get(d.input), journal) for d in decided)
    told = Why(
        incident=incident,
        journal=str(journal),
        decided=decided,
        again=again,
        digests=digests,
        stood=_stood(decided, stood),
    )
    return replace(told, gaps=tuple(_gaps(told)))


def of_run(mirror: Mirror, record: RunRecord, known: Iterable[Incident], incident: str) -> Why:
    """Explains an incident of a run in etcd, which has `known` ones. Raises Fatal if it is none of them, OSError if a
    file cannot be read."""
    run = record.spec.name
    found = _among({i.id: i for i in known}, incident, f"run {run}")
    stood = status.account(mirror, run).stood
    return why(found, Path(record.run_dir) / "journal.jsonl", digests(mirror, run, incident), stood)


def of_journal_file(journal: Path, incident: str) -> Why:
    """Explains an incident from a journal alone. Raises Fatal if there is no such file or incident, OSError if it cannot
    be read."""
    return why(_among(incidents(journal), incident, f"the journal {journal}"), journal)


def _among(known: Mapping[str, Incident], incident: str, where: str) -> Incident:
    if incident not in known:
        raise Fatal(f"{where} has no incident {incident!r}; known: {', '.join(known) or 'none'}")
    return known[incident]


def _stood(decided: Iterable[Decided], known: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Returns standstills of the run clock as in Account.stood: those in etcd, and for other changes of leader the gap
    between two decisions' wall clocks."""
    pairs = (
        (a, b, b.at_unix_s - b.clock - (a.at_unix_s - a.clock)) for a, b in pairwise(decided) if a.epoch != b.epoch
    )
    return (
        *known,
        *((a.clock, s) for a, b, s in pairs if s > 0.0 and not any(a.clock <= at < b.clock for at, _ in known)),
    )


def _gaps(told: Why) -> Iterator[str]:
    if not told.decided:
        return
    for d in told.elsewhere:
        yield f"decision {d.decision} was made on {d.host or 'another machine'}, whose journal has it"
    if told.elsewhere:
        return
    # etcd keeps only the newest digests: for an older incident, its own record shows if the journal is complete
    states = [then.state for d in told.decided if (then := _then(d, told)) is not None]
    if told.decided[0].clock > told.incident.opened + SAME_S:
        yield "how it began is in another machine's journal"
    if states[-1:] != [told.incident.state]:
        yield "how it went on is in another machine's journal"


def _then(decided: Decided, told: Why) -> Incident | None:
    return next((i for i in decided.then.incidents if i.id == told.incident.id), None)


def digests(mirror: Mirror, run: str, incident: str) -> tuple[Digest, ...]:
    """Returns the digests in etcd that name an incident, oldest first."""
    found = [d for _, d in mirror.records(keys.decision(run, 0)[:-1], Digest) if incident in d.incidents]
    return tuple(sorted(found, key=lambda d: d.decision))


def incidents(journal: Path) -> dict[str, Incident]:
    """Returns every incident as last journaled. Raises Fatal if there is no such file, OSError if it is unreadable."""
    if not journal.is_file():
        raise Fatal(f"there is no journal {journal}: it is RUN_DIR/journal.jsonl on the machine whose supervisor led")
    found: dict[str, Incident] = {}
    for line in read(journal, '"incidents":[{'):
        found |= {i.id: i for i in _answer(line).incidents}
    return found


def seen(journal: Path) -> dict[str, float]:
    """Returns when each incident was detected, by the leader's wall clock; empty if the journal is not here."""
    found: dict[str, float] = {}
    with contextlib.suppress(PermissionError):
        for line in read(journal, '"incidents":[{'):
            for incident in line.get("incidents", ()):
                found.setdefault(incident["id"], line["t"] - line["now"] + incident.get("opened", 0.0))
    return found


# --- the journal ---


def _decided(journal: Path, incident: str, made: Mapping[int, int]) -> list[Decided]:
    """Returns an incident's decisions that took effect, or may have, in order. `made`: decision -> epoch, of those in
    etcd."""
    lines = read(journal, '"entry":"intent"', '"entry":"outcome"', '"event":"outcome_unknown"')
    outcomes = of_journal(lines, lambda line: _about(line, incident))
    found: list[Decided] = []
    for intent in outcomes.intents:
        one, known = intent.kept, outcomes.took_effect(intent)
        if one is None or known is False:
            continue
        if intent.outcome is not None:
            found.append(replace(one, known=True, cut_off=False))
        elif made.get(intent.number, one.epoch) == one.epoch:
            found.append(replace(one, known=known or intent.number in made, cut_off=not intent.went_on))
    return sorted(found, key=lambda d: (d.epoch, d.decision))


def _about(line: Mapping[str, Any], incident: str) -> Decided | None:
    """Returns an intent's decision about an incident; None if it is about something else."""
    if not any(i.get("id") == incident for i in line.get("incidents", ())) and not any(
        a.get("incident") == incident for a in line.get("actions", ())
    ):
        return None
    then = _answer(line)
    state = next((i for i in then.incidents if i.id == incident), None)
    waits = _waits(line, state) if state is not None and state.decided is None else ()
    own = tuple(a for a in then.actions if a.incident == incident)
    return replace(_one(line, then, own), waits=waits)


def _one(line: Mapping[str, Any], then: Answer, own: tuple[Action, ...]) -> Decided:
    return Decided(
        decision=int(line["decision"]),
        epoch=int(line["epoch"]),
        at_unix_s=float(line["t"]),
        clock=float(line["now"]),
        policy=line.get("policy"),
        input=str(line.get("input", "")),
        known=False,
        then=then,
        own=own,
        cut_off=True,
    )


def _waits(line: Mapping[str, Any], incident: Incident) -> tuple[str, ...]:
    """Returns what a decision waited for, if it decided nothing about the incident. Older journals name no groups."""
    of = zip(line.get("waits", ()), line.get("waits_of", ()), strict=False)
    return tuple(said for said, why in of if why["code"] in BREAKER or incident.group in why["groups"])


def _answer(line: Mapping[str, Any]) -> Answer:
    """Parses a journal line. Raises Fatal if this program cannot read it."""
    # The journal omits empty values.
    bare = {"node": "", "reason": "", "evidence": ()}
    try:
        return _adapter().validate_python(
            {"actions": line.get("actions", ()), "incidents": [{**bare, **i} for i in line.get("incidents", ())]}
        )
    except (ValidationError, TypeError) as error:
        what = f"decision {line.get('decision')} of epoch {line.get('epoch')}"
        raise Fatal(
            f"the journal's line of {what} is from another version: ask with the version that wrote it"
        ) from error


@cache
def _adapter() -> TypeAdapter[Answer]:
    return TypeAdapter(Answer)


def _again(decided: Decided, kept: decision_inputs.Kept | decision_inputs.LostInput | None, journal: Path) -> Again:
    if isinstance(kept, decision_inputs.Kept):
        found = compare(decided.then, answer(decide(kept.given.observed, kept.given.spec, kept.given.memory)))
        return Again(
            decision=decided.decision, verdict=found.verdict, differences=found.differences, program=kept.program
        )
    if kept is not None:
        reason = str(kept)
    elif not decided.input:
        reason = "the journal has no input for it: the older version that wrote it kept none"
    elif decided.cut_off:
        reason = "its input was not written: its supervisor ended as it decided"
    else:
        reason = (
            f"its input is not in {journal.parent} any more: the newest {2 * decision_inputs.BYTES >> 20} MiB are kept there; "
            "to have it later, copy inputs.jsonl and inputs.1.jsonl away in time"
        )
    return Again(decision=decided.decision, verdict="unknown", differences=(reason,))


def as_json(told: Why) -> dict[str, Any]:
    """Returns the incident, with the findings about it."""
    body = status.as_json(told)
    found = {key: body[key] for key in ("journal", "digests", "gaps", "stood")}
    decisions = [{k: v for k, v in d.items() if k != "then"} for d in body["decided"]]
    return {**body["incident"], **found, "decisions": decisions, "asked_again": body["again"], "same_today": told.same}


# --- the page ---


def page(told: Why) -> list[str]:
    """Returns the explanation as lines of text."""
    waits = tuple(dict.fromkeys(sentence for d in told.decided for sentence in d.waits))
    lines = explain(told.incident, _instant(told), _became(told), waits, told.stood)
    return [*lines, "", *_steps(told), "", *_today(told)]


def _became(told: Why) -> list[tuple[float, Kind]]:
    """Returns the kinds that it had, and since when, on the run clock, as far as this journal shows them."""
    found: list[tuple[float, Kind]] = []
    for d in told.decided:
        then = _then(d, told)
        if then is not None and (not found or then.kind != found[-1][1]):
            found.append((d.clock, then.kind))
    return found


def _instant(told: Why) -> str:
    if not told.decided:
        return ""
    first = told.decided[0]
    at = datetime.fromtimestamp(first.at_unix_s - first.clock + told.incident.opened, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 10000:02d} UTC, by the clock of the machine that led"


def _steps(told: Why) -> list[str]:
    if not told.decided:
        return _elsewhere(told)
    steps = {(d.epoch, d.decision): [_short(d)] for d in told.elsewhere}
    steps |= {(d.epoch, d.decision): _step(d, told) for d in told.decided}
    lines = [f"How it went ({told.journal}):", *(line for place in sorted(steps) for line in steps[place])]
    return lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], f"  and {len(lines) - MOST_LINES} lines more"]


def _step(decided: Decided, told: Why) -> list[str]:
    after = lasted_s(told.incident.opened, decided.clock, told.stood)
    version = {None: "", 0: ", policy as launched"}.get(decided.policy, f", policy version {decided.policy}")
    sure = "" if decided.known else "; whether it took effect is not in the journal"
    did = [f"      {a.verb}{_where(a)}: {say(a.reason)}" for a in decided.own] or [
        f"      it is {_state(decided, told)}"
    ]
    return [
        f"  +{max(0.0, after):.2f} s  decision {decided.decision} (epoch {decided.epoch}{version}){sure}",
        *did,
    ]


def _state(decided: Decided, told: Why) -> str:
    now = _then(decided, told)
    assert now is not None  # without an action, only its change brought it here
    if now.state == "acting" and now.decided is not None and abs(now.decided - decided.clock) < SAME_S:
        return f"decided: {named(now.rung)}: {say(now.reason)}"
    if now.state != "acting" or now.acted is None:
        kind = f", as {now.kind.value}" if now.state == "open" else ""
        return "; ".join((f"{now.state}{kind}", *decided.waits))
    return "acted on: its new processes were seen" if started(now) else "ridden through: nothing is started"


def _where(action: Action) -> str:
    group = f" group {action.group}" if action.group is not None else ""
    generation = f" generation {action.generation}" if action.generation is not None else ""
    where = ", ".join(action.nodes) or action.node
    return f"{group}{generation}{f' on {where}' if where else ''}"


def _elsewhere(told: Why) -> list[str]:
    return [f"{told.journal} has no entry about it.", *(_short(d) for d in told.digests)]


def _short(digest: Digest) -> str:
    more = f" and {digest.more} more" if digest.more else ""
    did = ", ".join(digest.actions) or "no action"
    by = f"on {digest.host or '-'}, by {digest.program}"
    return f"  decision {digest.decision} (epoch {digest.epoch}, {by}): {did}{more}"


def _today(told: Why) -> list[str]:
    if not told.again:
        hosts = sorted({d.host for d in told.digests if d.host})
        where = f"on {' or '.join(hosts)}" if hosts else "on the machine whose supervisor led then"
        return [f"Asked again today: not known, because the journal is not here. Ask {where}, or with --journal FILE."]
    of = {
        verdict: [a for a in told.again if a.verdict == verdict] for verdict in ("same", "words", "another", "unknown")
    }
    lines = []
    if of["same"]:
        lines.append(f"Asked again today, with what was seen then: the same answer ({_named(of['same'])}).")
    if of["words"]:
        lines.append(f"Asked again today: the same is done, in other words ({_named(of['words'])}).")
    for again in of["another"]:
        lines.append(f"Asked again today: ANOTHER ANSWER ({_named([again])}):")
        lines += [f"  - {sentence}" for sentence in again.differences]
    for sentence in dict.fromkeys(a.differences[0] for a in of["unknown"]):
        which = _named([a for a in of["unknown"] if a.differences[0] == sentence])
        lines.append(f"Asked again today: not known ({which}): {sentence}.")
    lines += [f"Asked again today: not known: {gap}." for gap in told.gaps]
    by = sorted({a.program for a in told.again if a.program})
    return [*lines, *([f"Decided by {' and '.join(by)}; asked again with {program()}."] if by else [])]


def _named(again: list[Again]) -> str:
    return f"decision{'s' if len(again) > 1 else ''} {', '.join(str(a.decision) for a in again)}"
