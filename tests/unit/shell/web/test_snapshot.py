"""The page's statements about a run, from real decisions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import ControlView, StuckView
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.etcd.errors import NOSPACE_MEND
from supervisor.shell.web import merge
from supervisor.shell.web.calls import AWAY_S, CALLS, STILL_S
from supervisor.shell.web.snapshot import INCIDENTS, Live, snapshot
from supervisor.wire import keys
from supervisor.wire.records import Account, encode
from tests.helpers.told import ToldWorld

CLOCK_AT = 1_700_000_000.0


def world(**about: Any) -> ToldWorld:
    made = ToldWorld(**{"groups": 3, "spares": 1, "ranks": 2, **about})
    made.lead()
    made.bring_up()
    made.train(5)
    return made


def look(w: ToldWorld, **live: Any) -> dict[str, Any]:
    """The snapshot, as a browser gets it."""
    w.tell()
    return seen(w, **live)


def seen(w: ToldWorld, **live: Any) -> dict[str, Any]:
    """The same of what the store has."""
    mirror = Mirror(w.store.list(keys.PREFIX))
    record = observe.runs(mirror)["run"]
    known = {"now": CLOCK_AT + w.now, "clock_at": {"run": CLOCK_AT}, "clocks": {"run": w.now}, **live}
    found = snapshot(mirror, record, Live(**known))
    assert None not in list(_values(found)), "a null would be read as a removal"
    sent: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return sent


def _values(value: Any) -> Any:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    yield value
    for one in inner:
        yield from _values(one)


def applied(target: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Applies a change as the browser does."""
    found = dict(target)
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            before = found.get(key)
            found[key] = applied(before if isinstance(before, Mapping) else {}, value)
        else:
            found[key] = value
    return found


def words(found: dict[str, Any], group: int) -> list[str]:
    return [found["letters"][letter] for letter in found["groups"][str(group)]["ranks"]]


def test_a_healthy_run() -> None:
    w = world()
    found = look(w)
    assert found["headline"] == {"level": "good", "text": "Training: all 3 groups step."}
    assert found["get_up"] == {"level": "no", "word": "No one needs to act.", "why": []}
    assert [words(found, g) for g in range(3)] == [["healthy", "healthy"]] * 3
    numbers = found["numbers"]
    assert (numbers["step"], numbers["quorum"], numbers["groups"], numbers["leader"]) == (5, 3, 3, "pid 41 on host")
    assert numbers["loss"] == pytest.approx(w.loss(5), abs=1e-4)
    assert found["spares"] == ["n4"]
    assert found["nodes_by_state"] == {"alive": 5, "silent": 0, "cordoned": 0, "leaving": 0, "spare": 1}
    assert found["nodes"]["n4"]["does"] == "spare"
    assert found["nodes"]["host"]["does"] == "lighthouse"
    assert [(b["what"], b["left"], b["of"]) for b in found["budgets"]] == [("replace", 4, 4), ("reallocate", 3, 3)]
    assert (found["incidents"], found["notes"]) == ({}, [])


def test_a_crash_is_told_from_its_first_sign_to_its_end() -> None:
    w = world()
    w.crash(1, rank=1)
    seen = look(w)
    assert words(seen, 1) == ["healthy", "dead"]
    assert seen["groups"]["1"]["why"] == "rank 1 ended (signal 11)"
    w.round(0.5)
    acted = look(w)
    assert acted["headline"]["level"] == "care"
    assert acted["headline"]["text"].startswith("Training on 2 of 3 groups: group 1 ")
    assert acted["get_up"]["level"] == "no"
    incident = acted["incidents"]["i1"]
    assert (incident["open"], incident["kind"], incident["group"], incident["rank"]) == (True, "crash", 1, 1)
    assert incident["did"] == "Decided: rung 1 (restart); it is under way."
    assert incident["why"]
    assert "signal 11" in incident["seen"][0]
    assert incident["opened"] == pytest.approx(CLOCK_AT + w.incident.opened, abs=0.1)
    assert acted["groups"]["1"]["incident"] == "i1"
    w.recover(1, step=5)
    over = look(w)
    assert over["headline"]["text"] == "Training: all 3 groups step."
    assert over["incidents"]["i1"]["state"] == "recovered"
    assert over["incidents"]["i1"]["did"].startswith("What was done: rung 1 (restart). The group's processes were")
    assert over["lost_s"] == pytest.approx(over["incidents"]["i1"]["recovered_s"], abs=0.1)
    assert over["incidents"]["i1"]["generations"] == [1, 2]
    assert {"what": "restart", "group": "1", "left": 2, "of": 3} in over["budgets"]


