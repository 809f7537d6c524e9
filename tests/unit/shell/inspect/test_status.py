"""The output of `status` and `nodes` about nodes that are waited for, refused, or leaving."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory, Resumed
from supervisor.core.model.observed import Grant, StuckView
from supervisor.core.model.seats import Seat
from supervisor.core.report import words
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, render, status
from supervisor.shell.inspect.status import RunStatus
from supervisor.shell.metrics import clock_skew
from supervisor.shell.processes import pid_namespace, start_ticks
from supervisor.wire import keys
from supervisor.wire.records import (
    Account,
    Fact,
    HealFailed,
    Healing,
    Health,
    LeaderRecord,
    NodeCheck,
    NodeObserved,
    Progress,
    RunRecord,
    TrainerObserved,
    encode,
)
from tests.helpers.reasons import text
from tests.helpers.told import ToldWorld
from tests.unit.shell.records import INCIDENT, MEMORY, SPEC, mirror_of, registration, run_values

WAITING = replace(
    MEMORY,
    clock=100.0,
    groups={**MEMORY.groups, 1: GroupMemory(group=1, generation=2, phase="placing")},
    allocations={
        "run-a3": AllocationMemory(key="run-a3", state="wanted", since=35.0, reason=text("incident i1: node lost"))
    },
    incidents={},
)

NOW = 1_000_000.0


def seen(memory: Memory, grant: Grant | None = None, **values: bytes) -> RunStatus:
    told = {keys.grant("run", grant.key): encode(grant)} if grant is not None else {}
    mirror = mirror_of({**run_values(memory), **told, **values})
    return status.run_status(mirror, RunRecord(spec=SPEC, run_dir="/runs/run", launched_unix_s=1.0))


def text(what: RenderableType) -> str:
    out = StringIO()
    Console(file=out, width=300).print(what)
    return out.getvalue()


def test_who_waits_is_told_in_the_engines_own_words() -> None:
    found = seen(WAITING, Grant(key="run-a3", state="pending", reason="Resources"))
    assert found.waiting == (
        "group 1 without a node: waiting for the engine",
        "allocation run-a3 pending: Resources; requested at least 65 s ago (incident i1: node lost)",
    )
    assert "run-a3 pending: Resources" in text(render.run(found, NOW))


def test_a_granted_node_that_is_not_ready_is_waited_for() -> None:
    granted = Grant(key="run-a3", state="granted", nodes=("n9",))
    ready = "group 1 without a node: waiting for the granted nodes to be ready"
    there = registration("n9", allocation="run-a3")
    checked = {keys.check("n9"): encode(NodeCheck(node="n9", host="n9", state="pending", why="before its first rank"))}
    assert seen(WAITING, granted).waiting == (ready,)
    assert seen(WAITING, granted, **there, **checked).waiting == (ready,)
    assert seen(WAITING, granted, **there).waiting == ("group 1 without a node: not waiting for the engine",)
    assert seen(replace(WAITING, phase="new"), granted, **there).waiting == (ready,)


def test_one_that_no_engine_has_answered_yet_is_pending() -> None:
    assert "allocation run-a3 pending; requested" in seen(WAITING).waiting[1]


def test_a_late_one_says_that_the_run_goes_on() -> None:
    late = replace(WAITING, allocations={"run-a3": replace(WAITING.allocations["run-a3"], late=True)})
    found = seen(late, Grant(key="run-a3", state="pending", reason="ReqNodeNotAvail"))
    assert "allocation run-a3 late, the run goes on without it: ReqNodeNotAvail" in found.waiting[1]


def test_a_refusal_is_told() -> None:
    found = seen(WAITING, Grant(key="run-a3", state="refused", reason="invalid partition"))
    assert "allocation run-a3 refused: invalid partition; " in found.waiting[1]


def test_nothing_is_waited_for_when_all_is_granted_or_the_run_has_ended() -> None:
    assert seen(MEMORY, Grant(key="run-a1", state="granted", nodes=("n1",))).waiting == ()
    assert seen(replace(WAITING, phase="halted")).waiting == ()


def test_a_group_that_is_left_out_is_told_with_what_a_person_can_do() -> None:
    group = replace(WAITING.groups[1], left_out="it ended in the same way", incident="i1")
    found = seen(replace(WAITING, groups={**WAITING.groups, 1: group}, allocations={}))
    said = "group 1 is left out: it ended in the same way; supervisor restart 1 tries it once more (incident i1)"
    assert found.waiting == (said,), "it waits for no node"
    assert said in text(render.run(found, NOW))


def test_what_is_wrong_and_left_as_it_is_is_told() -> None:
    """The problems are slow groups, a hang that no group causes, and what the breaker holds."""
    groups = {g: GroupMemory(group=g, generation=1, seats=(Seat(f"n{g}"),), phase="running") for g in range(3)}
    memory = replace(MEMORY, groups=groups, allocations={}, incidents={}, breaker_since=3.0)

    def trainers(**about: Any) -> dict[str, bytes]:
        found = {}
        for g, compute_s in enumerate((0.4, 0.9, 0.4)):
            known = {"run": "run", "group": g, "generation": 1, "rank": 0, "pid": 1, "state": "running"}
            trainer = TrainerObserved(**known, compute_s=compute_s, **about)  # type: ignore[arg-type]
            found[keys.observed(f"n{g}")] = encode(NodeObserved(node=f"n{g}", sequence=1, trainers=(trainer,)))
            found |= registration(f"n{g}")
        return found

    slow, breaker = seen(memory, **trainers()).waiting
    assert slow == "group 1 is slow: rank 0 on node n1 computes about 2 times as long as the others"
    assert breaker.startswith("breaker: 1 of 3 nodes lost")
    stuck = StuckView(activity="data", activity_s=31.0, bound_s=30.0, usual_s=1.0)
    found = seen(memory, **trainers(stuck=stuck))
    assert found.waiting[1] == "every group hangs, in data: it is a cause that they share, so none is ended"
    assert "is slow" in text(render.run(found, NOW))
    assert seen(replace(memory, phase="halted"), **trainers(stuck=stuck)).waiting == ()


def test_a_leaving_node_is_no_spare_and_a_cordon_is_of_its_host() -> None:
    told = encode(NodeObserved(node="n2", sequence=1, leaving="time limit"))
    nodes = {**registration("n2", allocation="run-a1"), keys.observed("n2"): told}
    grant = Grant(key="run-a1", state="granted", nodes=("n2",))
    found = seen(replace(MEMORY, handover_at_step=90), grant, **nodes)
    assert (found.spares, found.leaving, found.handover_at_step) == ((), {"n2": "time limit"}, 90)
    assert "all groups end after step 90" in text(render.run(found, NOW))
    assert seen(MEMORY, grant, **registration("n2", allocation="run-a1")).spares == ("n2",)
    grant = replace(grant, nodes=("n9.2",))
    assert seen(MEMORY, grant, **registration("n9.2", allocation="run-a1")).spares == ("n9.2",)
    assert seen(MEMORY, grant, **registration("n9.2", allocation="run-a1", host="n9")).spares == (), "n9 is cordoned"


def test_nodes_are_told_with_their_hosts() -> None:
    told = encode(NodeObserved(node="big7.2", sequence=1, leaving="time limit"))
    named = {**registration("big7.2", host="big7"), keys.observed("big7.2"): told}
    two, one = status.node_status(mirror_of({**named, **registration("n1")}))
    assert (one.host, one.leaving, two.host, two.leaving) == ("n1", "", "big7", "time limit")
    shown = text(render.nodes([one, two]))
    assert "big7.2 on big7" in shown
    assert "leaving: time limit" in shown


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (0.0, ""), (-15.0, ""), (59.0, ""), (-59.0, ""),
        (-5400.0, "90 min behind"), (61.0, "1 min ahead of"), (3 * 3600.0, "3 h ahead of"), (-40 * 86400.0, "40 days behind"),
    ],
)  # fmt: skip
def test_a_clock_that_is_off_by_more_than_a_reports_age_is_told_of_a_node_that_lives(by: float, said: str) -> None:
    wanted = (f"clock_off: its clock is {said} the one here",) if said else ()
    about = {"sequence": 1, "warm": "off", "disk_free_bytes": 0, "memory_available_bytes": 0, "load_1m": 0.0}
    told = {keys.health("n1"): encode(Health(node="n1", unix_s=time.time() + by, **about))}  # type: ignore[arg-type]
    (one,) = status.node_status(mirror_of({**registration("n1"), **told}))
    assert one.facts == wanted
    assert status.node_status(mirror_of(told))[0].facts == (), "what a node said last tells nothing of its clock today"
    older = encode(Health(node="n1", **about))  # type: ignore[arg-type]
    (one,) = status.node_status(mirror_of({**registration("n1"), keys.health("n1"): older}))
    assert one.facts == ()


def test_disks_that_cannot_be_used_are_told_and_such_a_node_is_no_spare() -> None:
    full = Fact(kind="disk_full", subject="/home", evidence="/home: No space left on device")

    def health(node: str, *facts: Fact) -> dict[str, bytes]:
        known = {"sequence": 1, "warm": "off", "disk_free_bytes": 0, "memory_available_bytes": 0, "load_1m": 0.0}
        return {keys.health(node): encode(Health(node=node, facts=facts, **known))}  # type: ignore[arg-type]

    groups = {0: GroupMemory(group=0, generation=1, seats=(Seat("n1"),), phase="running")}
    memory = replace(MEMORY, groups=groups, incidents={}, cordons={})
    grant = Grant(key="run-a1", state="granted", nodes=("n2",))
    nodes = {**registration("n1"), **registration("n2", allocation="run-a1")}
    found = seen(memory, grant, **nodes, **health("n2", full))
    assert found.spares == ()
    said = "node n2 is given no group while there is another: /home: No space left on device"
    assert found.waiting == (said,)
    found = seen(memory, grant, **nodes, **health("n1", full))
    assert found.spares == ("n2",)
    assert found.waiting == (
        "group 0: its node n1 says: /home: No space left on device: the group may go on, but its steps, checkpoints and logs "
        "may not be reported",
    )
    assert "its node n1 says: /home: No space left" in text(render.run(found, NOW))
    assert seen(memory, grant, **nodes, **health("n1"), **health("n2")).waiting == ()


def test_steps_that_no_checkpoint_holds_are_told_with_what_the_writer_says_of_it() -> None:
    groups = {0: GroupMemory(group=0, generation=1, seats=(Seat("n1"),), phase="running")}
    memory = replace(MEMORY, groups=groups, allocations={}, incidents={}, cordons={})
    about: dict[str, Any] = {"run": "run", "group": 0, "generation": 1, "rank": 0, "pid": 1}

    def at(step: int, error: str) -> tuple[str, ...]:
        progress = Progress(**about, sequence=1, phase="step", step=step, commits=step, error=error)
        trainer = TrainerObserved(**about, state="running", progress=progress)
        node = NodeObserved(node="n1", sequence=1, trainers=(trainer,))
        found = seen(memory, **registration("n1"), **{keys.observed("n1"): encode(node)})
        assert "".join(found.waiting) in text(render.run(found, NOW))
        return found.waiting

    full = "checkpoint of step 200 failed: No space left on device (0 bytes left in /runs/run/checkpoints)"
    assert at(200, full) == ()
    (said,) = at(201, full)
    assert said.startswith(
        "no checkpoint since step 50, and one is due every 50 steps: more than 150 steps are lost if all"
    )
    assert said.endswith(f"; rank 0 of group 0 says: {full}")


def test_a_heal_that_fails_again_and_again_is_told_with_its_source_and_reason() -> None:
    groups = {0: GroupMemory(group=0, generation=1, seats=(Seat("n1"),), phase="starting")}
    memory = replace(MEMORY, groups=groups, allocations={}, incidents={}, cordons={})
    about: dict[str, Any] = {"run": "run", "group": 0, "generation": 1, "rank": 0, "pid": 1}
    failed = HealFailed(source="10.0.0.2:43", error="URLError: [Errno 111] Connection refused", times=4, for_s=41.0)
    progress = Progress(**about, sequence=1, phase="step", heal_failed=failed)
    trainer = TrainerObserved(**about, state="running", progress=progress)
    node = NodeObserved(node="n1", sequence=1, trainers=(trainer,))
    found = seen(memory, **registration("n1"), **{keys.observed("n1"): encode(node)})
    (said,) = found.waiting
    assert said == f"group 0: rank 0: its heal from 10.0.0.2:43 has failed 4 times in 41 s: {failed.error}"
    assert said in text(render.run(found, NOW)), "no word of it is taken for markup"


def test_a_heal_in_progress_has_its_source_its_bytes_and_its_rate() -> None:
    groups = {0: GroupMemory(group=0, generation=1, seats=(Seat("n1"),), phase="starting")}
    memory = replace(MEMORY, groups=groups, allocations={}, incidents={}, cordons={})
    about: dict[str, Any] = {"run": "run", "group": 0, "generation": 1, "rank": 0, "pid": 1}
    healing = Healing(source="10.0.0.2:43\x1b[31m", bytes=4_200_000_000, for_s=2.1)

    def lines(**fields: Any) -> str:
        progress = Progress(**about, sequence=1, phase="step", healing=healing)
        trainer = TrainerObserved(**about, progress=progress, **fields)
        node = NodeObserved(node="n1", sequence=1, trainers=(trainer,))
        return text(render.run(seen(memory, **registration("n1"), **{keys.observed("n1"): encode(node)}), NOW))

    shown = lines(state="running")
    assert "group 0 heals from 10.0.0.2:43" in shown
    assert ": 4.20 GB in 2.1 s (2.00 GB/s)" in shown
    assert "\x1b" not in shown
    assert "heals from" not in lines(state="exited")


def test_where_the_page_is() -> None:
    page = "http://127.0.0.1:8000/"
    found = seen(MEMORY, **{keys.LEADER: encode(LeaderRecord(host="h", pid=3, home="", page=page))})
    assert found.page == page
    assert f"page {page}" in text(render.run(found, NOW))
    assert "page" not in text(render.run(seen(MEMORY), NOW))


def test_a_leader_of_this_machine_that_has_ended_leads_no_more() -> None:
    """Its record is there until its lease lapses."""
    page = "http://127.0.0.1:8000/"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = {"host": socket.gethostname(), "pid": child.pid, "start_ticks": start_ticks(child.pid) or 0}
    record = LeaderRecord(**here, home="", page=page, pid_namespace=pid_namespace())

    def said(record: LeaderRecord) -> str:
        found = seen(MEMORY, **{keys.LEADER: encode(record)})
        return text(render.run(found, NOW)) + found.leader

    assert f"{record.host}:{child.pid}" in said(record)
    another = replace(record, start_ticks=record.start_ticks + 1)  # its pid was given again
    assert "leader none" in said(another)
    child.communicate(timeout=10)
    assert "leader none" in said(record)
    assert str(child.pid) not in said(record) + said(another)
    assert page not in said(record)
    for unseen in ({"host": "elsewhere"}, {"pid_namespace": 1}, {"pid_namespace": 0}):
        assert f":{child.pid}" in said(replace(record, **unseen)), "its end cannot be seen from here"


def test_it_says_which_checkpoint_the_run_was_started_from() -> None:
    said = "step 200 of group 0, generation 1, the newest complete one; the record in etcd had step 50"
    found = seen(replace(MEMORY, resumed=Resumed(said=said)))
    assert f"started from {said}" in text(render.run(found, NOW))
    assert "started from" not in text(render.run(seen(MEMORY), NOW))


def test_a_run_that_has_ended_says_the_last_step_that_was_committed() -> None:
    ended = replace(MEMORY, phase="stopped", incidents={})
    assert seen(ended).step == 0, "no leader has told it"
    assert seen(ended, **{keys.account("run"): encode(Account(step=117))}).step == 117


def stepped(*ago_s: float) -> dict[str, bytes]:
    """Nodes whose ranks committed their newest steps these seconds before NOW."""
    found = {}
    for n, s in enumerate(ago_s):
        about: dict[str, Any] = {"run": "run", "group": n, "generation": 1, "rank": 0, "pid": 1}
        progress = Progress(**about, sequence=1, phase="step", step=48, stepped_unix_s=NOW - s)
        trainer = TrainerObserved(**about, state="running", progress=progress)
        found[keys.observed(f"n{n}")] = encode(NodeObserved(node=f"n{n}", sequence=1, trainers=(trainer,)))
    return found


@pytest.mark.parametrize(
    ("ago_s", "said"),
    [
        ((), "step 48\n"),
        ((3.0,), "step 48, 3.0 s ago\n"),
        ((900.0, 40.0), "step 48, 40 s ago\n"),
        ((-1.0,), "step 48, 0.0 s ago\n"),
        ((-20.0,), "step 48, at 13:47:00 UTC by a node's clock that is ahead of this one\n"),
    ],
)
def test_it_says_how_long_ago_the_last_step_was(ago_s: tuple[float, ...], said: str) -> None:
    told = {keys.account("run"): encode(Account(step=48))}
    assert said in text(render.run(seen(MEMORY, **told, **stepped(*ago_s)), NOW))


def test_it_says_so_after_the_trainers_have_gone_too() -> None:
    told = {keys.account("run"): encode(Account(step=48, stepped_unix_s=NOW - 700))}
    assert "step 48, 11 min 40 s ago\n" in text(render.run(seen(MEMORY, **told), NOW))
    assert "step 48, 40 s ago\n" in text(render.run(seen(MEMORY, **told, **stepped(40.0)), NOW))


@pytest.mark.parametrize("wall_off_s", [0.0, 3600.0, -3600.0])
def test_budgets_are_of_the_runs_own_clock_whatever_the_wall_clocks(
    monkeypatch: pytest.MonkeyPatch, wall_off_s: float
) -> None:
    """A healthy run's memory is seldom written, its account twice a minute. Its leader's wall clock may be hours
    off."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    w = ToldWorld(groups=2, budget={"restart": 2})
    w.lead()
    w.bring_up()
    w.crash(1)
    w.round(0.5)
    w.recover(1)
    drawn = w.memory.clock

    def left(ran_s: float) -> int:
        offset = NOW + wall_off_s - (drawn + ran_s)  # the leader's: its wall clock as it writes, less the run clock
        w.store.put(keys.account("run"), encode(Account(clock=drawn + ran_s, clocks=((0.0, 5.0), (1.0, offset)))))
        mirror = Mirror(w.store.list(keys.PREFIX))
        return status.run_status(mirror, client.choose_run(mirror, "run")).budgets_left["restart:1"]

    assert left(0.0) == 1
    assert left(200.0) == 1, "within the window"
    assert left(7200.0) == 2
    w.store.commit({}, [keys.LEADER])
    assert left(7200.0) == 2, "whoever leads next goes on from there"


