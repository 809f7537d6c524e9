"""The metrics that a round of `decide` sets, by the names and labels of the catalogue."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.policy.cordons import REPEATED_S
from supervisor.core.round.draft import Round
from supervisor.ports.errors import Retryable
from supervisor.shell.control.loop import SILENCE_S
from supervisor.shell.etcd.metrics import StoreWatch
from supervisor.shell.etcd.status import StoreStatus
from supervisor.shell.metrics.catalogue import CATALOGUE, CAUSES, GROUP_PHASES, KINDS, RUNGS
from supervisor.shell.metrics.telemetry import FAULTS, OVER_S, Records, Telemetry
from supervisor.wire.security import Security
from supervisor.wire.version import version
from tests.unit.core.world import World
from tests.unit.shell.records import INCIDENT, MEMORY

_LABELS = {metric.name: metric.labels for metric in CATALOGUE}
_SUFFIXES = ("_bucket", "_sum", "_count")


class Told(World):
    """A world whose every decision goes to telemetry."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about)
        self.telemetry = Telemetry()
        self.faults: dict[str, int] = {}

    def round(self, after: float = 0.0) -> Decision:
        decision = super().round(after)
        self.tell(decision)
        return decision

    def tell(self, decision: Decision) -> None:
        before = tuple(i for i in self.incidents.values() if i not in decision.incidents)
        records = Records(incidents=lambda: before, faults=lambda: self.faults, launched_unix_s=1.7e9)
        self.telemetry.round(self.spec, self.observed(), decision, 0.002, records)
        self.telemetry.committed(self.spec.name, decision, 0.004)
        self.telemetry.undecided(self.spec.name, False)


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


def samples(telemetry: Telemetry, names: list[str]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in telemetry.metrics.registry.collect()
        for s in family.samples
        if s.name.startswith(tuple(names))
    }


def test_groups_in_the_debugger() -> None:
    world = Told().bring_up()
    assert value(world.telemetry, "supervisor_debugged_groups", run=world.spec.name) == 0
    world.report(1, commits=1, step=5, debugging=True)
    world.round(10.0)
    assert value(world.telemetry, "supervisor_debugged_groups", run=world.spec.name) == 1
    world.report(1, commits=2, step=6)
    world.round(10.0)
    assert value(world.telemetry, "supervisor_debugged_groups", run=world.spec.name) == 0


def test_one_round() -> None:
    world = Told().bring_up()
    t, run = world.telemetry, world.spec.name
    assert value(t, "supervisor_decisions_total", run=run) == world.rounds
    assert value(t, "supervisor_decide_seconds_count", run=run) == world.rounds
    assert value(t, "supervisor_decide_seconds_sum", run=run) == pytest.approx(0.002 * world.rounds)
    assert value(t, "supervisor_actions_total", run=run, action="place") == 2
    assert value(t, "supervisor_actions_total", run=run, action="acquire") == 3
    assert value(t, "supervisor_incidents_open", run=run) == 0
    assert {p: value(t, "supervisor_groups", run=run, phase=p) for p in GROUP_PHASES} == {
        **dict.fromkeys(GROUP_PHASES, 0.0),
        "running": 2.0,
    }
    assert [value(t, "supervisor_generation", run=run, group=g) for g in (0, 1)] == [1, 1]
    nodes = {v: value(t, "supervisor_nodes", run=run, verdict=v) for v in ("healthy", "dead", "unknown")}
    assert nodes == {"healthy": 3, "dead": 0, "unknown": 0}
    assert value(t, "supervisor_cordoned_hosts", run=run) == 0
    assert value(t, "supervisor_spare_nodes", run=run) == value(t, "supervisor_spare_nodes_wanted", run=run) == 1
    assert value(t, "supervisor_run_phase", run=run, phase="running") == 1
    assert value(t, "supervisor_run_phase", run=run, phase="halted") == 0
    assert value(t, "supervisor_commit_seconds_sum", run=run) == pytest.approx(0.004 * world.rounds)
    budget = world.spec.policy.budget
    assert [value(t, "supervisor_budget_left", run=run, rung=r) for r in ("restart", "replace", "reallocate")] == [
        budget.restart, budget.replace, budget.reallocate,
    ]  # fmt: skip
    assert value(t, "supervisor_budget_allowed", run=run, rung="replace") == budget.replace
    assert value(t, "supervisor_committed_steps", run=run) == 1
    assert value(t, "supervisor_breaker_held", run=run) == 0
    assert value(t, "supervisor_run_launched_timestamp_seconds", run=run) == 1.7e9


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


