"""The leader's counts during a run agree with the ledger made of its files afterwards: a real run with forty faults."""

from __future__ import annotations

import gzip
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.checkers import history_file
from supervisor.core.goodput.causes import Cause, of_lines, totals
from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import NodeView, Observed, RankView
from supervisor.shell.history.files import Decided, History, Steps
from supervisor.shell.history.goodput import Span, ledger
from supervisor.shell.metrics.live_goodput import Accounts
from supervisor.shell.metrics.telemetry import LOOK_S
from tests.unit.fault_injection.files import resumed

RECORDED = Path(__file__).parents[2] / "fault_injection/recorded_run/history.jsonl.gz"


class Told:
    """The reports of rank 0 of one generation, with their times: the end of each step."""

    def __init__(self, steps: Steps) -> None:
        self.name = (steps.group, steps.generation)
        self.times: list[float] = []
        self.words: list[tuple[RankView, dict[str, float]]] = []
        seconds: dict[str, float] = {}
        commits = step = 0
        for line in steps.lines:
            for cause, more in totals(of_lines([line])).items():
                seconds[cause.value] = seconds.get(cause.value, 0.0) + more
            if line.get("event") == "step":
                commits += bool(line.get("committed"))
                step = line["step"] if line.get("committed") else step
                group, generation = self.name
                rank = RankView(group=group, generation=generation, rank=0, state="running", step=step, commits=commits)
                self.times.append(line["t"])
                self.words.append((replace(rank, phase="step", step_s=1.0), dict(seconds)))

    def at(self, time: float) -> tuple[RankView, dict[str, float]] | None:
        place = bisect_right(self.times, time)
        return self.words[place - 1] if place else None


class Followed:
    """The run as a leader saw it: its own decisions, and the trainers' reports."""

    def __init__(self, history: History) -> None:
        self.told = [Told(s) for s in history.steps if s.rank == 0]
        self.decisions = sorted(history.committed(), key=lambda d: d.t)
        self.groups = {s.group: GroupMemory(group=s.group) for s in history.steps}
        self.incidents: dict[str, Incident] = {}
        self.opened: dict[str, float] = {}
        self.accounts = Accounts()
        self.phase: Any = "running"

    def follow(self, begin: float, end: float) -> None:
        at = begin
        while at < end:
            at += LOOK_S
            while self.decisions and self.decisions[0].t <= at:
                decision = self.decisions.pop(0)
                self._decided(decision)
                self._look(decision.t)
            self._look(at)

    def _decided(self, decision: Decided) -> None:
        for i in decision.incidents:
            incident = Incident(
                id=i["id"], kind=Kind(i["kind"]), group=i["group"], node="", rung=Rung(i["rung"]), reason="", evidence=(),
                generation_before=i["generation_before"], generation_after=i["generation_after"],
                opened=self.opened.setdefault(i["id"], decision.t), took_s=float(i.get("took_s") or 0.0),
            )  # fmt: skip
            over = i.get("state") in ("recovered", "halted")
            self.incidents.pop(incident.id, None)
            if not over:
                self.incidents[incident.id] = incident
            self._group(incident.group, incident="" if over else incident.id)
            if i["state"] == "halted" and incident.rung == Rung.STOP:
                self.phase = "halted"
            if i.get("acted") is not None and self.groups[incident.group].phase == "fencing":
                self._group(incident.group, phase="starting")
        for action in decision.actions:
            phase = {"start": "starting", "fence": "fencing", "place": "starting"}.get(action["verb"])
            if phase is not None:
                self._group(action["group"], phase=phase, generation=action["generation"])
            if action["verb"] == "resume":
                self.phase = "new"
                for group in self.groups.values():
                    self._group(group.group, phase="unplaced", generation=group.generation + 1)

    def _group(self, group: int, **about: Any) -> None:
        self.groups[group] = replace(self.groups[group], **about)

    def _look(self, at: float) -> None:
        ranks, told = [], {}
        for each in self.told:
            word = each.at(at)
            if word is None:
                continue
            rank, told[each.name] = word
            ranks.append(rank)
            group = self.groups[rank.group]
            if (group.generation, group.phase) == (rank.generation, "starting") and rank.commits:
                self._group(rank.group, phase="running")
        node = NodeView(name="n", registered=True, ranks=tuple(ranks))
        memory = Memory(phase=self.phase, groups=self.groups, incidents=self.incidents)
        self.accounts.look(memory, Observed(revision=1, now=at, store_stable_s=1e6, nodes={"n": node}), told)


def test_neither_counts_a_halt(tmp_path: Path) -> None:
    history = resumed(tmp_path).history()
    followed = Followed(history)
    followed.follow(1.0, 28864.0)
    exact = totals(ledger(history, 0, Span(1.0, 28864.0, halts=((11.0, 28811.0),))))
    live = followed.accounts.seconds
    assert sum(live.values()) == pytest.approx(63.0, abs=2 * LOOK_S)
    assert sum(exact.values()) == pytest.approx(63.0)
    apart = {cause: (live.get(cause, 0.0), exact.get(cause, 0.0)) for cause in Cause}
    assert not {cause: two for cause, two in apart.items() if two[0] != pytest.approx(two[1], abs=2 * LOOK_S)}


def test_the_leader_counts_what_the_ledger_finds(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    history = history_file.load(file)
    assert history.setting is not None
    begin, end = history.setting.began, max(line["t"] for s in history.steps for line in s.committed())
    followed = Followed(history)
    followed.follow(begin, end)
    exact = totals(i for g in followed.groups for i in ledger(history, g, Span(begin, end)))
    live, whole = followed.accounts.seconds, sum(exact.values())
    held = sum(group.held for group in followed.accounts._groups.values())
    assert sum(live.values()) + held == pytest.approx(whole, abs=2 * LOOK_S * len(followed.groups))
    shares = {cause: (live.get(cause, 0.0) / whole, exact.get(cause, 0.0) / whole) for cause in Cause}
    assert shares[Cause.PRODUCTIVE][1] < 0.8, "forty faults had their price"
    assert shares[Cause.PRODUCTIVE] == (
        pytest.approx(shares[Cause.PRODUCTIVE][1], abs=0.01),
        shares[Cause.PRODUCTIVE][1],
    )
    apart = {cause: round(one - other, 4) for cause, (one, other) in shares.items() if abs(one - other) > 0.006}
    assert not apart
    told_apart = (
        Cause.LOST_STEP,
        Cause.DETECT,
        Cause.DECIDE,
    )  # of a crash, the moments until it was seen are in the files alone
    assert sum(shares[c][0] for c in told_apart) == pytest.approx(sum(shares[c][1] for c in told_apart), abs=0.001)
