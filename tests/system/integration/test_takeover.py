"""Several supervisors: one leads, the others stand by. Training does not notice a leader's loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, World, toy_spec, world
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import Grant
from supervisor.wire import keys
from supervisor.wire.records import LeaderRecord, RunRecord
from tests.helpers.measure import measured
from tests.helpers.relay import Relay, relay

pytestmark = pytest.mark.etcd


@pytest.fixture
def w(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def leader(w: World) -> int:
    """The leader's pid; 0 when there is none."""
    record = w.mirror().record(keys.LEADER, LeaderRecord)
    return record.pid if record is not None else 0


def epoch(w: World) -> int:
    return w.mirror().items[keys.LEADER].create_revision


def two_supervisors(w: World) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    first = w.supervisor()
    eventually(lambda: leader(w) == first.pid, 30, "the first leads")
    return first, w.supervisor()


def trains(w: World) -> RunRecord:
    record = w.launch(toy_spec())
    eventually(w.running(record, 1, 1), 60, "both groups run")
    eventually(lambda: all(len(s.committed()) > 20 for s in w.history(record).steps), 30, "they have made steps")
    return record


def taken_over(w: World, by: subprocess.Popen[bytes], since: float, within_s: float) -> float:
    """Seconds until `by` leads; raises AssertionError if it takes longer than `within_s`."""
    eventually(lambda: leader(w) == by.pid, within_s, "the standby leads")
    return time.time() - since


def undisturbed(w: World, record: RunRecord, since: float) -> None:
    """Checks that no step was missed: the longest pause between two steps since then is what it was before, give or
    take a busy machine's hiccup."""
    eventually(lambda: time.time() - since > 2 * LEASE_S, 3 * LEASE_S)
    assert w.incidents(record) == []
    assert w.running(record, 1, 1)()
    for steps in w.history(record).steps:
        times = [line["t"] for line in steps.committed()]
        before = [b - a for a, b in pairwise(t for t in times if t < since)]
        after = [b - a for a, b in pairwise(t for t in times if t >= since)]
        assert len(after) > 5
        assert max(after) < max(LEASE_S, 3 * max(before)), (
            f"a pause of {max(after):.2f} s (median {median(before):.2f})"
        )


