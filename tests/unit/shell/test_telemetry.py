"""What a round of decide sets, by the names and labels of the catalogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.ledger import Cause
from supervisor.core.model import Decision, GroupMemory, Kind, Memory, NodeView, Observed, RankView
from supervisor.core.spec import RunSpec
from supervisor.shell.metrics import CATALOGUE
from supervisor.shell.telemetry import PHASES, Telemetry, cause_of
from tests.unit.core.world import World
from tests.unit.shell.records import INCIDENT

SPEC = RunSpec(name="run")
_SUFFIXES = ("_bucket", "_sum", "_count", "_created")


class Told(World):
    """A world whose every decision is told to telemetry."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about)
        self.telemetry = Telemetry()

    def round(self, after: float = 0.0) -> Decision:
        decision = super().round(after)
        self.telemetry.round(self.spec, self.observed(), decision, 0.002)
        return decision


def value(telemetry: Telemetry, name: str, **labels: object) -> float | None:
    return telemetry.metrics.registry.get_sample_value(name, {k: str(v) for k, v in labels.items()})


def exported(telemetry: Telemetry) -> dict[str, set[frozenset[str]]]:
    """Metric of the catalogue -> the label names of its series."""
    found: dict[str, set[frozenset[str]]] = {}
    names = {m.name for m in CATALOGUE}
    for family in telemetry.metrics.registry.collect():
        for sample in family.samples:
            name = next((sample.name.removesuffix(s) for s in _SUFFIXES if sample.name.endswith(s)), sample.name)
            name = name if name in names else name + "_total"
            found.setdefault(name, set()).add(frozenset(sample.labels) - {"le"})
    return found


def test_one_round() -> None:
    world = Told().bring_up()
    t, run = world.telemetry, world.spec.name
    assert value(t, "supervisor_decisions_total", run=run) == world.rounds
    assert value(t, "supervisor_decide_seconds_count", run=run) == world.rounds
    assert value(t, "supervisor_decide_seconds_sum", run=run) == pytest.approx(0.002 * world.rounds)
    assert value(t, "supervisor_actions_total", run=run, action="place") == 2
    assert value(t, "supervisor_actions_total", run=run, action="acquire") == 3
    assert value(t, "supervisor_incidents_open", run=run) == 0
    assert {p: value(t, "supervisor_groups", run=run, phase=p) for p in PHASES} == {
        **dict.fromkeys(PHASES, 0.0),
        "running": 2.0,
    }
    assert [value(t, "supervisor_generation", run=run, group=g) for g in (0, 1)] == [1, 1]
    nodes = {s: value(t, "supervisor_nodes", run=run, state=s) for s in ("registered", "lost", "cordoned")}
    assert nodes == {"registered": 3, "lost": 0, "cordoned": 0}
    assert value(t, "supervisor_spare_nodes", run=run) == 1
    budget = world.spec.policy.budget
    assert [value(t, "supervisor_budget_left", run=run, rung=r) for r in ("restart", "replace", "reallocate")] == [
        budget.restart, budget.replace, budget.reallocate,
    ]  # fmt: skip
    assert value(t, "supervisor_committed_steps", run=run) == 1
    assert value(t, "supervisor_breaker_held", run=run) == 0


def test_many_nodes_whose_checks_fail_are_held_and_no_spare() -> None:
    world = Told(groups=6, spares=2).bring_up()
    for number in range(1, 9):
        world.node(number, failed="its checks failed")
    world.round(1.0)
    assert value(world.telemetry, "supervisor_spare_nodes", run=world.spec.name) == 0
    assert value(world.telemetry, "supervisor_breaker_held", run=world.spec.name) == 0, "six of them train"
    for group in range(6):
        world.crash(group)
    for _ in range(3):
        world.round(1.0)
    assert value(world.telemetry, "supervisor_breaker_held", run=world.spec.name) == 1


def test_a_crash_and_its_recovery() -> None:
    world = Told().bring_up()
    t, run = world.telemetry, world.spec.name
    world.crash(1)
    world.round(1.0)
    assert value(t, "supervisor_incidents_open", run=run) == 1
    assert value(t, "supervisor_incidents_total", run=run, kind="crash", rung="restart") is None
    assert value(t, "supervisor_budget_left", run=run, rung="restart") == world.spec.policy.budget.restart - 1
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)
    assert value(t, "supervisor_incidents_open", run=run) == 0
    assert value(t, "supervisor_incidents_total", run=run, kind="crash", rung="restart") == 1
    assert value(t, "supervisor_generation", run=run, group=1) == 2
    incident = world.incident
    assert incident.recovered is not None
    for phase in ("decide", "start", "join", "total"):
        assert value(t, "supervisor_recovery_seconds_count", run=run, phase=phase) == 1
    total = value(t, "supervisor_recovery_seconds_sum", run=run, phase="total")
    assert total == pytest.approx(incident.recovered - incident.opened)