def test_a_group_that_is_left_out_says_why_and_can_wait() -> None:
    w = world()
    for number in range(4):  # it had trained before the first
        w.fail(2, 1, "ValueError: no shard 7", step=0)
        w.round(61.0)
        if number < 3:
            w.start_again(2)
    w.admit(2)
    w.round(1.0)
    found = look(w)
    assert words(found, 2) == ["dead", "dead"]
    assert "the same way before its first commit 3 times in a row" in found["groups"]["2"]["why"]
    assert found["headline"]["text"].startswith("Training on 2 of 3 groups: group 2 ")
    assert found["get_up"]["level"] == "soon"
    assert any("supervisor restart 2 tries it once more" in why for why in found["get_up"]["why"])
    w.grant(5, "refused", "no nodes")
    assert look(w)["get_up"]["level"] == "soon", "it is no group that needs a node"
    w.control = ControlView(paused=True)
    assert look(w)["get_up"]["level"] == "soon", "nothing would be done about it in any case"


def test_a_lost_node_is_cordoned_and_its_group_moves() -> None:
    w = world()
    node = w.group(2).first_node
    w.hear(2, "silent")
    w.lapse(node)
    found = look(w)
    assert words(found, 2) == ["dead", "dead"]
    assert "known to have ended, or be fenced" in found["groups"]["2"]["why"]
    w.round()
    w.recover(2, step=6)
    after = look(w)
    assert after["groups"]["2"]["node"] == "n4"
    assert after["nodes"][node]["wrong"][0] == "silent: its agent's lease has expired"
    assert any(said.startswith("cordoned: ") for said in after["nodes"][node]["wrong"])
    assert next(iter(after["nodes"])) == node, "what is wrong comes first"
    assert after["get_up"]["level"] == "soon"
    assert any("no spare is left" in why for why in after["get_up"]["why"])
    (barred,) = [why for why in after["get_up"]["why"] if why.startswith(f"cordoned {node}: ")]
    assert barred.endswith(f"(once repaired: `supervisor uncordon {node}`)"), "it was lost just now"


def test_a_node_that_is_silent_while_its_group_is_heard_is_unknown() -> None:
    w = world()
    w.lapse(w.group(0).first_node)
    w.round()
    found = look(w)
    assert words(found, 0) == ["unknown", "unknown"]
    assert "still hears group 0" in found["groups"]["0"]["why"]


def test_a_group_in_the_debugger_and_those_that_wait_for_it() -> None:
    w = world()
    w.report(1, 0, commits=1, step=5, debugging=True)
    w.hear(1, "silent")
    found = look(w)
    assert words(found, 1) == ["debugged", "healthy"]
    assert found["groups"]["1"]["why"] == "a person has rank 0 in the debugger"
    assert "group 1 debugged" in found["headline"]["text"]
    for group in (0, 2):
        for rank in (0, 1):
            w.report(group, rank, commits=1, step=5, phase="waiting")
    found = look(w)
    assert words(found, 0) == ["waiting", "waiting"]
    assert found["headline"] == {
        "level": "care",
        "text": "Waiting for a person in the debugger: group 1 debugged; groups 0, 2 waiting.",
    }


def test_hung_and_slow_ranks() -> None:
    w = world()
    w.report(0, 1, commits=1, step=5, stuck=StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0))
    found = look(w)
    assert words(found, 0) == ["healthy", "hung"]
    assert found["groups"]["0"]["why"] == "rank 1 exceeds the 30 s allowed for its step, in data"
    w = world()
    for group, compute_s in enumerate((0.4, 0.9, 0.4)):
        w.report(group, 0, commits=1, step=5, compute_s=compute_s)
    found = look(w)
    assert words(found, 1) == ["slow", "healthy"]
    assert found["headline"] == {"level": "care", "text": "Training: all 3 groups step (group 1 slow)."}
    assert any("group 1 is slow" in note for note in found["notes"])


def unsaved(w: ToldWorld) -> dict[str, Any]:
    """Makes all groups train, while their checkpoints fail."""
    w.save(0, 50)
    w.round(0.1)
    why = "checkpoint of step 200 failed: No space left on device (0 bytes left in /runs/run/checkpoints)"
    for group in range(3):
        w.commit(group, step=201, save_failed=why if group == 0 else "")
    return look(w)


