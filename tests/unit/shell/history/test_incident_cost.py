"""The cost of an incident: of a real run, and of stories in which two may have the same seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.core.goodput.causes import Cause, Interval, totals
from supervisor.shell.history.files import History
from supervisor.shell.history.goodput import Span, ledger, windows
from supervisor.shell.history.incident_cost import of_incidents
from tests.unit.fault_injection.files import Files, incident, line, place, recorded, seconds, step, story
from tests.unit.shell.history.test_goodput import crash, whole

Ledgers = Mapping[int, list[Interval]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> History:
    return recorded(tmp_path_factory.mktemp("run"))


def ledgers_of(history: History, span: Span, groups: int = 2) -> Ledgers:
    return {g: ledger(history, g, span) for g in range(groups)}


def summed(costs: Mapping[str, Mapping[Cause, float]]) -> dict[Cause, float]:
    return totals(Interval(0.0, s, cause) for cost in costs.values() for cause, s in cost.items())


def badput(ledgers: Ledgers) -> dict[Cause, float]:
    found = totals(i for intervals in ledgers.values() for i in intervals)
    return {cause: s for cause, s in found.items() if cause != Cause.PRODUCTIVE}


def no_second_twice(history: History, ledgers: Ledgers) -> dict[str, dict[Cause, float]]:
    """The costs, after a check that no cause has more seconds than the run."""
    costs, all_of_it = of_incidents(history, ledgers), badput(ledgers)
    for cause, s in summed(costs).items():
        assert s <= all_of_it.get(cause, 0.0) + 1e-6, cause
    return costs


# --- a real run ---


def test_incidents_have_no_second_twice_and_none_that_the_run_has_not(run: History) -> None:
    ledgers = ledgers_of(run, whole(run))
    told, all_of_it = summed(no_second_twice(run, ledgers)), badput(ledgers)
    for cause in (Cause.RECOMPUTE, Cause.HUNG, Cause.DETECT, Cause.PLACE):
        assert told[cause] == pytest.approx(all_of_it[cause], abs=1e-6), f"{cause} is of incidents alone"
    assert told[Cause.LOST_STEP] > 0.9 * all_of_it[Cause.LOST_STEP], "but for those in which the record ends"
    assert told[Cause.FAILED_STEP] > 0.8 * all_of_it[Cause.FAILED_STEP], "but for two of which no incident came"
    assert Cause.CHECKPOINT not in told


def test_a_crash_costs_what_was_under_way_in_all_groups_until_it_steps_again(run: History) -> None:
    """The incident is i11, of group 1 while group 0 trained."""
    span = whole(run)
    ledgers = ledgers_of(run, span)
    cost = of_incidents(run, ledgers)["i11"]
    (window,) = [w for w in windows(run) if w.incident["id"] == "i11"]
    near = {g: [i for i in x if window.began - 2 < i.start and i.end < window.over] for g, x in ledgers.items()}
    of = {g: totals(x) for g, x in near.items()}
    assert of[1][Cause.LOST_STEP] > 0.5
    assert of[0][Cause.FAILED_STEP] > 0.5
    for cause, group in ((Cause.LOST_STEP, 1), (Cause.DETECT, 1), (Cause.START, 1)):
        assert cost[cause] == pytest.approx(of[group][cause], abs=1e-3), cause
    # by so much group 0 had committed the last step before group 1 did: until then nothing was lost
    assert cost[Cause.FAILED_STEP] == pytest.approx(of[0][Cause.FAILED_STEP] - 0.021, abs=1e-3)


def test_where_all_were_lost_each_group_is_of_its_own_incident(run: History) -> None:
    costs = of_incidents(run, ledgers_of(run, whole(run)))
    for name in ("i15", "i16"):
        assert costs[name][Cause.RECOMPUTE] > 20.0
        assert costs[name][Cause.START] > 2.0


# --- stories ---


def test_one_group_alone_with_what_it_computes_again(tmp_path: Path) -> None:
    history = crash(tmp_path).history()
    ledgers = ledgers_of(history, Span(2.0, 22.0), groups=1)
    assert no_second_twice(history, ledgers) == {
        "i1": {
            Cause.LOST_STEP: pytest.approx(0.5),
            Cause.DETECT: pytest.approx(0.5),
            Cause.DECIDE: pytest.approx(5.0),
            Cause.ACT: pytest.approx(0.6),
            Cause.START: pytest.approx(1.4),
            Cause.RECOMPUTE: pytest.approx(2.0),
        }
    }


def test_the_others_failed_step_is_its_cost(tmp_path: Path) -> None:
    history = story(tmp_path).history()
    costs = no_second_twice(history, ledgers_of(history, Span(1.0, 23.0)))
    assert costs["i1"][Cause.FAILED_STEP] == pytest.approx(1.0)
    assert costs["i1"][Cause.LOST_STEP] == pytest.approx(0.6)
    assert Cause.FAILED_STEP not in costs["i2"]


def paused(folder: Path) -> Files:
    """Groups 0 and 1 end at 9.5 and 10.5, undecided. Group 2 fails a step and waits for a quorum until 30."""
    f = Files(folder)
    f.decide(1.0, 1, {0: 1, 1: 1, 2: 1}, [place(g, 1, f"n{g}") for g in range(3)])
    f.decide(9.9, 2, {0: 1}, [], [incident("i1", "crash", 0, 1, 1, "open")])
    f.decide(10.9, 3, {1: 1}, [], [incident("i2", "crash", 1, 1, 1, "open")])
    for group, ended in ((0, 9.5), (1, 10.5), (2, None)):
        f.shims[f"n{group}"] = []
        f.shim(2.0, "spawned", f"n{group}", group, 1)
        if ended is not None:
            f.shim(ended, "exited", f"n{group}", group, 1, exit_code=None, signal=9)
        f.steps[f"n{group}", group, 1] = [line("start", 2.0, 5.0), *seconds(5.0, 1, 4)]
    f.steps["n1", 1, 1].append(step(9.0, 9.8, 5, committed=False))
    f.steps["n2", 2, 1] += [step(9.0, 9.8, 5, committed=False), line("quorum", 9.8, 30.0)]
    return f


def test_of_two_that_last_at_one_time_each_has_its_own_group_and_the_newest_the_others_wait(tmp_path: Path) -> None:
    history = paused(tmp_path).history()
    ledgers = ledgers_of(history, Span(2.0, 30.0), groups=3)
    costs = no_second_twice(history, ledgers)
    assert costs["i1"][Cause.DECIDE] == pytest.approx(20.0)
    assert costs["i2"][Cause.DECIDE] == pytest.approx(19.0)
    assert Cause.START not in summed(costs), "the groups' first start is no incident's"
    whole_wait = sum(cost.get(Cause.QUORUM, 0.0) for cost in costs.values())
    assert whole_wait == pytest.approx(20.2)
    assert summed(costs)[Cause.FAILED_STEP] == pytest.approx(0.8 + 0.8)
    assert sum(summed(costs).values()) == pytest.approx(sum(badput(ledgers).values()) - 3 * 3.0)


def test_a_wait_is_of_the_one_that_had_begun(tmp_path: Path) -> None:
    """Groups 1 and 2 wait for group 0, which ended at 9.5; group 1 ends at 28.5, also without a commit since 9."""
    f = paused(tmp_path)
    for entry in f.journal[-2:]:
        entry["t"] += 18.0
    f.of_shim("n1", "exited", 1, 1)["t"] = 28.5
    f.steps["n1", 1, 1][-1] = line("quorum", 9.0, 28.4)
    history = f.history()
    assert [w.began for w in windows(history)] == [9.9, 28.9]
    costs = no_second_twice(history, ledgers_of(history, Span(2.0, 30.0), groups=3))
    assert costs["i1"] == {
        Cause.LOST_STEP: pytest.approx(0.5),
        Cause.DETECT: pytest.approx(0.5),
        Cause.DECIDE: pytest.approx(20.0),
        Cause.FAILED_STEP: pytest.approx(0.8),
        Cause.QUORUM: pytest.approx(19.4 + 19.1),  # group 1 until 28.4, group 2 from 9.8 until 28.9
    }
    assert costs["i2"] == {
        Cause.LOST_STEP: pytest.approx(0.1),
        Cause.DETECT: pytest.approx(0.5),
        Cause.DECIDE: pytest.approx(1.0),
        Cause.QUORUM: pytest.approx(1.1),
    }


def test_so_is_what_was_waited_for_two_that_hang(tmp_path: Path) -> None:
    """Group 0 hangs from 10 to 15.1, and group 1 from 14 to 19.1. Group 2 tries a step from 9 to 20, of which one
    second is ordinary."""
    f = Files(tmp_path)
    f.decide(1.0, 1, {0: 1, 1: 1, 2: 1}, [place(g, 1, f"n{g}") for g in range(3)])
    for number, (t, took_s, about) in enumerate(
        (
            (12.0, 2.0, ("i1", "hang", 0, 1, 1, "open")),
            (15.0, 5.0, ("i1", "hang", 0, 1, 2, "acting")),
            (18.0, 4.0, ("i2", "hang", 1, 1, 1, "open")),
            (19.0, 5.0, ("i2", "hang", 1, 1, 2, "acting")),
        ),
        2,
    ):
        f.decide(t, number, {0: 1, 1: 1, 2: 1}, [], [incident(*about, took_s=took_s)])
    for group in range(3):
        f.shims[f"n{group}"] = []
        f.shim(2.0, "spawned", f"n{group}", group, 1)
        each = [{**x, "seconds": {"data": 0.0, "compute": 1.0}} for x in seconds(5.0, 1, 4)]
        f.steps[f"n{group}", group, 1] = [line("start", 2.0, 5.0), *each]
    f.steps["n2", 2, 1].append(step(9.0, 20.0, 5, committed=False))
    history = f.history()
    assert [(w.began, w.acted) for w in windows(history)] == [(10.0, 15.1), (14.0, 19.1)]
    costs = no_second_twice(history, {2: ledger(history, 2, Span(2.0, 20.0))})
    assert costs["i1"][Cause.HUNG] == pytest.approx(4.0)
    assert costs["i2"][Cause.HUNG] == pytest.approx(6.0)


def test_a_group_that_is_slow_costs_only_what_is_beyond_an_ordinary_step_until_it_is_acted_on(tmp_path: Path) -> None:
    f = Files(tmp_path)
    f.decide(1.0, 1, {0: 1, 1: 1}, [place(0, 1, "n1"), place(1, 1, "n2")])
    f.decide(12.0, 2, {0: 1, 1: 1}, [], [incident("i1", "straggler", 1, 1, 1, "open", took_s=2.0)])
    f.decide(15.9, 3, {0: 1, 1: 1}, [], [incident("i1", "straggler", 1, 1, 1, "recovered", took_s=2.0)])
    for group, node in ((0, "n1"), (1, "n2")):
        f.shims[node] = []
        f.shim(2.0, "spawned", node, group, 1)
        parts = {"data": 0.2, "compute": 0.8}
        f.steps[node, group, 1] = [
            line("start", 2.0, 5.0),
            *({**x, "seconds": parts} for x in seconds(5.0, 1, 5)),
            {**step(10.0, 13.0, 6), "seconds": {"data": 0.2, "compute": 2.8}},
            *({**x, "seconds": parts} for x in seconds(13.0, 7, 3)),
        ]
    history = f.history()
    costs = no_second_twice(history, ledgers_of(history, Span(2.0, 16.0)))
    assert costs == {"i1": {Cause.STRAGGLING: pytest.approx(4.0)}}


def observed(folder: Path, lost: tuple[float, ...] = ()) -> Files:
    """Two groups train from 5 s to 195 s, and a fault of group 1's GPU is only observed from 12 s on. Steps that end at
    one of `lost` are missing: the group stands still, and the other waits."""
    f = Files(folder)
    f.decide(1.0, 1, {0: 1, 1: 1}, [place(0, 1, "n1"), place(1, 1, "n2")])
    f.decide(12.0, 2, {0: 1, 1: 1}, [], [incident("i1", "gpu", 1, 1, 1, "open", shadow=True)])
    parts = {"data": 0.1875, "quorum": 0.1875, "compute": 0.5, "other": 0.125}
    for group, node in ((0, "n1"), (1, "n2")):
        f.shims[node] = []
        f.shim(2.0, "spawned", node, group, 1)
        each = [{**x, "seconds": parts} for x in seconds(5.0, 1, 190) if x["t"] not in lost]
        waits = [line("quorum", t - 1.0, t) for t in lost if group == 0]
        f.steps[node, group, 1] = [line("start", 2.0, 5.0), *sorted([*each, *waits], key=lambda x: x["t"])]
    return f


def test_what_was_only_observed_costs_nothing_while_its_group_trains(tmp_path: Path) -> None:
    """The incident stays open: the data, the quorums and the rest of all steps belong to the groups."""
    history = observed(tmp_path).history()
    assert no_second_twice(history, ledgers_of(history, Span(2.0, 195.0))) == {"i1": {}}


def test_it_costs_what_its_group_stood_still_for(tmp_path: Path) -> None:
    history = observed(tmp_path, lost=(13.0, 14.0, 50.0)).history()
    costs = no_second_twice(history, ledgers_of(history, Span(2.0, 195.0)))
    assert sum(costs["i1"].values()) == pytest.approx(2 + 2), (
        "what befell it later, when it had trained again, is not of it"
    )
    assert costs["i1"][Cause.QUORUM] == pytest.approx(2.0)


def test_an_ordinary_steps_quorum_is_of_no_incident(tmp_path: Path) -> None:
    """The others go on while a group is restarted: only their longer waits count."""
    f = story(tmp_path)
    for (node, _, _), lines in f.steps.items():
        for x in lines:
            if node == "n1" and x["event"] == "step" and x["committed"]:
                x["seconds"] = {"quorum": 0.25, "compute": 0.75}
    history = f.history()
    costs = no_second_twice(history, ledgers_of(history, Span(1.0, 23.0)))
    assert Cause.QUORUM not in costs["i1"]
    assert costs["i2"][Cause.QUORUM] == pytest.approx(0.5), "of the step that took two seconds"


def test_what_a_group_left_of_its_own_will_costs_from_then_on(tmp_path: Path) -> None:
    """The engine will take its node away: the group trains until it moves."""
    f = crash(tmp_path)
    for entry in f.journal:
        for about in entry.get("incidents", ()):
            about["kind"] = "leaving"
    history = f.history()
    cost = no_second_twice(history, ledgers_of(history, Span(2.0, 22.0), groups=1))["i1"]
    assert cost[Cause.LOST_STEP] == pytest.approx(0.5)
    assert cost[Cause.RECOMPUTE] == pytest.approx(2.0)


def test_one_that_is_over_when_the_next_comes_has_nothing_of_it(tmp_path: Path) -> None:
    """The second is of the same group, and had begun before the first was seen to be over."""
    f = crash(tmp_path)
    f.decide(18.95, 5, {0: 2}, [], [incident("i2", "crash", 0, 2, 2, "open", took_s=0.5)])
    f.shim(20.0, "exited", "n1", 0, 2, exit_code=None, signal=11)
    f.steps["n1", 0, 2] = [line("start", 15.6, 17.0), *seconds(17.0, 3, 1)]
    f.journal.sort(key=lambda x: x["t"])
    history = f.history()
    ledgers = ledgers_of(history, Span(2.0, 22.0), groups=1)
    costs = no_second_twice(history, ledgers)
    assert sum(costs["i2"].values()) == pytest.approx(4.0), "from its last step on, at 18"
    assert sum(summed(costs).values()) == pytest.approx(sum(badput(ledgers).values()) - 3.0)
