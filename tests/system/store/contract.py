"""The contract of every Store, held by EtcdStore and by the fake (test_contract.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import MAX_OPERATIONS, Changes, Expect, Store, Watch
from supervisor.shell.etcd import Election

SOON_S = 5.0


@dataclass
class Kit:
    """A store, and the ways in which a test can disturb it."""

    store: Store
    expire: Callable[[int], None]
    compact: Callable[[int], None]


def collect(watch: Watch, n: int) -> list[Changes]:
    """The next `n` changes."""
    found: list[Changes] = []

    def enough() -> bool:
        changes = watch.poll(0.05)
        if changes is not None:
            found.append(changes)
        return len(found) >= n

    eventually(enough, SOON_S, f"{n} changes")
    return found


class StoreContract:
    """Subclass it with a fixture `kit`."""

    def test_get_of_nothing(self, kit: Kit) -> None:
        assert kit.store.get("/t/a") is None
        assert kit.store.list("/t/").items == ()

    def test_put_and_get(self, kit: Kit) -> None:
        first = kit.store.put("/t/a", b"1")
        second = kit.store.put("/t/a", b"\x00\xff")
        item = kit.store.get("/t/a")
        assert item is not None
        assert (item.value, item.create_revision, item.mod_revision, item.lease) == (b"\x00\xff", first, second, 0)
        assert second == first + 1

    def test_list_is_one_revision_of_one_prefix(self, kit: Kit) -> None:
        kit.store.put("/t/b", b"b")
        kit.store.put("/t/a", b"a")
        last = kit.store.put("/u/a", b"other")
        snapshot = kit.store.list("/t/")
        assert [item.key for item in snapshot.items] == ["/t/a", "/t/b"]
        assert snapshot.revision == last

    def test_a_list_may_begin_behind_a_key_and_end_early(self, kit: Kit) -> None:
        for name in "abcd":
            kit.store.put(f"/t/{name}", b"")
        kit.store.put("/u/a", b"other")

        def listed(**which: Any) -> list[str]:
            return [item.key for item in kit.store.list("/t/", **which).items]

        assert listed(after="/t/b") == ["/t/c", "/t/d"]
        assert listed(after="/t/a", limit=2) == ["/t/b", "/t/c"]
        assert listed(limit=1) == listed(after="/s", limit=1) == ["/t/a"]
        assert listed(after="/t/d", limit=2) == []

    def test_commit_is_one_revision(self, kit: Kit) -> None:
        kit.store.put("/t/c", b"")
        revision = kit.store.commit({"/t/a": b"a", "/t/b": b"b"}, ["/t/c"])
        items = kit.store.list("/t/").items
        assert [(item.key, item.mod_revision) for item in items] == [("/t/a", revision), ("/t/b", revision)]

    def test_commit_with_a_failed_expectation_writes_nothing(self, kit: Kit) -> None:
        made = kit.store.put("/t/a", b"1")
        changed = kit.store.put("/t/a", b"2")
        for wrong in (
            Expect("/t/a", create_revision=0),
            Expect("/t/a", create_revision=changed),
            Expect("/t/a", mod_revision=made),
            Expect("/t/none", create_revision=made),
            Expect("/t/a", create_revision=made, mod_revision=made),
        ):
            with pytest.raises(Fenced):
                kit.store.commit({"/t/a": b"3", "/t/b": b""}, expect=[wrong])
        assert kit.store.list("/t/").revision == changed
        right = [Expect("/t/a", create_revision=made, mod_revision=changed), Expect("/t/none", create_revision=0)]
        assert kit.store.commit({"/t/a": b"3"}, expect=right) == changed + 1

    def test_more_operations_than_it_takes(self, kit: Kit) -> None:
        before = kit.store.list("").revision
        with pytest.raises(ValueError):
            kit.store.commit({f"/t/{n}": b"" for n in range(MAX_OPERATIONS + 1)})
        with pytest.raises(ValueError):
            kit.store.commit({"/t/a": b""}, [f"/t/{n}" for n in range(MAX_OPERATIONS)])
        assert kit.store.list("").revision == before
        full = {f"/t/{n:03}": b"" for n in range(MAX_OPERATIONS)}
        expect = [Expect(key, create_revision=0) for key in full]
        assert kit.store.commit(full, expect=expect) == before + 1

    def test_a_key_twice_in_a_transaction_is_refused(self, kit: Kit) -> None:
        with pytest.raises(Fatal):
            kit.store.commit({"/t/a": b""}, ["/t/a"])

    def test_watch_sees_each_transaction_whole_and_in_order(self, kit: Kit) -> None:
        start = kit.store.put("/t/old", b"")
        watch = kit.store.watch("/t/", start)
        revisions = [
            kit.store.commit({"/t/a": b"1", "/t/b": b"1", "/u/x": b""}),
            kit.store.commit({"/t/c": b"1"}, ["/t/a", "/t/old"]),
            kit.store.put("/t/a", b"2"),
        ]
        kit.store.put("/u/x", b"not ours")
        seen = collect(watch, 3)
        watch.close()
        assert [changes.revision for changes in seen] == revisions
        assert [sorted(item.key for item in changes.puts) for changes in seen] == [
            ["/t/a", "/t/b"],
            ["/t/c"],
            ["/t/a"],
        ]
        assert [sorted(changes.deletes) for changes in seen] == [[], ["/t/a", "/t/old"], []]
        assert not any(changes.reset for changes in seen)

    def test_watch_gives_what_came_before_it_was_opened(self, kit: Kit) -> None:
        start = kit.store.put("/t/a", b"1")
        late = [kit.store.put("/t/a", b"2"), kit.store.put("/t/a", b"3")]
        watch = kit.store.watch("/t/", start)
        assert [changes.revision for changes in collect(watch, 2)] == late
        assert watch.poll(0.0) is None
        watch.close()

    def test_watch_from_before_a_compaction_is_reset(self, kit: Kit) -> None:
        start = kit.store.put("/t/gone", b"")
        kit.store.commit({"/t/a": b"1"}, ["/t/gone"])
        kit.store.put("/t/a", b"2")
        last = kit.store.put("/t/b", b"1")
        kit.compact(last)
        watch = kit.store.watch("/t/", start - 1)
        reset = collect(watch, 1)[0]
        assert reset.reset
        assert reset.revision == last
        assert [(item.key, item.value) for item in reset.puts] == [("/t/a", b"2"), ("/t/b", b"1")]
        after = kit.store.put("/t/a", b"3")
        following = collect(watch, 1)[0]
        watch.close()
        assert (following.revision, following.reset) == (after, False)

    def test_poll_of_a_closed_watch_returns_at_once(self, kit: Kit) -> None:
        watch = kit.store.watch("/t/", kit.store.list("/t/").revision)
        done = threading.Event()

        def poll() -> None:
            watch.poll(60.0)
            done.set()

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        watch.close()
        eventually(done.is_set, SOON_S, "the poll ends")
        thread.join()

    def test_lease_holds_its_keys_until_it_is_revoked(self, kit: Kit) -> None:
        lease = kit.store.lease(5)
        kit.store.put("/t/a", b"", lease.id)
        kit.store.commit({"/t/b": b""}, lease=lease.id)
        assert [item.lease for item in kit.store.list("/t/").items] == [lease.id, lease.id]
        assert not lease.lost
        lease.revoke()
        assert lease.lost
        assert kit.store.list("/t/").items == ()
        lease.revoke()

    def test_an_expired_lease_is_lost_and_takes_its_keys(self, kit: Kit) -> None:
        lease = kit.store.lease(2)
        put = kit.store.put("/t/a", b"", lease.id)
        watch = kit.store.watch("/t/", put)
        kit.expire(lease.id)
        assert collect(watch, 1)[0].deletes == ("/t/a",)
        watch.close()
        eventually(lambda: lease.lost, SOON_S, "the holder sees it")
        with pytest.raises(Fenced):
            kit.store.put("/t/a", b"", lease.id)
        assert kit.store.get("/t/a") is None

    def test_election_on_this_store(self, kit: Kit) -> None:
        go_on = threading.Event()
        first = Election(kit.store, "/t/leader", b"one", 5).campaign(go_on)
        assert first is not None
        item = kit.store.get("/t/leader")
        assert item is not None
        assert (item.value, item.create_revision) == (b"one", first.epoch)
        kit.store.commit({"/t/x": b"1"}, expect=[first.expect()])
        assert not first.lost
        first.resign()
        assert first.lost
        second = Election(kit.store, "/t/leader", b"two", 5).campaign(go_on)
        assert second is not None
        assert second.epoch > first.epoch
        with pytest.raises(Fenced):
            kit.store.commit({"/t/x": b"2"}, expect=[first.expect()])
        second.resign()

    def test_campaign_can_be_stopped(self, kit: Kit) -> None:
        leader = Election(kit.store, "/t/leader", b"one", 5).campaign(threading.Event())
        assert leader is not None
        stop, answers = threading.Event(), []
        rival = Election(kit.store, "/t/leader", b"two", 5)
        thread = threading.Thread(target=lambda: answers.append(rival.campaign(stop)))
        thread.start()
        stop.set()
        thread.join(SOON_S)
        assert answers == [None]
        leader.resign()

    def test_a_leader_whose_key_was_taken_away_is_lost(self, kit: Kit) -> None:
        leader = Election(kit.store, "/t/leader", b"one", 60).campaign(threading.Event())
        assert leader is not None
        kit.store.commit({}, ["/t/leader"])
        eventually(lambda: leader.lost, SOON_S, "the leader sees it")
        leader.resign()

    def test_a_closed_store_says_so(self, kit: Kit) -> None:
        kit.store.close()
        with pytest.raises(Fatal):
            kit.store.get("/t/a")