def test_steps_that_no_checkpoint_holds() -> None:
    w = world()
    found = unsaved(w)
    text = "Training: all 3 groups step, but there is no checkpoint since step 50."
    assert found["headline"] == {"level": "care", "text": text}
    assert found["get_up"]["level"] == "soon"
    (why,) = found["get_up"]["why"]
    assert why.startswith(
        "no checkpoint since step 50, and one is due every 50 steps: more than 150 steps are lost if all"
    )
    assert "says: checkpoint of step 200 failed: No space left on device" in why
    assert any(why.startswith(note) for note in found["notes"])
    w.save(0, 200)
    w.round(0.1)
    assert look(w)["headline"] == {"level": "good", "text": "Training: all 3 groups step."}


def test_a_run_that_starts_says_so() -> None:
    w = ToldWorld(groups=2, ranks=1)
    w.lead()
    w.host()
    w.round()
    found = look(w)
    assert found["headline"]["text"].startswith("Starting: no group has committed a step yet")
    assert words(found, 0) == ["waiting"]
    w.start_up()
    assert words(look(w), 0) == ["starting"]


def test_a_halted_run_needs_a_person() -> None:
    w = world()
    for group in range(3):
        w.fail(group, error="ValueError: a bad batch")
    for _ in range(5):
        w.round(1.0)
    assert w.memory.phase == "halted"
    found = look(w)
    assert found["headline"]["level"] == "bad"
    assert found["get_up"]["level"] == "now"
    assert "ValueError: a bad batch" in found["get_up"]["why"][0]
    assert 'supervisor resume run --because "..."' in found["get_up"]["why"][0]
    assert not found["numbers"]["over"], "whether there is a checkpoint is asked before it is resumed"
    assert words(found, 0) == ["ended", "ended"]


def test_a_pause_needs_a_person_only_once_something_has_failed() -> None:
    w = world()
    w.control = ControlView(paused=True)
    w.round(0.1)
    found = look(w)
    assert found["set"] == ["paused: nothing is done"]
    assert found["get_up"]["level"] == "soon"
    w.crash(0)
    w.round(0.1)
    found = look(w)
    assert found["get_up"]["level"] == "now"
    assert "nothing is done about it until `supervisor resume run`" in found["get_up"]["why"][0]
    assert found["incidents"]["i1"]["did"] == "Nothing was done yet: nothing was decided."


def test_where_the_policy_only_observes_nobody_is_called() -> None:
    w = world(mode="observe")
    w.crash(0)
    w.round(0.1)
    found = look(w)
    assert found["set"] == ["observe mode: decisions are recorded, and nothing is done"]
    assert found["incidents"]["i1"]["shadow"]
    assert found["get_up"]["level"] == "soon"
    assert "is only observed" in found["get_up"]["why"][0]
    assert "`supervisor restart 0 --run run`" in found["get_up"]["why"][0]


def test_the_breaker() -> None:
    found = broken(world())
    assert found["set"] == ["breaker holds"]
    assert any(why.startswith("the breaker holds") for why in found["get_up"]["why"])


def test_no_leader() -> None:
    w = world()
    w.store.commit({}, [keys.LEADER])
    found = look(w)
    assert found["get_up"]["level"] == "now", "nobody knows for how long"
    assert found["get_up"]["why"][0].startswith("no supervisor leads")
    found = look(w, leaderless_s=4.0)
    assert found["get_up"]["level"] == "no"
    assert found["get_up"]["word"].startswith("No one needs to act yet: no supervisor leads (another takes over ")


def test_while_its_nodes_are_given_back_it_has_finished() -> None:
    w = world()
    for group in range(3):
        for rank in range(2):
            w.fail(group, code=0, rank=rank)
    assert set(w.verbs()) == {"release"}
    assert w.memory.phase == "running", "the engine has not taken them yet"
    found = look(w)
    assert found["headline"] == {"level": "good", "text": "Finished: all steps are committed."}
    assert found["get_up"] == {"level": "no", "word": "No one needs to act.", "why": []}


def test_no_step() -> None:
    w = world()
    still = look(w, still_s=75.0)
    assert still["headline"] == {"level": "bad", "text": "No new step for more than 75 s, though 3 groups run."}
    assert still["get_up"]["level"] == "no"
    assert "no step comes (a person is called after 15 min without one)" in still["get_up"]["word"]
    assert look(w, still_s=10.0)["headline"]["level"] == "good", "steps may take that long"
    called = look(w, still_s=STILL_S)["get_up"]
    assert called["level"] == "now"
    assert called["why"][0].startswith("no step for more than 15 min: `supervisor status --run run` shows")