def test_a_leaders_clock_that_is_off_is_said_while_it_leads() -> None:
    leads = {keys.LEADER: encode(LeaderRecord(host="h", pid=1, home="/nowhere"))}
    told = {**leads, keys.account("run"): encode(Account(off_s=3600.0))}
    said = "clock_off: the leader's clock is 60 min ahead of those of most nodes: times of day are wrong by that, durations are not; synchronise it"
    assert said in seen(MEMORY, **told).warnings
    back = {**leads, keys.account("run"): encode(Account(off_s=-3 * 86400.0))}
    assert any("is 3 days behind those of most nodes" in word for word in seen(MEMORY, **back).warnings)
    assert not any("clock_off" in word for word in seen(MEMORY, **leads).warnings)


@pytest.mark.parametrize(
    ("ahead", "off_s"),
    [
        ((3600.0, 3601.0, 3598.0), 3600.0),
        ((3.0, 4.0, -7200.0), 0.0),
        ((-3600.0, -3600.0, 0.0), -3600.0),
        ((3600.0, 0.0), 0.0),
        ((), 0.0),
    ],
)
def test_the_leader_is_off_where_most_nodes_say_so(ahead: tuple[float, ...], off_s: float) -> None:
    told: dict[str, bytes] = {}
    for number, by in enumerate((*ahead, 9999.0)):
        name = f"m{number}"
        about = {"sequence": 1, "warm": "off", "disk_free_bytes": 0, "memory_available_bytes": 0, "load_1m": 0.0}
        told[keys.health(name)] = encode(Health(node=name, unix_s=NOW - by, **about))  # type: ignore[arg-type]
        if number < len(ahead):  # the last one is dead: its last record is no evidence
            told |= registration(name)
    assert clock_skew.leader_off_s(mirror_of(told), NOW) == off_s


def test_json_has_sentences_for_reasons() -> None:
    body = status.as_json(INCIDENT)
    assert (body["reason"], body["considered"]) == (words.say(INCIDENT.reason), list(words.said(INCIDENT.considered)))