def test_a_lost_node() -> None:
    world = Told().bring_up()
    node = world.group(1).node
    world.hear(1, "silent")
    world.lapse(node)
    world.round()
    t, run = world.telemetry, world.spec.name
    assert value(t, "supervisor_nodes", run=run, state="lost") == 1
    assert value(t, "supervisor_nodes", run=run, state="cordoned") == 1
    assert value(t, "supervisor_groups", run=run, phase="running") == 1


def test_all_of_the_control_planes_metrics_are_set_with_their_labels() -> None:
    world = Told().bring_up()
    world.telemetry.leading(7)
    world.telemetry.store(True)
    world.crash(1)
    world.round(1.0)
    world.recover(1)
    world.save(0, step=10)
    while world.memory.incidents or world.memory.checkpoint is None:
        world.round(1.0)
    found = exported(world.telemetry)
    assert found == {m.name: {frozenset(m.labels)} for m in CATALOGUE if m.name.startswith("supervisor_")}
    assert value(world.telemetry, "supervisor_checkpoint_step", run="run") == 10


def test_leadership_and_the_store() -> None:
    t = Telemetry()
    assert value(t, "supervisor_leader") == 0
    t.leading(7)
    assert (value(t, "supervisor_leader"), value(t, "supervisor_epoch")) == (1, 7)
    t.leading(None)
    assert (value(t, "supervisor_leader"), value(t, "supervisor_epoch")) == (0, 7)
    t.store(True)
    assert value(t, "supervisor_store_up") == 1
    t.store(False)
    assert value(t, "supervisor_store_up") == 0


# --- names ---


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
def test_a_name_that_the_catalogue_lacks_is_refused(kind: str) -> None:
    with pytest.raises(KeyError, match=f"no {kind} 'supervisor_nothing'"):
        getattr(Telemetry().metrics, kind)("supervisor_nothing")


def test_another_kind_is_refused() -> None:
    with pytest.raises(KeyError, match="no gauge 'supervisor_decisions_total'"):
        Telemetry().metrics.gauge("supervisor_decisions_total", run="run")


@pytest.mark.parametrize("labels", [{}, {"rum": "run"}, {"run": "run", "group": 1}])
def test_other_labels_are_refused(labels: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="supervisor_decisions_total has the labels"):
        Telemetry().metrics.counter("supervisor_decisions_total", **labels)


# --- ETTR ---


def at(now: float, *phases: str, phase: str = "running", incident: str = "") -> tuple[Observed, Decision]:
    groups = {g: GroupMemory(group=g, phase=p, incident=incident) for g, p in enumerate(phases)}  # type: ignore[arg-type]
    memory = Memory(phase=phase, groups=groups)  # type: ignore[arg-type]
    return Observed(revision=1, now=now, store_stable_s=100.0), Decision(memory=memory)


def tell(t: Telemetry, *rounds: tuple[Observed, Decision]) -> None:
    for observed, decision in rounds:
        t.round(SPEC, observed, decision, 0.001)


def test_ettr_is_the_share_of_running_group_seconds() -> None:
    t = Telemetry()
    tell(t, at(0.0, "starting", "starting"))
    assert value(t, "supervisor_ettr_ratio", run="run") is None
    tell(t, at(2.0, "starting", "starting"), at(8.0, "running", "running"), at(10.0, "running", "fencing"))
    assert value(t, "supervisor_ettr_ratio", run="run") == pytest.approx((6 + 6 + 2) / 20)
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="start") == 4
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="place") == 2


def test_a_finished_run_loses_no_more_time() -> None:
    t = Telemetry()
    tell(t, at(0.0, "running"), at(4.0, "running"), at(90.0, "finished", phase="finished"))
    assert value(t, "supervisor_ettr_ratio", run="run") == 1.0


def test_a_running_group_with_an_incident_is_being_detected() -> None:
    assert cause_of(GroupMemory(group=0, phase="running")) == Cause.PRODUCTIVE
    assert cause_of(GroupMemory(group=0, phase="running", incident="i1")) == Cause.DETECT


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.floats(0, 1e5), st.lists(st.sampled_from(PHASES), min_size=1, max_size=4)), max_size=8))
def test_ettr_and_badput_are_all_of_the_time(rounds: list[tuple[float, list[str]]]) -> None:
    t, now, whole = Telemetry(), 0.0, 0.0
    for number, (seconds, phases) in enumerate(rounds):
        now += seconds
        whole += seconds * len(phases) if number else 0.0
        tell(t, at(now, *phases))
        ratio = value(t, "supervisor_ettr_ratio", run="run")
        assert ratio is None or 0.0 <= ratio <= 1.0
        lost = sum(value(t, "supervisor_badput_seconds_total", run="run", cause=c.value) or 0.0 for c in Cause)
        assert (ratio or 0.0) * whole + lost == pytest.approx(whole)