def blind(w: ToldWorld) -> dict[str, Any]:
    """Cuts etcd off: Prometheus hears no supervisor, or the page no watch."""
    return look(w, store_since=CLOCK_AT + w.now - AWAY_S - 1)


def without_a_step(w: ToldWorld) -> dict[str, Any]:
    return look(w, still_s=STILL_S)


def no_group_left(w: ToldWorld) -> dict[str, Any]:
    """Makes every group hang, through the fault of none."""
    for group in range(3):
        w.report(group, 0, commits=1, step=5, stuck=StuckView(activity="quorum", activity_s=931.0, bound_s=30.0))
    assert look(w)["headline"]["text"].startswith("Not training: no group steps")
    return without_a_step(w)


def waits_for_nodes(w: ToldWorld) -> dict[str, Any]:
    """Loses all nodes; an allocation is only pending."""
    for group in w.memory.groups.values():
        w.hear(group.group, "silent")
        w.nodes[group.first_node] = replace(w.nodes[group.first_node], registered=False)
    w.round()
    w.round(20.0)
    return without_a_step(w)


def halts(w: ToldWorld) -> dict[str, Any]:
    for group in range(3):
        w.fail(group, error="ValueError: a bad batch")
    for _ in range(5):
        w.round(1.0)
    return look(w)


def leaderless(w: ToldWorld) -> dict[str, Any]:
    w.store.commit({}, [keys.LEADER])
    return look(w, leaderless_s=AWAY_S + 1)


def mute(w: ToldWorld) -> dict[str, Any]:
    """Silences the lighthouse's host; there is no other."""
    w.mute()
    w.nodes["host"] = replace(w.nodes["host"], registered=False)
    w.round(1.0)
    assert look(w)["numbers"]["lighthouse"].startswith(("mute", "closing"))
    assert look(w, unlit_s=5.0)["get_up"]["level"] == "no"
    assert "no lighthouse is open" in look(w, unlit_s=5.0)["get_up"]["word"]
    return look(w, unlit_s=AWAY_S + 1)


def unreadable(w: ToldWorld) -> dict[str, Any]:
    w.tell()
    w.store.put(keys.memory("run", "run"), b"{")
    return seen(w)


def full(w: ToldWorld) -> dict[str, Any]:
    return look(w, alarms=(NOSPACE_MEND,))


def broken(w: ToldWorld) -> dict[str, Any]:
    w = world(groups=6, spares=1)
    for number in range(1, 7):
        w.hear(number - 1, "silent")
        w.nodes[f"n{number}"] = replace(w.nodes[f"n{number}"], registered=False)
    w.round()
    w.round(2.0)
    return look(w)


FAULTS = {
    "RunNotProgressing": (without_a_step, no_group_left, waits_for_nodes, halts),
    "RunUndecided": (unreadable,),
    "NoLeader": (leaderless,),
    "StoreAway": (blind,),
    "StoreOutOfSpace": (full,),
    "LighthouseAway": (mute,),
    "SupervisorBlind": (blind,),
    "BreakerOpen": (broken,),
}
"""Faults behind each alert that calls a person at night."""


def test_every_alert_that_calls_at_night_has_its_fault() -> None:
    assert set(FAULTS) == {name for name, level in CALLS.items() if level == "now"}


@pytest.mark.parametrize(("name", "fault"), [(n, f) for n, faults in FAULTS.items() for f in faults])
def test_while_an_alert_calls_the_page_does_too(name: str, fault: Callable[[ToldWorld], dict[str, Any]]) -> None:
    up = fault(world())["get_up"]
    assert (up["level"], up["word"]) == ("now", "A person must act now:"), name
    assert up["why"]


def test_what_an_alert_leaves_for_the_morning_the_page_does_too() -> None:
    w = world(budget={"restart": 2})
    w.crash(1)
    w.round(0.5)
    w.recover(1, step=5)
    up = look(w)["get_up"]
    assert up["level"] == "soon", "BudgetNearlySpent"
    assert "a budget is nearly spent (restart of group 1: 1 of 2 left)" in up["why"][0]
    w = world()
    for signal in (11, 9):
        w.crash(1, signal=signal)
        w.round(100.0)
        w.recover(1, step=w.step)
    up = look(w)["get_up"]
    assert up["level"] == "soon", "FlappingNode"
    assert any(why.startswith("node n2 had 2 incidents within a day") for why in up["why"]), up["why"]