def test_while_no_rank_tells_of_a_step_the_last_one_stands() -> None:
    """A fall to 0 and back would look like progress, and a run that comes and goes would never count as stalled."""
    world = Told().bring_up()
    world.commit(0, step=40)
    world.round(1.0)
    told = partial(value, world.telemetry, "supervisor_committed_steps", run=world.spec.name)
    assert told() == 40
    ranks = {name: node.ranks for name, node in world.nodes.items()}
    world.nodes = {name: replace(node, ranks=()) for name, node in world.nodes.items()}
    world.round(1.0)
    assert told() == 40
    world.nodes = {name: replace(node, ranks=ranks[name]) for name, node in world.nodes.items()}
    world.commit(0, step=30)
    world.round(1.0)
    assert told() == 30, "gone back to a checkpoint"


def test_steps_that_no_checkpoint_holds() -> None:
    world = Told().bring_up()
    every = world.spec.titan.checkpoint_interval_steps
    told = partial(value, world.telemetry, run=world.spec.name)
    assert told("supervisor_checkpoint_interval_steps") == every
    assert told("supervisor_checkpoint_step") is None
    world.report(0, commits=40, step=40)
    world.round(1.0)
    assert told("supervisor_unsaved_steps") == 40
    world.save(0, 40)
    world.report(1, commits=47, step=47)
    world.round(1.0)
    assert told("supervisor_unsaved_steps") == 7
    world.nodes = {name: replace(node, ranks=()) for name, node in world.nodes.items()}
    world.round(1.0)
    assert told("supervisor_unsaved_steps") == 7, "while nobody is heard of none is known to be saved"


def test_a_crash_and_its_recovery() -> None:
    world = Told().bring_up()
    t, run = world.telemetry, world.spec.name
    world.crash(1)
    world.round(1.0)
    assert value(t, "supervisor_incidents_open", run=run) == 1
    assert value(t, "supervisor_incidents_total", run=run, kind="crash", rung="restart") == 0
    assert value(t, "supervisor_budget_left", run=run, rung="restart") == world.spec.policy.budget.restart - 1
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)
    assert value(t, "supervisor_incidents_open", run=run) == 0
    assert value(t, "supervisor_incidents_total", run=run, kind="crash", rung="restart") == 1
    assert value(t, "supervisor_generation", run=run, group=1) == 2
    incident = world.incident
    assert incident.recovered is not None
    assert value(t, "supervisor_node_incidents_total", run=run, node=incident.node) == 1
    for phase in ("detect", "decide", "act", "rejoin", "total"):
        assert value(t, "supervisor_recovery_seconds_count", run=run, phase=phase) == 1
    total = value(t, "supervisor_recovery_seconds_sum", run=run, phase="total")
    assert total == pytest.approx(incident.recovered - incident.opened)


def test_each_node_of_a_group_that_was_lost_counts() -> None:
    world = Told(groups=2, spares=2, ranks=2, size=2).bring_up()
    world.hear(1, "silent")
    for node in ("n3", "n4"):
        world.lapse(node)
    world.round(1.0)
    world.start_again(1)
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)
    lost = [value(world.telemetry, "supervisor_node_incidents_total", run="run", node=f"n{n}") for n in range(1, 7)]
    assert lost == [None, None, 1, 1, None, None]


def test_recovery_that_outlasted_a_leader_took_the_time_without_one_too() -> None:
    """This holds in the term in which it ended, and in each later one, which counts it again."""
    over = replace(
        INCIDENT, took_s=2.0, state="recovered", rung=Rung.RESTART, opened=5.0, decided=5.5, acted=7.0, recovered=9.0
    )
    world = Told().bring_up()
    for before in ((), (over,)):
        records = Records(incidents=lambda known=before: known, stood=lambda: ((5.5, 60.0), (9.0, 500.0)))  # type: ignore[misc]
        telemetry = Telemetry()
        telemetry.round(world.spec, world.observed(), Decision(memory=world.memory), 0.002, records)
        if not before:
            telemetry.committed("run", Decision(memory=MEMORY, incidents=(over,)), 0.001)
        told = partial(value, telemetry, "supervisor_recovery_seconds_sum", run="run")
        parts = {phase: told(phase=phase) for phase in ("detect", "decide", "act", "rejoin", "total")}
        assert parts == {"detect": 2.0, "decide": 0.5, "act": 61.5, "rejoin": 2.0, "total": 66.0}


