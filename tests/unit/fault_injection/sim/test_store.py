"""The faults of the simulator's etcd (tests/system/store/test_contract.py tests it without faults)."""

from __future__ import annotations

import pytest

from fault_injection.sim.clock import Clock
from fault_injection.sim.store import PATIENCE_S, Etcd, SimStore
from supervisor.ports.errors import Retryable

TTL_S = 6


@pytest.fixture
def etcd() -> Etcd:
    return Etcd(Clock())


def test_what_is_due_at_one_moment_happens_in_order_and_a_wait_lets_others_go_on() -> None:
    clock, seen = Clock(), []
    clock.after(2.0, lambda: seen.append("late"))

    def sleeps() -> None:
        clock.wait(5.0)
        seen.append(f"woke at {clock.now:g}")

    clock.after(1.0, sleeps)
    clock.after(1.0, lambda: seen.append("next"))
    clock.run_until(10.0)
    assert seen == ["next", "late", "woke at 6"]
    assert clock.now == 10.0


def test_a_store_that_is_away_takes_its_time_to_say_so(etcd: Etcd) -> None:
    store = SimStore(etcd)
    watch = store.watch("/", store.put("/a", b""))
    etcd.stop()
    with pytest.raises(Retryable):
        store.put("/a", b"1")
    assert etcd.clock.now == PATIENCE_S
    assert (watch.poll(0.0), watch.silent_s) == (None, PATIENCE_S)
    etcd.start()
    put = store.put("/a", b"2")
    changes = watch.poll(0.0)
    assert changes is not None
    assert (changes.revision, watch.silent_s) == (put, 0.0)


def test_an_outcome_that_is_not_known(etcd: Etcd) -> None:
    """The answer of a transaction that was applied is lost."""
    store = SimStore(etcd)

    def lost(when: str) -> None:
        if when == "after":
            raise Retryable("the answer is lost")

    store.on_commit = lost
    with pytest.raises(Retryable):
        store.commit({"/a": b"1"})
    assert store.get("/a") is not None


def test_a_client_that_is_cut_off_loses_its_lease_by_its_own_clock_and_at_the_server(etcd: Etcd) -> None:
    holder, other = SimStore(etcd, "holder"), SimStore(etcd, "other")
    lease = holder.lease(TTL_S)
    other.put("/kept", b"")
    holder.put("/a", b"", lease.id)
    etcd.clock.wait(10 * TTL_S)
    assert not lease.lost, "it is renewed"
    holder.cut()
    etcd.clock.wait(0.6 * TTL_S)
    assert not lease.lost
    assert other.get("/a") is not None, "it was renewed less than a third of its time ago"
    etcd.clock.wait(0.4 * TTL_S)
    assert lease.lost
    assert [item.key for item in other.list("/").items] == ["/kept"]


def test_a_client_that_is_back_in_time_keeps_its_lease(etcd: Etcd) -> None:
    store = SimStore(etcd)
    lease = store.lease(TTL_S)
    store.cut()
    etcd.clock.wait(0.5 * TTL_S)
    store.link()
    etcd.clock.wait(10 * TTL_S)
    assert not lease.lost


def test_an_outage_gives_leases_their_whole_time_anew_and_lost_is_lost(etcd: Etcd) -> None:
    """etcd counts no lease while it is away; a holder that has given up does not come back to life."""
    store = SimStore(etcd)
    lease = store.lease(TTL_S)
    store.put("/a", b"", lease.id)
    etcd.stop()
    etcd.clock.wait(TTL_S)
    assert lease.lost
    etcd.start()
    assert store.get("/a") is not None
    etcd.clock.wait(0.9 * TTL_S)
    assert store.get("/a") is not None
    etcd.clock.wait(0.1 * TTL_S)
    assert lease.lost
    assert store.get("/a") is None


def test_many_leases_may_lapse_with_an_outage(etcd: Etcd) -> None:
    stores = [SimStore(etcd, str(n)) for n in range(4)]
    leases = [store.lease(TTL_S) for store in stores]
    etcd.stop()
    etcd.clock.wait(0.5 * TTL_S)
    etcd.start(lambda lease: lease.id % 2 == 0)
    assert [lease.lost for lease in leases] == [False, True, False, True]


def test_a_watch_is_late_and_in_order(etcd: Etcd) -> None:
    store = SimStore(etcd, idle=lambda seconds: None)
    woken: list[float] = []
    store.woken = lambda: woken.append(etcd.clock.now)
    watch = store.watch("/", 1)
    etcd.delay_s = (3.0, 3.0)
    slow = store.put("/a", b"1")
    etcd.delay_s = (1.0, 1.0)
    quick = store.put("/a", b"2")
    etcd.clock.wait(2.9)
    assert watch.poll(0.0) is None
    etcd.clock.wait(0.2)
    assert [c.revision for c in (watch.poll(0.0), watch.poll(0.0)) if c is not None] == [slow, quick]
    assert woken == [3.0, 3.0]


def test_a_watch_that_lost_its_place_says_the_whole_prefix(etcd: Etcd) -> None:
    store = SimStore(etcd)
    watch = store.watch("/t/", 1)
    store.put("/t/gone", b"")
    store.commit({"/t/a": b""}, ["/t/gone"])
    store.lose_places()
    reset = watch.poll(0.0)
    assert reset is not None
    assert (reset.reset, [item.key for item in reset.puts]) == (True, ["/t/a"])
    assert watch.poll(0.0) is None