def test_what_was_long_ago_is_told_no_more_though_nothing_has_changed_since() -> None:
    """A healthy run's memory, and the clock in it, are seldom written."""
    w = world(budget={"restart": 2})
    for signal in (11, 9):
        w.crash(1, signal=signal)
        w.round(100.0)
        w.recover(1, step=w.step)
    assert {"what": "restart", "group": "1", "left": 0, "of": 2} in look(w)["budgets"]
    written = w.memory.clock
    for _ in range(120):
        w.round(60.0)
    assert w.memory.clock < written + 3600.0, "else it shows nothing"
    found = look(w)
    assert [b["what"] for b in found["budgets"]] == ["replace", "reallocate"]
    assert [why.split(" incidents")[0] for why in found["get_up"]["why"]] == ["node n2 had 2"]
    for _ in range(24):
        w.round(3600.0)
    assert w.memory.clock < written + 3600.0
    assert look(w)["get_up"]["level"] == "no"


def test_restarts_that_a_person_asked_for_are_no_fault_of_a_node() -> None:
    w = world()
    for number in (1, 2):
        w.control = replace(w.control, restarts={1: number})
        w.round(100.0)
        w.recover(1, step=w.step)
    assert [i.kind for i in w.incidents.values() if i.state == "recovered"] == [Kind.REQUESTED] * 2
    assert look(w)["get_up"]["level"] == "no"


def test_a_run_that_asked_for_no_spare_lacks_none() -> None:
    assert look(world(spares=0))["get_up"]["level"] == "no"


def test_what_is_to_be_done_is_a_command() -> None:
    for faults in FAULTS.values():
        for fault in faults:
            for why in fault(world())["get_up"]["why"]:
                assert re.search(r"`?(supervisor|etcdctl) ", why), why


def test_when_things_happened_is_told_by_the_clock_of_the_term_in_which_they_did() -> None:
    """The run clock goes back to the newest memory when another leads, and stands still while there is no leader."""
    w = world()
    w.crash(1)
    w.round(0.5)
    w.recover(1)
    first = w.incidents["i1"]
    assert first.recovered is not None
    terms = ((0.0, 1000.0), (w.now, 1035.0))
    w.store.put(keys.account("run"), encode(Account(clocks=terms)))
    w.crash(0)
    w.round(0.5)
    seen = look(w, clock_at={"run": 2000.0})["incidents"]
    assert seen["i1"]["opened"] == pytest.approx(first.opened + 1000.0, abs=0.06)
    assert seen["i1"]["recovered"] == pytest.approx(first.recovered + 1000.0, abs=0.06)
    assert seen["i2"]["opened"] == pytest.approx(w.incidents["i2"].opened + 1035.0, abs=0.06)


def test_what_outlasted_a_leader_cost_the_time_without_one_too() -> None:
    """The run clock stood still in that time, so the worst incidents looked like the best."""
    w = world()
    w.crash(1)
    w.round(0.5)
    opened = w.incidents["i1"].opened
    w.recover(1)
    first = w.incidents["i1"]
    assert first.recovered is not None
    before = look(w)
    stood = ((opened - 1.0, 500.0), (opened, 60.0), (first.recovered, 500.0))
    w.store.put(keys.account("run"), encode(Account(stood=stood)))
    after = look(w)
    seen = after["incidents"]["i1"]
    assert seen["decided_s"] == 0.0, "decided as it was seen, before the clock stood still"
    assert seen["recovered_s"] == pytest.approx(first.recovered - opened + 60.0, abs=0.01)
    assert after["lost_s"] == pytest.approx(before["lost_s"] + 60.0, abs=0.11)


def test_what_is_open_since_before_another_led_costs_all_of_it_so_far() -> None:
    w = world()
    w.crash(1)
    w.round(0.5)
    before = look(w)["lost_s"]
    w.store.put(keys.account("run"), encode(Account(stood=((w.incidents["i1"].opened, 60.0),))))
    w.round(0.5)
    assert look(w)["lost_s"] == pytest.approx(before + 60.5, abs=0.11)


def test_without_a_clock_nothing_is_told_of_when_but_all_of_how_long() -> None:
    w = world()
    w.crash(1)
    w.round(0.5)
    w.recover(1)
    incident = look(w, clock_at={})["incidents"]["i1"]
    assert "opened" not in incident
    assert incident["recovered_s"] > 0