def test_each_number_of_an_incident_leads_to_it() -> None:
    """Each has an exemplar."""
    t = Told().bring_up().telemetry
    for id_, shadow in (("i7", False), ("i8", True)):
        over = replace(INCIDENT, id=id_, state="recovered", rung=Rung.RESTART, recovered=9.0, shadow=shadow)
        t.committed("run", Decision(memory=MEMORY, incidents=(over,)), 0.001)
    found = {
        (s.name, s.exemplar.labels["incident"])
        for family in t.metrics.registry.collect()
        for s in family.samples
        if s.exemplar is not None
    }
    assert found == {
        ("supervisor_incidents_total", "i7"),
        ("supervisor_node_incidents_total", "i7"),
        ("supervisor_recovery_seconds_bucket", "i7"),
        ("supervisor_shadow_incidents_total", "i8"),
    }


def test_what_a_new_leader_tells_again_has_no_exemplar() -> None:
    """An exemplar would have the time at which it began to lead, for a failure of days ago."""
    world = Told().bring_up()
    over = replace(INCIDENT, id="i7", state="recovered", recovered=9.0)
    records = Records(incidents=lambda: (over,))
    telemetry = Telemetry()
    telemetry.leading(2)
    telemetry.round(world.spec, world.observed(), Decision(memory=world.memory), 0.002, records)
    samples = [s for family in telemetry.metrics.registry.collect() for s in family.samples]
    assert any(s.name == "supervisor_incidents_total" and s.value == 1 for s in samples)
    assert not [s.name for s in samples if s.exemplar is not None and s.exemplar.labels.get("incident") == "i7"]


@pytest.mark.parametrize("about", [{"leaving": "preempted"}, {"checking": True}, {"failed": "its checks failed"}])
def test_a_spare_is_one_on_which_a_group_would_be_placed(about: dict[str, Any]) -> None:
    world = Told(spares=2).bring_up()
    told = partial(value, world.telemetry, "supervisor_spare_nodes", run=world.spec.name)
    assert told() == 2
    spare = Round(world.observed(), world.spec, world.memory).spares()[0]
    world.nodes[spare] = replace(world.nodes[spare], **about)
    world.round(2.0)
    assert told() == 1
    assert len(Round(world.observed(), world.spec, world.memory).spares()) == 1


@pytest.mark.parametrize(
    ("kind", "outside"),
    [(Kind.DEBUGGER, False), (Kind.REQUESTED, False), (Kind.LEAVING, False), (Kind.ERROR, False), (Kind.ALLOCATION_LOST, False), (Kind.CRASH, True)],
)  # fmt: skip
def test_what_was_planned_or_is_of_the_program_or_from_outside_accuses_no_node(kind: Kind, outside: bool) -> None:
    t = Told().bring_up().telemetry
    for number, one in enumerate((kind, Kind.OOM)):
        over = replace(INCIDENT, id=f"i{number}", kind=one, state="recovered", rung=Rung.RESTART, recovered=9.0)
        over = replace(over, outside=outside and one == kind)
        t.committed("run", Decision(memory=MEMORY, incidents=(over,)), 0.001)
        assert value(t, "supervisor_incidents_total", run="run", kind=one.value, rung="restart") == 1
    assert value(t, "supervisor_node_incidents_total", run="run", node=INCIDENT.node) == 1


def test_a_lost_node() -> None:
    world = Told().bring_up()
    node = world.group(1).first_node
    world.hear(1, "silent")
    world.lapse(node)
    world.round()
    t, run = world.telemetry, world.spec.name
    assert value(t, "supervisor_nodes", run=run, verdict="dead") == 1
    assert value(t, "supervisor_cordoned_hosts", run=run) == 1
    assert value(t, "supervisor_groups", run=run, phase="running") == 1


class Etcd:
    """An etcd with a given state."""

    def get(self, key: str) -> None: ...

    def status(self) -> StoreStatus:
        return StoreStatus(endpoint="", version="3.5.9", db_size=4096, has_leader=True, alarms=("NOSPACE",))


