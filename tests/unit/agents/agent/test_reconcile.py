"""The agent's pure reconciliation of what runs with what is desired."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.agent.names import TrainerName, parse
from agents.agent.reconcile import Action, Forget, Forward, NotOurs, Start, StartLighthouse, Stop, reconcile
from fault_injection.testbed.nodes import RUN, trainer
from supervisor.core.model.spec import TorchFTSpec, TrainerSpec
from supervisor.wire.records import LighthouseDesired, NodeDesired, ProcessRecord, TrainerDesired


def process(name: str, exit_code: int | None = None, signal: int | None = None) -> ProcessRecord:
    ended = exit_code is not None or signal is not None
    return ProcessRecord(
        name=name, pid=100, start_ticks=1, folder="/x", exit_code=exit_code, signal=signal, exited=ended
    )


def node(*trainers: TrainerDesired, lighthouses: tuple[LighthouseDesired, ...] = ()) -> dict[str, NodeDesired]:
    return {RUN: NodeDesired(node="n0", trainers=trainers, lighthouses=lighthouses)}


def light(generation: int, close: bool = False) -> LighthouseDesired:
    spec = TorchFTSpec()
    return LighthouseDesired(run=RUN, generation=generation, groups=2, min_groups=1, torchft=spec, close=close)


def stops(actions: list[Action]) -> list[str]:
    return [action.name for action in actions if isinstance(action, Stop)]


def starts(actions: list[Action]) -> list[tuple[int, tuple[int, ...]]]:
    return [(action.desired.generation, action.ranks) for action in actions if isinstance(action, Start)]


def test_nothing_runs_and_one_is_wanted() -> None:
    wanted = trainer(world_size=2)
    assert reconcile(node(wanted), []) == [Start(wanted, (0, 1))]


def test_what_runs_as_wanted_is_left_alone_and_kept_pointed_at_the_gate() -> None:
    wanted = trainer()
    assert reconcile(node(wanted), [process("toy.0.1.0")]) == [Forward(wanted)]


def test_what_is_wanted_of_another_allocation_is_not_started_and_said() -> None:
    theirs = trainer(generation=5, allocation="toy-a1")
    (refused,) = reconcile(node(theirs), [], "toy-a2")
    assert isinstance(refused, NotOurs)
    assert all(word in refused.why for word in ("group 0", "generation 5", "toy-a1", "toy-a2", "again"))
    # a field that one of the two lacks is not compared
    for wanted, allocation in ((theirs, "toy-a1"), (theirs, ""), (trainer(generation=5), "toy-a2")):
        assert reconcile(node(wanted), [], allocation) == [Start(wanted, (0,))]


def test_what_runs_already_is_judged_whatever_its_allocation_is() -> None:
    theirs = trainer(generation=5, world_size=2, allocation="toy-a1")
    both = [process("toy.0.5.0"), process("toy.0.5.1")]
    assert reconcile(node(theirs), both, "toy-a2") == [Forward(theirs)]
    assert stops(reconcile(node(theirs), [process("toy.0.4.0")], "toy-a2")) == ["toy.0.4.0"]
    actions = reconcile(node(theirs), [process("toy.0.5.0")], "toy-a2")
    assert starts(actions) == [], "nor is the missing rank begun"
    assert [type(action) for action in actions] == [Forward, NotOurs]
    # and another group's is none of its business
    ours = trainer(group=1, allocation="toy-a2")
    assert Start(ours, (0,)) in reconcile(node(theirs, ours), [], "toy-a2")


def test_a_new_generation_waits_until_every_rank_of_the_old_one_has_ended() -> None:
    wanted = node(trainer(generation=2, world_size=2))
    both = [process("toy.0.1.0"), process("toy.0.1.1")]
    assert reconcile(wanted, both) == [
        Stop("toy.0.1.0", "generation 2 replaces it"),
        Stop("toy.0.1.1", "generation 2 replaces it"),
    ]
    one = [process("toy.0.1.0", signal=15), process("toy.0.1.1")]
    assert starts(reconcile(wanted, one)) == []
    none = [process("toy.0.1.0", signal=15), process("toy.0.1.1", signal=9)]
    assert reconcile(wanted, none) == [Start(wanted[RUN].trainers[0], (0, 1))]
    # the old records go only when there are newer ones to know a stale wish by
    actions = reconcile(wanted, [*none, process("toy.0.2.0"), process("toy.0.2.1")])
    assert [a.name for a in actions if isinstance(a, Forget)] == ["toy.0.1.0", "toy.0.1.1"]


def test_only_on_several_nodes_the_old_generation_is_killed_at_once() -> None:
    for nodes in (1, 2):
        (stop,) = reconcile(node(trainer(generation=2, nodes=nodes, store="h:1")), [process("toy.0.1.0")])
        assert stop == Stop("toy.0.1.0", "generation 2 replaces it", at_once=nodes > 1)
    failed = [process("toy.0.1.0", exit_code=1), process("toy.0.1.1")]
    (stop,) = reconcile(node(trainer(generation=2, nodes=2, world_size=4, store="h:1")), failed)
    assert stop == Stop("toy.0.1.1", "generation 2 replaces it", at_once=True), "though its neighbour has failed"


def test_a_stale_wish_is_ignored() -> None:
    assert reconcile(node(trainer(generation=1)), [process("toy.0.2.0")]) == []
    assert reconcile(node(trainer(generation=1)), [process("toy.0.2.0", exit_code=1)]) == []


def test_an_exited_generation_is_never_begun_again_and_stays_listed() -> None:
    for ended in (process("toy.0.1.0", exit_code=0), process("toy.0.1.0", signal=9)):
        assert reconcile(node(trainer()), [ended]) == [Forward(trainer())], "a new gate is to hear that it is gone"


def test_one_failed_rank_ends_the_others_and_nothing_of_it_is_begun() -> None:
    wanted = node(trainer(world_size=3))
    actions = reconcile(wanted, [process("toy.0.1.0", exit_code=1), process("toy.0.1.1")])
    assert stops(actions) == ["toy.0.1.1"]
    assert starts(actions) == []


def test_one_rank_that_finished_well_leaves_the_others_to_finish() -> None:
    actions = reconcile(node(trainer(world_size=2)), [process("toy.0.1.0", exit_code=0), process("toy.0.1.1")])
    assert stops(actions) == []


def test_an_agent_that_died_between_two_ranks_starts_the_missing_one() -> None:
    assert starts(reconcile(node(trainer(world_size=2)), [process("toy.0.1.0")])) == [(1, (1,))]


def test_what_is_not_wanted_ends_and_is_then_forgotten() -> None:
    assert stops(reconcile(node(), [process("toy.0.1.0")])) == ["toy.0.1.0"]
    assert reconcile(node(), [process("toy.0.1.0", signal=15)]) == [Forget("toy.0.1.0")]


def test_of_an_unknown_run_nothing_is_touched_but_orphaned_ranks() -> None:
    """A missing or unreadable record is no order to stop."""
    assert reconcile({}, [process("toy.0.1.0"), process("toy.1.1.0", exit_code=1)]) == []
    assert stops(reconcile({}, [process("toy.0.1.0"), process("toy.0.1.1", signal=9)])) == ["toy.0.1.0"]


def test_a_lighthouse_is_replaced_like_a_trainer() -> None:
    wanted = node(lighthouses=(light(2),))
    assert reconcile(wanted, []) == [StartLighthouse(light(2))]
    assert stops(reconcile(wanted, [process("lighthouse.toy.1")])) == ["lighthouse.toy.1"]
    assert StartLighthouse(light(2)) in reconcile(wanted, [process("lighthouse.toy.1", exit_code=1)])
    assert reconcile(wanted, [process("lighthouse.toy.2", exit_code=1)]) == []
    assert reconcile(node(lighthouses=(light(1),)), [process("lighthouse.toy.2")]) == []


def test_a_lighthouse_that_is_to_close_ends_is_never_started_and_stays_listed() -> None:
    closing = node(lighthouses=(light(2, close=True),))
    assert reconcile(closing, []) == []
    assert stops(reconcile(closing, [process("lighthouse.toy.2")])) == ["lighthouse.toy.2"]
    assert stops(reconcile(closing, [process("lighthouse.toy.1")])) == ["lighthouse.toy.1"]
    assert reconcile(closing, [process("lighthouse.toy.2", exit_code=0)]) == []
    # the next one may have its seat on the same node, beside it or in its place
    for following in (node(lighthouses=(light(2, close=True), light(3))), node(lighthouses=(light(3),))):
        assert stops(reconcile(following, [process("lighthouse.toy.2")])) == ["lighthouse.toy.2"]
        assert reconcile(following, [process("lighthouse.toy.2", exit_code=0)]) == [StartLighthouse(light(3))]
        both = [process("lighthouse.toy.2", exit_code=0), process("lighthouse.toy.3")]
        assert reconcile(following, both) == [Forget("lighthouse.toy.2")]


def test_names() -> None:
    assert parse("a-run.3.14.1") == TrainerName("a-run", 3, 14, 1)
    assert str(TrainerName("a-run", 3, 14, 1)) == "a-run.3.14.1"
    assert [parse(name) for name in ("agent", "warm", "a.b.c.d", "lighthouse.toy.x")] == [None] * 4


PROCESSES = st.builds(
    lambda group, generation, rank, end: process(f"toy.{group}.{generation}.{rank}", **end),
    st.integers(0, 1),
    st.integers(1, 4),
    st.integers(0, 1),
    st.sampled_from([{}, {}, {"exit_code": 0}, {"exit_code": 1}, {"signal": 9}]),
)


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.lists(PROCESSES, max_size=4, unique_by=lambda p: p.name),
    st.randoms(use_true_random=False),
)
def test_whatever_is_wished_no_generation_runs_twice_and_no_two_at_once(wishes, before, random) -> None:  # type: ignore[no-untyped-def]
    """Follows the actions in a model of the shim, with processes that end at any moment."""
    table = {p.name: p for p in before}
    spawned: list[str] = []
    for wish in wishes:
        desired = node(trainer(0, wish, world_size=2))
        for action in reconcile(desired, list(table.values())):
            match action:
                case Start(wanted, ranks):
                    live = {parse(n).generation for n, p in table.items() if n[:6] == "toy.0." and not p.exited}
                    assert live <= {wanted.generation}
                    newest = max((parse(n).generation for n in table if n[:6] == "toy.0."), default=0)
                    assert wanted.generation >= newest
                    for rank in ranks:
                        name = f"toy.0.{wanted.generation}.{rank}"
                        assert name not in table
                        assert name not in spawned
                        spawned.append(name)
                        table[name] = process(name)
                case Stop(name):
                    assert not table[name].exited
                    if random.random() < 0.7:
                        table[name] = replace(table[name], exited=True, signal=15)
                case Forget(name):
                    assert table.pop(name).exited
        for name, each in table.items():
            if not each.exited and random.random() < 0.2:
                table[name] = replace(each, exited=True, exit_code=random.choice([0, 1]))


def test_a_drained_command_that_reports_no_steps_is_ended_and_another_ends_by_itself() -> None:
    for reports, expected in (("output", ["toy.0.1.0"]), ("steps", [])):
        wanted = trainer(trainer=TrainerSpec(command=("x",), reports=reports), stop_at_step=9)  # type: ignore[arg-type]
        assert stops(reconcile(node(wanted), [process("toy.0.1.0")])) == expected
