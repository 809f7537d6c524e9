"""One leader at a time, and a late one that cannot write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.testbed.stopping import frozen
from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fenced, Retryable
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import Election, EtcdStore, Leadership, connect
from tests.helpers.etcd import running
from tests.helpers.relay import relay

pytestmark = pytest.mark.etcd

LEADER = "/t/leader"
TTL_S = 3


class Standby:
    """A candidate in a thread of its own, on its own connection."""

    def __init__(self, endpoint: str, name: bytes, ttl_s: int = TTL_S, timeout_s: float = 1.0) -> None:
        self.store = connect([endpoint], timeout_s=timeout_s)
        self.stop = threading.Event()
        self.leads: Leadership | None = None
        self.since = 0.0
        self._election = Election(self.store, LEADER, name, ttl_s)
        self._thread = threading.Thread(target=self._campaign)
        self._thread.start()

    def _campaign(self) -> None:
        self.leads = self._election.campaign(self.stop)
        self.since = time.monotonic()

    def close(self) -> None:
        self.stop.set()
        self._thread.join(10)
        if self.leads is not None:
            self.leads.resign()
        self.store.close()


@contextmanager
def standby(endpoint: str, name: bytes, ttl_s: int = TTL_S) -> Iterator[Standby]:
    made = Standby(endpoint, name, ttl_s)
    try:
        yield made
    finally:
        made.close()


def test_a_standby_takes_over_at_once_when_the_leader_resigns(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with standby(etcd_server.endpoint, b"one", 60) as one:
        first = eventually(lambda: one.leads, 5, "one leads")
        with standby(etcd_server.endpoint, b"two", 60) as two:
            eventually(lambda: any(t.name == f"watch-{LEADER}" for t in threading.enumerate()), 5)
            assert two.leads is None
            began = time.monotonic()
            first.resign()
            second = eventually(lambda: two.leads, 10, "two leads")
            # far below the TTL of 60 s: by the watch, not by expiry
            assert two.since - began < 5
            assert second.epoch > first.epoch
            assert first.lost
            assert not second.lost


def test_a_standby_takes_over_when_the_lease_runs_out(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with standby(etcd_server.endpoint, b"one") as one, standby(etcd_server.endpoint, b"two") as two:
        eventually(lambda: one.leads or two.leads, 5, "one of them leads")
        old, new = (one, two) if one.leads else (two, one)
        first = old.leads
        assert first is not None
        began = time.monotonic()
        # dies without a word: no renewal, no revoke
        old.store.close()
        second = eventually(lambda: new.leads, 5 * TTL_S, "the other leads")
        # the old one knew it before the new one began: both count from the same renewal, the old one from its sending
        assert first.lost
        assert new.since - began <= 2 * TTL_S
        item = store.get(LEADER)
        assert item is not None
        assert item.create_revision == second.epoch > first.epoch


def test_a_late_write_of_the_old_leader_is_fenced(store: EtcdStore, etcd_server: EtcdServer) -> None:
    with relay(etcd_server.endpoint) as between, standby(between.endpoint, b"one") as one:
        first = eventually(lambda: one.leads, 5, "one leads")
        one.store.commit({"/t/x": b"first"}, expect=[first.expect()])
        with standby(etcd_server.endpoint, b"two") as two:
            # the old leader is cut off, as on a frozen host, until the other has taken over
            between.requests.clear()
            second = eventually(lambda: two.leads, 5 * TTL_S, "two leads")
            assert first.lost
            two.store.commit({"/t/x": b"second"}, expect=[second.expect()])
            between.requests.set()

            def late_write() -> bool:
                try:
                    one.store.commit({"/t/x": b"late"}, expect=[first.expect()])
                except Fenced:
                    return True
                except Retryable:
                    return False
                pytest.fail("the late write was taken")

            eventually(late_write, 10, "its way is open again, and it is fenced")
        item = store.get("/t/x")
        assert item is not None
        assert item.value == b"second"


def test_an_attempt_whose_answer_was_lost_is_found_again(store: EtcdStore, etcd_server: EtcdServer) -> None:
    """The transaction was committed, but the candidate's call timed out: it leads, and no other does."""
    with relay(etcd_server.endpoint) as between:
        far = connect([between.endpoint], timeout_s=1.0)
        held = threading.Event()
        commit = far.commit

        def without_answer(*args: object, **kwargs: object) -> int:
            if not held.is_set():
                held.set()
                between.replies.clear()
                threading.Thread(target=give_back).start()
            return commit(*args, **kwargs)  # type: ignore[arg-type]

        def give_back() -> None:
            eventually(lambda: store.get(LEADER), 5, "committed")
            end = time.monotonic() + 1.5
            eventually(lambda: time.monotonic() > end, 5, "longer than the call's deadline")
            between.cut()
            between.replies.set()

        far.commit = without_answer  # type: ignore[method-assign]
        leads = Election(far, LEADER, b"one", 10).campaign(threading.Event())
        assert leads is not None
        item = store.get(LEADER)
        assert item is not None
        assert (leads.epoch, leads.lease) == (item.create_revision, item.lease)
        assert item.mod_revision == item.create_revision
        leads.resign()
        far.close()


def test_a_frozen_store_ends_the_leadership_and_a_campaign_rides_through(tmp_path: Path, any_binary: Path) -> None:
    with running(tmp_path, binary=any_binary) as server, standby(server.endpoint, b"one") as one:
        first = eventually(lambda: one.leads, 5, "one leads")
        with frozen(server.pid):
            eventually(lambda: first.lost, 2 * TTL_S, "lost by its own clock")
            with pytest.raises(AssertionError):
                # no candidate can lead while the store is away
                eventually(lambda: not first.lost, 0.2)
        again = Election(one.store, LEADER, b"again", TTL_S).campaign(threading.Event())
        assert again is not None
        assert again.epoch > first.epoch
        again.resign()


def test_a_leader_whose_lease_could_not_be_given_back_gives_it_back_when_it_comes_again(
    etcd_server: EtcdServer, store: EtcdStore
) -> None:
    """After an outage etcd extends leases: no one leads until the old leader's has run out, unless it comes itself."""
    long_s, stop = 60, threading.Event()
    with relay(etcd_server.endpoint) as way, connect([way.endpoint], timeout_s=0.5) as ours:
        election = Election(ours, LEADER, b"one", long_s)
        first = election.campaign(stop)
        assert first is not None
        way.requests.clear()
        first.resign()  # as when etcd is away: the request does not reach it
        way.cut()
        way.requests.set()
        assert store.get(LEADER) is not None
        too_late = threading.Timer(long_s / 4, stop.set)
        too_late.start()
        again = election.campaign(stop)
        too_late.cancel()
        assert again is not None, "it waits for its own old lease"
        assert again.epoch > first.epoch
        again.resign()