def test_a_second_term_of_the_same_process_begins_at_an_earlier_clock() -> None:
    """The run clock goes on from the newest memory (ADR 3), which may be older than the last round of the first term."""
    t = Telemetry()
    t.leading(1)
    tell(t, at(0.0, "running"), at(50.0, "running"), at(60.0, "starting"))
    t.leading(None)
    t.leading(2)
    tell(t, at(20.0, "starting"), at(30.0, "starting"))
    assert value(t, "supervisor_ettr_ratio", run="run") == pytest.approx(50 / 70)
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="start") == 20


def test_time_that_somebody_else_led_is_not_ours() -> None:
    t = Telemetry()
    t.leading(1)
    tell(t, at(0.0, "running"), at(10.0, "running"))
    t.leading(None)
    t.leading(3)
    tell(t, at(500.0, "starting"), at(510.0, "starting"))
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="start") == 10


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Kind.HANG, Cause.HUNG),
        (Kind.SILENT, Cause.DETECT),
        (Kind.STRAGGLER, Cause.PRODUCTIVE),
        (Kind.LEAVING, Cause.PRODUCTIVE),
    ],
)
def test_the_kind_of_an_open_incident_says_where_the_time_goes(kind: Kind, cause: Cause) -> None:
    group = GroupMemory(group=0, phase="running", incident="i1")
    assert cause_of(group, replace(INCIDENT, kind=kind)) == cause
    assert cause_of(replace(group, phase="fencing"), replace(INCIDENT, kind=kind)) == Cause.PLACE


def test_a_store_that_is_away_costs_those_without_a_process() -> None:
    causes = {p: cause_of(GroupMemory(group=0, phase=p), away=True) for p in PHASES}  # type: ignore[arg-type]
    assert [p for p, cause in causes.items() if cause == Cause.STORE_AWAY] == ["unplaced", "fencing", "placing"]
    t = Telemetry()
    tell(t, at(0.0, "running", "fencing"), at(4.0, "running", "fencing"))
    observed, decision = at(10.0, "running", "fencing")
    tell(t, (replace(observed, store_stable_s=1.0), decision))
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="store_away") == 6
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="place") == 4


def test_until_a_hang_was_known_it_was_taken_for_training() -> None:
    t = Telemetry()
    tell(t, at(0.0, "running", "running"), at(100.0, "running", "running"))
    observed, decision = at(101.0, "running", "fencing")
    hang = replace(INCIDENT, kind=Kind.HANG, took_s=15.0, opened=101.0, decided=101.0)
    tell(t, (observed, replace(decision, incidents=(hang,))), at(111.0, "running", "starting"))
    assert value(t, "supervisor_badput_seconds_total", run="run", cause="hung") == 15
    lost = sum(value(t, "supervisor_badput_seconds_total", run="run", cause=c.value) or 0.0 for c in Cause)
    ratio = value(t, "supervisor_ettr_ratio", run="run")
    assert ratio == pytest.approx(1 - lost / (2 * 111))


def test_steps_that_were_committed_before_are_recomputed() -> None:
    """Both groups were lost at step 80, and began again at 50."""

    def told(now: float, generation: int, step: int, resume: str = "disk") -> tuple[Observed, Decision]:
        rank = RankView(group=0, generation=generation, rank=0, state="running", step=step, commits=1)
        group = GroupMemory(group=0, phase="running", generation=generation, resume=resume)  # type: ignore[arg-type]
        node = NodeView(name="n1", registered=True, ranks=(rank,))
        observed = Observed(revision=1, now=now, store_stable_s=100.0, nodes={"n1": node})
        return observed, Decision(memory=Memory(phase="running", groups={0: group}))

    for resume, redone in (("disk", 20.0), ("peers", None)):
        t = Telemetry()
        tell(t, told(0.0, 1, 70), told(10.0, 1, 80))
        tell(t, *(told(now, 2, step, resume) for now, step in ((20.0, 50), (30.0, 65), (40.0, 80), (50.0, 90))))
        assert value(t, "supervisor_badput_seconds_total", run="run", cause="recompute") == redone