def test_all_of_the_control_planes_metrics_are_set_with_their_labels() -> None:
    world = Told().bring_up()
    world.telemetry.leading(7)
    StoreWatch(Etcd(), world.telemetry.metrics, lambda: 1.5).look()
    world.faults = {"node_killed": 2}
    world.crash(1)
    world.round(1.0)
    world.recover(1)
    world.save(0, step=10)
    while world.memory.incidents or world.memory.checkpoint is None:
        world.round(1.0)
    found = exported(world.telemetry)
    assert found == {m.name: {frozenset(m.labels)} for m in CATALOGUE if m.name.startswith("supervisor_")}
    assert value(world.telemetry, "supervisor_checkpoint_step", run="run") == 10
    assert value(world.telemetry, "supervisor_injected_faults_total", run="run", fault="node_killed") == 2
    assert value(world.telemetry, "supervisor_watch_silent_seconds") == 1.5
    assert value(world.telemetry, "supervisor_store_size_bytes") == 4096
    assert value(world.telemetry, "supervisor_store_alarms") == 1
    assert value(world.telemetry, "supervisor_certificate_expiry_timestamp_seconds") == math.inf


def test_certificates_that_cannot_be_used_are_exported_as_expired(tmp_path: Path) -> None:
    telemetry = Telemetry(Security(ca=str(tmp_path / "ca.pem"), cert="mistyped", key="mistyped"))
    assert value(telemetry, "supervisor_certificate_expiry_timestamp_seconds") == 0.0


def test_a_store_that_says_nothing_is_down() -> None:
    class Away(Etcd):
        def get(self, key: str) -> None:
            raise Retryable("no etcd answers", 1.0)

    t, silent = Telemetry(), [0.0]
    StoreWatch(Away(), t.metrics, lambda: silent[0]).look()
    assert value(t, "supervisor_store_up") == 0, "it has never answered"
    assert value(t, "supervisor_store_seconds_count") == 1, "how long it did not is told"
    t = Telemetry()
    StoreWatch(Etcd(), t.metrics, lambda: silent[0]).look()
    for seconds, up in ((0.0, 1), (SILENCE_S + 0.1, 0), (0.5, 1)):
        silent[0] = seconds
        assert (value(t, "supervisor_store_up"), value(t, "supervisor_watch_silent_seconds")) == (up, seconds)
    assert value(t, "supervisor_store_seconds_count") == 1


def test_a_loop_that_turns_no_more_is_told_while_its_lease_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [100.0]
    monkeypatch.setattr("supervisor.shell.metrics.telemetry.time.monotonic", lambda: at[0])
    t = Telemetry()

    def silent_s() -> float | None:
        return value(t, "supervisor_loop_silent_seconds")

    at[0] += 50.0
    assert silent_s() == 0, "it stands by"
    t.leading(7)
    at[0] += 2.0
    assert silent_s() == 2.0, "its first turn is to come"
    t.turned(0.5)
    assert silent_s() == 0.5
    at[0] += 60.0
    assert (silent_s(), value(t, "supervisor_leader")) == (60.5, 1)
    t.turned(61.0)
    assert silent_s() == 61.0, "it turns, and its watch says nothing"
    t.leading(None)
    at[0] += 60.0
    assert silent_s() == 0


# --- sources of metrics (ADR 14) ---


def test_only_the_leader_tells_of_runs() -> None:
    world = Told().bring_up()
    t = world.telemetry
    assert (value(t, "supervisor_leader"), value(t, "supervisor_epoch")) == (0, 0)
    t.leading(7)
    world.round(1.0)
    assert (value(t, "supervisor_leader"), value(t, "supervisor_epoch")) == (1, 7)
    assert value(t, "supervisor_committed_steps", run="run") == 1
    t.leading(None)
    assert (value(t, "supervisor_leader"), value(t, "supervisor_epoch")) == (0, 7)
    of_runs = {m.name for m in CATALOGUE if "run" in m.labels}
    assert exported(t).keys() & of_runs == set()
    assert value(t, "supervisor_info", version=version()) == 1


