"""The chain of timeouts: the refused values, the proposed ones, and that no proposal is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.gate.etcd import GATE_LEASE_S
from supervisor.core.model.measured import NOTHING, Measured, remembered, together
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, RunSpec
from supervisor.core.timeouts import solver
from supervisor.core.timeouts.bound import Row
from supervisor.shell.runfile import parse
from supervisor.wire import tables
from tests.unit.core.world import World

SPEC = RunSpec(name="run")
SLURM = replace(SPEC, allocation=AllocationSpec(engine="slurm"))
SEEN = Measured(
    step_s=0.77, longest_step_s=2.1, collective_s=0.8, apart_s=2.4, start_s=8.4, gate_ms=1, store_ms=12,
    engine_word_s=0.7,
)  # fmt: skip
EXAMPLES = sorted((Path(__file__).parents[4] / "examples").rglob("*.toml"))


def with_value(spec: Any, key: str, value: float) -> Any:
    """`spec` with the value of a dotted key; whole where the key takes whole numbers."""
    head, _, rest = key.partition(".")
    if rest:
        return replace(spec, **{head: with_value(getattr(spec, head), rest, value)})
    kind = type(getattr(spec, head))
    assert kind is float or value == int(value), f"{key} is a whole number, not {value}"
    return replace(spec, **{head: kind(value)})


def changed(spec: RunSpec = SPEC, **values: float) -> RunSpec:
    for key, value in values.items():
        spec = with_value(spec, key.replace("__", "."), value)
    return spec


def row(key: str, spec: RunSpec = SPEC, seen: Measured = NOTHING) -> Row:
    (found,) = [r for r in solver.rows(spec, seen) if r.key == key]
    return found


def proposal(spec: RunSpec, seen: Measured, keep_longer: bool) -> RunSpec:
    """`spec` with every proposed value at once, or (`keep_longer`) with those for wrong or short values alone."""
    for each in solver.rows(spec, seen):
        if each.settable and not (keep_longer and each.state == "fits"):
            spec = with_value(spec, each.key, each.best.value)
    return spec


# --- refused values ---


@pytest.mark.parametrize(
    ("spec", "key", "least"),
    [
        (changed(torchft__heartbeat_timeout_ms=299), "torchft.heartbeat_timeout_ms", 300),
        (changed(torchft__join_timeout_ms=1000), "torchft.join_timeout_ms", 1001),
        (changed(torchft__process_group_timeout_ms=1000), "torchft.process_group_timeout_ms", 1001),
        (changed(torchft__quorum_timeout_ms=15_000, torchft__quorum_retries=9), "torchft.quorum_timeout_ms", 16_000),
        (changed(policy__hang__at_least_s=14.9), "policy.hang.at_least_s", 15),
        (changed(torchft__process_group_timeout_ms=26_000), "policy.hang.at_least_s", 31),
        (changed(torchft__join_timeout_ms=21_000), "policy.hang.at_least_s", 31),
        (changed(policy__hang__at_most_s=29), "policy.hang.at_most_s", 30),
        (changed(policy__node_lease_s=1), "policy.node_lease_s", 2),
        (changed(policy__silent_timeout_s=4.9), "policy.silent_timeout_s", 5),
        (changed(policy__node_lease_s=31), "policy.silent_timeout_s", 31),
        (changed(policy__start_timeout_s=4.9), "policy.start_timeout_s", 5),
        (changed(policy__cut_off_stop_s=9.9), "policy.cut_off_stop_s", 10),
        (changed(policy__allocation_timeout_s=5.5), "policy.allocation_timeout_s", 5.6),
        (changed(SLURM, policy__allocation_timeout_s=7.1), "policy.allocation_timeout_s", 7.2),
        (changed(SLURM, allocation__slurm__warn_s=59), "allocation.slurm.warn_s", 60),
    ],
)
def test_an_order_that_is_violated_names_key_value_the_least_and_why(spec: RunSpec, key: str, least: float) -> None:
    (found,) = solver.unsafe(spec)
    assert (found.key, found.least.value) == (key, least)
    assert found.sentence.startswith(f"{key} = {found.value:.10g} is below {least:g}")
    assert len(found.least.why) > 20
    assert solver.unsafe(with_value(spec, key, least)) == [], "the least safe value is safe"


@pytest.mark.parametrize(
    ("seen", "key", "least"),
    [
        (Measured(gate_ms=1024), "torchft.heartbeat_timeout_ms", 1324),
        (Measured(collective_s=10.0), "torchft.process_group_timeout_ms", 10_001),
        (Measured(apart_s=1800.01), "policy.hang.at_most_s", 1800.1),
        (Measured(pause_s=1800.01), "policy.hang.at_most_s", 1800.1),
        (Measured(step_s=360.5), "policy.hang.at_most_s", 1802.5),
        (Measured(start_s=300.01), "policy.start_timeout_s", 300.1),
        (Measured(store_ms=1700), "policy.node_lease_s", 6),
        (Measured(engine_word_s=596), "policy.allocation_timeout_s", 601),
    ],
)
def test_what_was_seen_is_refused_where_the_file_alone_would_pass(seen: Measured, key: str, least: float) -> None:
    assert solver.unsafe(SPEC) == []
    (found,) = solver.unsafe(SPEC, seen)
    assert (found.key, found.least.value) == (key, least)


def test_retries_that_are_too_many_are_told_the_most() -> None:
    (found,) = solver.unsafe(changed(torchft__quorum_retries=100_000))
    assert found.sentence.endswith("18 ms (quorum_timeout_ms / (retries + 1)), must not be below 100 ms; at most 17999")


def test_an_absent_lighthouse_is_no_hang_so_a_hang_may_be_longer_or_shorter_than_the_quorum_timeout() -> None:
    for at_most_s in (31.0, 10 * SPEC.torchft.quorum_timeout_ms / 1000):
        assert solver.unsafe(changed(policy__hang__at_most_s=at_most_s)) == []


def test_of_two_groups_one_waits_in_the_quorum_for_one_that_hangs_and_of_three_two_go_on() -> None:
    long = changed(policy__hang__at_most_s=3600)
    quorum = row("torchft.quorum_timeout_ms", long)
    assert (quorum.state, quorum.best.value) == ("tight", 3_600_000)
    assert row("torchft.quorum_timeout_ms", replace(long, groups=GroupsSpec(count=3))).state == "fits"


def test_a_gates_lease_is_as_the_gate_has_it() -> None:
    assert solver.LEASE_S == GATE_LEASE_S


def test_never_to_stop_what_is_cut_off_is_safe() -> None:
    assert row("policy.cut_off_stop_s", changed(policy__cut_off_stop_s=0)).state == "fits"


def test_an_engine_whose_word_comes_too_late_is_named_though_no_key_would_help() -> None:
    word = row("the engine's word", seen=Measured(engine_word_s=12.0))
    assert (word.state, word.settable) == ("unsafe", False)
    assert "passes for a lost node" in word.sentence
    assert all(each.settable for each in solver.unsafe(SPEC, Measured(engine_word_s=12.0)))


# --- sensible values ---


@pytest.mark.parametrize("spec", [SPEC, SLURM, *(parse.load(path) for path in EXAMPLES)], ids=lambda s: s.name)
@pytest.mark.parametrize("seen", [NOTHING, SEEN], ids=["new", "seen"])
def test_the_defaults_and_the_examples_fit(spec: RunSpec, seen: Measured) -> None:
    assert [each.sentence for each in solver.rows(spec, seen) if each.state != "fits"] == []


@pytest.mark.parametrize(
    ("spec", "seen", "key", "best"),
    [
        (SPEC, Measured(gate_ms=64), "torchft.heartbeat_timeout_ms", 1280),
        (SPEC, Measured(step_s=4.0), "torchft.process_group_timeout_ms", 20_000),
        (SPEC, Measured(collective_s=8.0), "torchft.process_group_timeout_ms", 16_000),
        (SPEC, Measured(step_s=4.0), "policy.hang.at_least_s", 50),
        (SPEC, Measured(apart_s=900.0), "policy.hang.at_most_s", 2700),
        (SPEC, Measured(pause_s=900.0), "policy.hang.at_most_s", 2700),
        (changed(torchft__quorum_timeout_ms=60_000, torchft__quorum_retries=10), NOTHING, "torchft.quorum_timeout_ms", 1_800_000),
        (changed(torchft__quorum_retries=0), NOTHING, "torchft.quorum_retries", 1),
        (changed(policy__cut_off_stop_s=60), NOTHING, "policy.cut_off_stop_s", 1800),
        (SPEC, Measured(store_ms=700), "policy.node_lease_s", 7),
        (changed(policy__silent_timeout_s=6), NOTHING, "policy.silent_timeout_s", 10),
        (SPEC, Measured(start_s=200.0), "policy.start_timeout_s", 600),
        (SPEC, Measured(longest_step_s=12.0), "policy.term_grace_s", 12),
        (SLURM, Measured(start_s=200.0), "allocation.slurm.warn_s", 460),
    ],
)  # fmt: skip
def test_what_is_safe_but_short_is_told_the_better_value(spec: RunSpec, seen: Measured, key: str, best: float) -> None:
    found = row(key, spec, seen)
    assert (found.state, found.best.value) == ("tight", best)
    assert found.sentence.endswith(f"better {best:.10g}")


def test_a_checkpoint_delays_the_writer_of_three_groups_but_two_wait_for_each_other() -> None:
    seen = Measured(apart_s=4.0)
    assert row("torchft.join_timeout_ms", SPEC, seen).state == "fits"
    three = replace(SPEC, groups=GroupsSpec(count=3))
    assert row("torchft.join_timeout_ms", three, seen).best.value == 8000


def test_what_is_not_measured_is_said_and_the_files_own_word_taken() -> None:
    spec = changed(torchft__process_group_timeout_ms=60_000, policy__hang__at_least_s=130)
    unknown = row("torchft.process_group_timeout_ms", spec)
    assert (unknown.best.value, unknown.measured) == (60_000, "no step measured yet")
    assert "your word" in unknown.best.why
    assert row("torchft.process_group_timeout_ms", spec, SEEN).best.value == 10_000
    for each in solver.rows(SPEC):
        assert not any(word in each.measured for word in (" 0 s", " 0 ms"))


def test_every_row_has_a_reason_and_is_a_key_of_the_run_file() -> None:
    for each in solver.rows(SLURM, SEEN):
        assert each.best.why
        assert each.measured or each.best.why.startswith("a choice") or each.key == "policy.cut_off_stop_s"
        assert not each.settable or each.key in tables.all_keys()


# --- the solver against itself ---

MS, S = st.integers(1, 4_000_000), st.floats(0.0, 4000.0, allow_nan=False)
SPECS = st.builds(
    lambda engine, groups, values: changed(
        replace(SPEC, allocation=AllocationSpec(engine=engine), groups=GroupsSpec(count=groups)), **values
    ),
    st.sampled_from(["local", "slurm"]),
    st.integers(1, 5),
    st.fixed_dictionaries(
        {
            "torchft__heartbeat_timeout_ms": MS, "torchft__join_timeout_ms": MS, "torchft__process_group_timeout_ms": MS,
            "torchft__quorum_timeout_ms": MS, "torchft__quorum_retries": st.integers(0, 2000),
            "policy__hang__at_least_s": S, "policy__hang__at_most_s": S, "policy__node_lease_s": st.integers(1, 100),
            "policy__silent_timeout_s": S, "policy__start_timeout_s": S, "policy__cut_off_stop_s": S,
            "policy__term_grace_s": S, "policy__allocation_timeout_s": S,
        }
    ),
)  # fmt: skip
SEENS = st.builds(
    Measured,
    step_s=S, longest_step_s=S, collective_s=S, apart_s=S, pause_s=S, start_s=S, gate_ms=st.floats(0, 5000), store_ms=st.floats(0, 5000),
    engine_word_s=st.floats(0, 60),
)  # fmt: skip


@settings(max_examples=50)
@given(SPECS, SEENS, st.booleans())
def test_what_it_proposes_it_accepts(spec: RunSpec, seen: Measured, keep_longer: bool) -> None:
    proposed = proposal(spec, seen, keep_longer)
    assert [each.sentence for each in solver.rows(proposed, seen) if each.settable and each.state != "fits"] == []


@settings(max_examples=50)
@given(SPECS, SEENS, st.sampled_from(dataclasses.fields(Measured)), st.floats(1.0, 100.0))
def test_what_takes_longer_never_needs_a_shorter_time(spec: RunSpec, seen: Measured, field: Any, times: float) -> None:
    slower = replace(seen, **{field.name: times * max(0.01, getattr(seen, field.name))})
    seen = replace(seen, **{field.name: max(0.01, getattr(seen, field.name))})
    for before, after in zip(solver.rows(spec, seen), solver.rows(spec, slower), strict=True):
        assert after.least.value >= before.least.value, before.key
        assert after.best.value >= before.best.value, before.key


# --- measurements ---


def test_of_several_the_longest_counts_and_an_unknown_one_takes_nothing_away() -> None:
    assert together([Measured(step_s=1.0, gate_ms=4), NOTHING, Measured(step_s=2.0, start_s=9.0)]) == Measured(
        step_s=2.0, gate_ms=4, start_s=9.0
    )


def test_it_is_written_down_again_only_when_its_class_has_changed() -> None:
    known = Measured(step_s=1.0, collective_s=1.0)
    assert remembered(known, Measured(step_s=1.9, collective_s=2.0)) == known
    assert remembered(known, NOTHING) == known
    assert remembered(known, Measured(step_s=0.4, collective_s=0.4)) == Measured(step_s=0.4, collective_s=1.0)
    slow_link = Measured(gate_ms=64, store_ms=512)
    assert remembered(slow_link, Measured(gate_ms=32, store_ms=256)) == slow_link
    assert remembered(slow_link, Measured(gate_ms=16, store_ms=128)) == Measured(gate_ms=16, store_ms=128)
    assert remembered(known, Measured(step_s=2.1, collective_s=2.1)) == Measured(step_s=2.1, collective_s=2.1)
    assert remembered(NOTHING, SEEN) == SEEN


def test_the_leader_remembers_what_ranks_nodes_and_engine_say_and_is_quiet_about_small_changes() -> None:
    w = World().bring_up()
    w.commit(0, step=2, measured=Measured(step_s=1.0, collective_s=0.4))
    w.commit(1, step=2, measured=Measured(step_s=1.2, start_s=30.0))
    w.nodes[w.group(0).first_node] = replace(w.nodes[w.group(0).first_node], store_ms=15.0)
    w.engine_word_s = 3.0
    w.round(1.0)
    known = Measured(step_s=1.2, collective_s=0.4, start_s=30.0, store_ms=15.0, engine_word_s=3.0)
    assert w.memory.measured == known
    decisions = w.memory.decisions
    w.commit(0, step=3, measured=Measured(step_s=1.9, collective_s=0.7))
    w.round(1.0)
    assert (w.memory.measured, w.memory.decisions) == (known, decisions)
    w.commit(0, step=4, measured=Measured(step_s=1.9, collective_s=0.9))
    w.round(1.0)
    assert w.memory.measured == replace(known, collective_s=0.9)
    w.crash(0)
    w.round(1.0)
    assert w.memory.measured == replace(known, collective_s=0.9), "it outlives who was measured"