def journal(record: RunRecord) -> list[dict[str, Any]]:
    lines = (Path(record.run_dir) / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_leader_that_is_killed_is_followed_within_its_lease(w: World) -> None:
    first, second = two_supervisors(w)
    record = trains(w)
    before, killed = epoch(w), time.time()
    first.kill()
    took = taken_over(w, second, killed, 3 * LEASE_S)
    measured("takeover after SIGKILL", took, lease_s=LEASE_S)
    assert epoch(w) > before
    undisturbed(w, record, killed)
    # and it acts
    w.kill_trainer(record, 1)
    eventually(w.running(record, 1, 2), 30, "the new leader restarts a trainer")
    w.check(record)


@pytest.mark.long
def test_a_leader_that_is_stopped_cleanly_is_followed_at_once(w: World) -> None:
    first, second = two_supervisors(w)
    record = trains(w)
    stopped = time.time()
    first.terminate()
    took = taken_over(w, second, stopped, LEASE_S)
    assert first.wait(10) == 0
    measured("takeover after TERM", took, lease_s=LEASE_S)
    undisturbed(w, record, stopped)
    w.check(record)


@pytest.mark.long
def test_a_frozen_leaders_late_write_is_refused(w: World) -> None:
    """It is frozen between its decision and its commit; the next leader acts meanwhile; then it thaws and commits."""
    record_of_first = w.supervisor()
    eventually(w.led, 30, "the first leads")
    record = trains(w)
    record_of_first.terminate()
    record_of_first.wait(15)
    doomed = w.supervisor(failpoint="journaled:1:stop")
    eventually(lambda: leader(w) == doomed.pid, 30, "the doomed one leads")
    before = epoch(w)
    standby = w.supervisor()
    w.kill_trainer(record, 1)
    eventually(lambda: _stopped(doomed.pid), 30, "it froze before its commit")
    eventually(lambda: leader(w) == standby.pid, 30, "the standby leads")
    eventually(w.running(record, 1, 2), 30, "the standby restarts the trainer")
    os.kill(doomed.pid, signal.SIGCONT)
    failed = eventually(lambda: _not_committed(record), 30, "it tried, and was refused or got no answer")
    assert {line["epoch"] for line in failed} == {before}
    committed = [line["epoch"] for line in journal(record) if line.get("revision") is not None]
    assert committed == sorted(committed), "nothing under its epoch after the standby's"
    assert doomed.poll() is None, "it stands by again"
    assert w.running(record, 1, 2)()
    assert len(w.incidents(record)) == 1
    # it is a standby like any other
    standby.kill()
    eventually(lambda: leader(w) == doomed.pid, 30, "it leads again")
    w.check(record)


def _not_committed(record: RunRecord) -> list[dict[str, Any]]:
    """Writes that etcd refused, or did not answer in time: the connection was silent for as long as the freeze."""
    return [x for x in journal(record) if x.get("refused") or x.get("event") == "outcome_unknown"]


@pytest.mark.long
def test_a_leader_that_is_frozen_past_its_lease_and_thawed_does_nothing(w: World) -> None:
    first, second = two_supervisors(w)
    record = trains(w)
    stopped = time.time()
    with frozen(first.pid):
        took = taken_over(w, second, stopped, 4 * LEASE_S)
        measured("takeover after SIGSTOP", took, lease_s=LEASE_S)
        w.kill_trainer(record, 0)
        eventually(w.running(record, 2, 1), 30, "the standby restarts the trainer")
    second.kill()
    eventually(lambda: leader(w) == first.pid, 30, "the thawed one leads when it is its turn")
    assert w.running(record, 2, 1)()
    assert len(w.incidents(record)) == 1
    w.check(record)


@pytest.mark.long
def test_a_leader_that_is_cut_off_from_etcd_steps_down_by_its_own_clock(w: World) -> None:
    with relay(w.etcd.endpoint) as way:
        first = w.supervisor(etcd=way.endpoint)
        eventually(lambda: leader(w) == first.pid, 30, "the first leads")
        second = w.supervisor()
        record = trains(w)
        cut = time.time()
        _fall_silent(way)
        took = taken_over(w, second, cut, 4 * LEASE_S)
        measured("takeover after a cut from etcd", took, lease_s=LEASE_S)
        w.kill_trainer(record, 1)
        eventually(w.running(record, 1, 2), 30, "the new leader acts")
        way.requests.set()
        way.replies.set()
        second.kill()
        eventually(lambda: leader(w) == first.pid, 30, "the first leads again once it reaches etcd")
        assert len(w.incidents(record)) == 1
        w.check(record)


@pytest.mark.long
def test_leaders_that_die_one_after_the_other_are_all_followed(w: World) -> None:
    record = None
    epochs = []
    doomed = w.supervisor()
    eventually(lambda: leader(w) == doomed.pid, 30, "a supervisor leads")
    for _ in range(4):
        following = w.supervisor()
        record = record or trains(w)
        epochs.append(epoch(w))
        doomed.kill()
        eventually(lambda pid=following.pid: leader(w) == pid, 30, "the next one leads")
        doomed = following
    assert record is not None
    assert epochs == sorted(set(epochs))
    assert w.incidents(record) == []
    w.check(record)


def grants(w: World, record: RunRecord) -> dict[str, Grant]:
    return {g.key: g for _, g in w.mirror().records(keys.grant(record.spec.name, ""), Grant)}


@pytest.mark.long
def test_a_leader_with_another_home_leaves_the_firsts_allocations_alone(w: World, tmp_path: Path) -> None:
    """Like a leader on another machine, it has no pool and knows none of the nodes. It does what needs no engine; the
    rest waits for a supervisor of the first home."""
    first = w.supervisor()
    eventually(lambda: leader(w) == first.pid, 30, "the first leads")
    record = trains(w)
    eventually(lambda: [g.state for g in grants(w, record).values()] == ["granted"] * 3, 30, "two nodes and a spare")
    before, pids = grants(w, record), [w.trainer(record, g).pid for g in (0, 1)]
    elsewhere = w.supervisor(home=tmp_path / "elsewhere")
    killed = time.time()
    first.kill()
    taken_over(w, elsewhere, killed, 30)
    undisturbed(w, record, killed)
    assert [w.trainer(record, g).pid for g in (0, 1)] == pids
    assert grants(w, record) == before
    # rung 1 and rung 2 need no engine
    w.kill_trainer(record, 1)
    eventually(w.running(record, 1, 2), 30, "it restarts a trainer in place")
    w.kill_node(w.status(record).groups[1].node)
    eventually(w.running(record, 1, 3), 30, "it moves the group to the spare")
    assert [i.kind for i in w.incidents(record)] == [Kind.CRASH, Kind.NODE_LOST]
    refill = f"{record.spec.name}-a4"
    eventually(lambda: refill in grants(w, record), 30, "another spare is asked for")
    kept = {key: grant for key, grant in grants(w, record).items() if key != refill}
    assert kept == before, "nothing is given back by one that does not have it"
    # rung 3 does
    w.kill_node(w.status(record).groups[0].node)
    eventually(lambda: len(grants(w, record)) == 5, 30, "it asks for another node")
    new = grants(w, record).keys() - before.keys()
    assert {grants(w, record)[key].state for key in new} == {"pending"}, "and has none to give"
    assert elsewhere.poll() is None
    # the first home again
    again = w.supervisor()
    elsewhere.terminate()
    eventually(lambda: leader(w) == again.pid, 30, "the first home's supervisor leads again")
    eventually(w.running(record, 2, 3), 60, "it gives the node that was asked for")
    used = {w.allocation_of(record, g) for g in (0, 1)}

    def no_lost_host() -> bool:
        spares = [g for g in grants(w, record).values() if g.state == "granted" and g.key not in used]
        return not {node for grant in spares for node in grant.nodes} & w.status(record).cordons.keys()

    # the pool has four nodes, two of which were lost: one is a spare again only once its checks have passed there
    eventually(no_lost_host, 30, "no spare on a cordoned host")
    (moved,) = used & before.keys()
    assert {grants(w, record)[key].reason for key in before.keys() - used} == {"given back"}
    assert grants(w, record)[moved] == before[moved]
    w.check(record)


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _fall_silent(way: Relay) -> None:
    """Stops everything on old connections and new ones; nothing is reset."""
    way.requests.clear()
    way.replies.clear()