def test_the_next_leader_counts_the_same_incidents() -> None:
    world = Told().bring_up()
    world.crash(1)
    world.round(1.0)
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)
    of_incidents = [n for n in exported(world.telemetry) if "incidents_total" in n or "recovery" in n]
    assert len(of_incidents) == 4
    before = samples(world.telemetry, of_incidents)
    world.telemetry = Telemetry()
    world.round(1.0)
    assert samples(world.telemetry, of_incidents) == before
    assert value(world.telemetry, "supervisor_decisions_total", run="run") == 1


def test_what_may_not_have_been_written_is_counted_as_etcd_has_it() -> None:
    world = Told().bring_up()
    t = world.telemetry
    world.crash(1)
    world.round(1.0)
    world.recover(1)
    while not world.incident.recovered:
        t.outcome_unknown("run", 3.0)
        world.round(1.0)
    t.outcome_unknown("run", 3.0)
    commits = value(t, "supervisor_commit_seconds_bucket", run="run", le="2.0")
    assert value(t, "supervisor_commit_seconds_count", run="run") > commits == world.rounds, "nor was it quick"
    world.round(1.0)
    assert value(t, "supervisor_incidents_total", run="run", kind="crash", rung="restart") == 1
    assert value(t, "supervisor_recovery_seconds_count", run="run", phase="total") == 1


def test_a_run_that_had_ended_before_is_told_by_its_phase() -> None:
    world = Told().bring_up()
    world.memory = replace(world.memory, phase="stopped")
    world.telemetry = Telemetry()
    world.telemetry.round(world.spec, world.observed(), Decision(memory=world.memory), 0.002)
    of_runs = {m.name for m in CATALOGUE if "run" in m.labels}
    assert exported(world.telemetry).keys() & of_runs == {"supervisor_run_phase"}
    assert value(world.telemetry, "supervisor_run_phase", run="run", phase="stopped") == 1


def test_a_run_that_has_ended_is_told_whole_for_an_hour_and_of_its_nodes_for_a_day() -> None:
    """A leader that lives through many runs would otherwise export all of them for ever."""
    world = Told().bring_up()
    world.crash(1)
    world.round(1.0)
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)

    def told(after: float = 0.0) -> set[str]:
        world.now += after
        world.tell(Decision(memory=world.memory))
        return {name for name in exported(world.telemetry) if "run" in _LABELS[name]}

    whole = told()
    world.memory = replace(world.memory, phase="stopped")
    assert told() == whole
    assert told(OVER_S - 1) == whole
    of_nodes = {"supervisor_node_incidents_total", "supervisor_run_launched_timestamp_seconds"}
    assert told(1) == {"supervisor_run_phase", *of_nodes}
    assert told(REPEATED_S - OVER_S - 1) == {"supervisor_run_phase", *of_nodes}
    assert told(1) == {"supervisor_run_phase"}
    world.telemetry.outcome_unknown(world.spec.name, 1.0)
    assert told(1) == {"supervisor_run_phase"}
    world.memory = replace(world.memory, phase="running")
    assert "supervisor_incidents_total" in told(1), "another of this name"


def test_a_shadow_incident_is_counted_apart() -> None:
    t = Told().bring_up().telemetry
    shadow = replace(INCIDENT, shadow=True, state="recovered", rung=Rung.REPLACE, recovered=9.0)
    t.committed("run", Decision(memory=MEMORY, incidents=(shadow,)), 0.001)
    assert value(t, "supervisor_shadow_incidents_total", run="run", rung="replace") == 1
    assert value(t, "supervisor_incidents_total", run="run", kind=shadow.kind.value, rung="replace") == 0
    assert value(t, "supervisor_recovery_seconds_count", run="run", phase="total") == 0


def test_a_shadow_incident_is_counted_once_and_also_if_it_stays_open() -> None:
    """A group that has crashed and is left so never recovers."""
    t = Told().bring_up().telemetry
    shadow = replace(INCIDENT, shadow=True, state="open", rung=Rung.RESTART, recovered=None)
    for state in ("open", "open", "halted"):
        t.committed("run", Decision(memory=MEMORY, incidents=(replace(shadow, state=state),)), 0.001)
        assert value(t, "supervisor_shadow_incidents_total", run="run", rung="restart") == 1