def test_a_loss_that_is_no_number_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world()
    monkeypatch.setattr(w, "loss", lambda step: math.nan)
    assert look(w)["numbers"]["loss"] == "nan"


def test_a_memory_that_cannot_be_read_is_the_whole_news() -> None:
    w = world()
    w.store.commit({keys.memory("run", "run"): b"{"})
    mirror = Mirror(w.store.list(keys.PREFIX))
    found = snapshot(mirror, observe.runs(mirror)["run"], Live(now=1.0))
    assert found["headline"]["level"] == "bad"
    assert "cannot be read" in found["get_up"]["why"][0]
    assert "groups" not in found


@pytest.mark.parametrize("harm", ["gone", "torn", "another"])
def test_whatever_record_is_gone_or_torn_the_page_goes_on(harm: str) -> None:
    w = world()
    w.crash(1)
    w.round(0.5)
    w.hear(2, "silent")
    w.lapse(w.group(2).first_node)
    w.round()
    w.tell()
    whole = w.store.list(keys.PREFIX)
    tried = 0
    for item in whole.items:
        if item.key == keys.spec("run"):
            continue  # then there is no run
        items = tuple(i for i in whole.items if i.key != item.key)
        if harm != "gone":
            value = b"{" if harm == "torn" else b'{"$kind":"Other","$version":1}'
            items = (*items, replace(item, value=value))
        mirror = Mirror(replace(whole, items=items))
        found = snapshot(mirror, observe.runs(mirror)["run"], Live(now=1.0))
        assert found["headline"]["text"], item.key
        if harm != "gone" and "/memory/" in item.key:
            assert found["get_up"]["level"] == "now", item.key
        json.dumps(found, allow_nan=False)
        tried += 1
    assert tried > 20


def test_where_the_time_went() -> None:
    w = world()
    assert look(w)["time"] == {}, "no leader has told it yet"
    seconds = {"start": 30.0, "productive": 90.0, "heal": 0.0, "lost_step": 80.0}
    w.store.put(keys.account("run"), encode(Account(step=5, seconds=seconds)))
    told = look(w)["time"]
    shares = {"ettr": 0.45, "group_s": 200.0, "lost": [["lost_step", 0.4], ["start", 0.15], ["heal", 0.0]]}
    assert told == shares | {"ran_s": 0.0}, "an older leader did not say how long the run has lasted"
    account = Account(step=5, seconds=seconds, ran_s=66.67, began_unix_s=10.0, ended_unix_s=77.0)
    w.store.put(keys.account("run"), encode(account))
    assert look(w)["time"] == shares | {"ran_s": 66.7, "began": 10.0, "ended": 77.0}


def test_no_run() -> None:
    found = snapshot(Mirror(ToldWorld().store.list(keys.PREFIX)), None, Live(now=1.0))
    assert (found["run"], found["runs"]) == ("", {})


def test_of_many_incidents_the_newest_are_told_and_all_are_counted() -> None:
    w = world(budget={"restart": 1000}, backoff_first_s=0.0)
    for _ in range(INCIDENTS + 3):
        w.crash(1)
        w.round(200.0)
        w.recover(1, step=w.step)
    w.crash(0)
    w.round(0.1)
    found = look(w)
    assert found["incidents_all"] == INCIDENTS + 4
    assert len(found["incidents"]) == INCIDENTS + 1
    assert "i1" not in found["incidents"]
    assert found["incidents"][f"i{INCIDENTS + 4}"]["open"]


def test_a_patch_makes_the_new_of_the_old() -> None:
    w = world()
    before = look(w)
    w.crash(1, rank=0)
    w.round(0.5)
    after = look(w)
    change = merge.patch(before, after)
    assert applied(before, change) == after
    assert "nodes" not in change or "n1" not in change["nodes"]
    assert set(change["groups"]) == {"1"}
    w.recover(1, step=5)
    later = look(w)
    assert applied(after, merge.patch(after, later)) == later


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"b": 2}, {"a": None, "b": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"y": None}}),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, {"a": [1, 2, 3]}),
        ({"a": 1}, {"a": {}}, {"a": {}}),
        ({"a": {"x": 1}}, {"a": 1}, {"a": 1}),
        ({}, {"a": {}}, {"a": {}}),
    ],
)
def test_patches(old: dict[str, Any], new: dict[str, Any], change: dict[str, Any]) -> None:
    assert merge.patch(old, new) == change
    assert applied(old, change) == new