def test_a_shadow_incident_that_is_acted_on_after_all_counts_as_another() -> None:
    t = Told().bring_up().telemetry
    shadow = replace(INCIDENT, shadow=True, state="open", rung=Rung.RESTART, recovered=None)
    acted = replace(shadow, shadow=False, state="recovered", recovered=9.0)
    t.committed("run", Decision(memory=MEMORY, incidents=(shadow,)), 0.001)
    t.committed("run", Decision(memory=MEMORY, incidents=(acted,)), 0.001)
    assert value(t, "supervisor_incidents_total", run="run", kind=acted.kind.value, rung="restart") == 1


def test_the_detection_is_how_long_it_had_to_last() -> None:
    t = Told().bring_up().telemetry
    hang = replace(
        INCIDENT, kind=Kind.HANG, took_s=15.0, state="recovered", opened=5.0, decided=5.5, acted=7.5, recovered=9.0
    )
    t.committed("run", Decision(memory=MEMORY, incidents=(hang,)), 0.001)
    parts = [
        value(t, "supervisor_recovery_seconds_sum", run="run", phase=p)
        for p in ("detect", "decide", "act", "rejoin", "total")
    ]
    assert parts == [15.0, 0.5, 2.0, 1.5, 19.0]


def test_what_counts_begins_at_0() -> None:
    """A counter that appears with 1 is no increase to Prometheus."""
    t = Told().bring_up().telemetry
    for kind in KINDS:
        for rung in RUNGS:
            assert value(t, "supervisor_incidents_total", run="run", kind=kind, rung=rung) == 0
    assert all(value(t, "supervisor_group_seconds_total", run="run", cause=c) is not None for c in CAUSES)


@pytest.mark.parametrize(("slow_s", "straggles"), [(0.4, False), (1.6, True)])
def test_what_a_slow_group_costs_is_told_as_straggling(slow_s: float, straggles: bool) -> None:
    world = Told(groups=3).bring_up()
    for commits in (1, 2, 3):
        for group in range(3):
            world.report(group, commits=commits, step=50 + commits, compute_s=slow_s if group == 1 else 0.4)
        world.round(10.0)
    seconds = {c: value(world.telemetry, "supervisor_group_seconds_total", run="run", cause=c) for c in CAUSES}
    assert seconds["productive"]
    assert bool(seconds["straggling"]) == straggles


def test_between_decisions_it_looks_once_a_second() -> None:
    world = Told().bring_up()
    world.round(1.0)
    world.nodes["n9"] = replace(world.nodes["n3"], name="n9", registered=True)
    for after, seen in ((0.9, 3), (0.2, 4)):
        world.round(after)
        assert world.last.actions == ()
        assert value(world.telemetry, "supervisor_nodes", run="run", verdict="healthy") == seen
    assert value(world.telemetry, "supervisor_decisions_total", run="run") == world.rounds


def test_more_kinds_of_faults_than_there_are_are_not_told() -> None:
    world = Told().bring_up()
    world.faults = {f"fault_{n:03}": 1 for n in range(FAULTS + 5)}
    world.round(1.0)
    world.faults["fault_000"] = 3
    world.round(1.0)
    told = [
        s
        for f in world.telemetry.metrics.registry.collect()
        for s in f.samples
        if s.name == "supervisor_injected_faults_total"
    ]
    assert len(told) == FAULTS
    assert value(world.telemetry, "supervisor_injected_faults_total", run="run", fault="fault_000") == 3


# --- names ---


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
def test_a_name_that_the_catalogue_lacks_is_refused(kind: str) -> None:
    with pytest.raises(KeyError, match=f"no {kind} 'supervisor_nothing'"):
        getattr(Telemetry().metrics, kind)("supervisor_nothing")


def test_another_kind_is_refused() -> None:
    with pytest.raises(KeyError, match="no gauge 'supervisor_decisions_total'"):
        Telemetry().metrics.gauge("supervisor_decisions_total", run="run")


@pytest.mark.parametrize("phase", ["", "sleeping", "Running"])
def test_another_value_of_a_label_is_refused(phase: str) -> None:
    with pytest.raises(ValueError, match="supervisor_groups: phase is one of unplaced, fencing"):
        Telemetry().metrics.gauge("supervisor_groups", run="run", phase=phase)


@pytest.mark.parametrize("labels", [{}, {"rum": "run"}, {"run": "run", "group": 1}])
def test_other_labels_are_refused(labels: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="supervisor_decisions_total has the labels"):
        Telemetry().metrics.counter("supervisor_decisions_total", **labels)
