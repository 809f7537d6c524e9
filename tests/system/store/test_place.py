"""The watch's place in the history, fed with responses by hand."""

from __future__ import annotations

from typing import Any

from supervisor.ports.store import Changes, Item, Snapshot
from supervisor.shell.etcd.place import Doubt, Place
from supervisor.shell.etcd.stubs import rpc


def put(key: str, revision: int) -> dict[str, Any]:
    return {"kv": {"key": key.encode(), "mod_revision": revision, "create_revision": revision}}


def delete(key: str, revision: int) -> dict[str, Any]:
    return {"type": 1, "kv": {"key": key.encode(), "mod_revision": revision}}


def response(*events: dict[str, Any], revision: int = 0, **fields: Any) -> Any:
    return rpc.WatchResponse(header={"revision": revision}, events=list(events), **fields)


def test_a_response_with_several_revisions_keeps_their_order() -> None:
    place = Place(4)
    found = place.take(response(put("a", 5), put("b", 5), delete("a", 6), put("a", 7)))
    assert [(c.revision, [i.key for i in c.puts], list(c.deletes)) for c in found] == [
        (5, ["a", "b"], []),
        (6, [], ["a"]),
        (7, ["a"], []),
    ]
    assert place.next == 8


def test_fragments_of_a_transaction_are_delivered_as_one() -> None:
    place = Place(4)
    assert place.take(response(put("a", 5), fragment=True)) == []
    assert place.next == 5
    [whole] = place.take(response(put("b", 5)))
    assert [item.key for item in whole.puts] == ["a", "b"]


def test_fragments_of_a_lost_stream_are_forgotten() -> None:
    place = Place(4)
    place.take(response(put("a", 5), fragment=True))
    place.new_stream()
    [whole] = place.take(response(put("a", 5), put("b", 5)))
    assert [item.key for item in whole.puts] == ["a", "b"]


def test_events_seen_already_are_not_given_again() -> None:
    place = Place(5)
    assert [changes.revision for changes in place.take(response(put("a", 5), put("b", 6)))] == [6]


def test_a_progress_answer_never_moves_the_place() -> None:
    """etcd #15220: the answer may overtake events of lower revisions."""
    place = Place(4)
    assert place.take(response(revision=100, watch_id=-1)) == []
    assert place.next == 5
    assert [changes.revision for changes in place.take(response(put("a", 5)))] == [5]


def test_compaction_asks_for_a_listing_and_resets() -> None:
    place = Place(4)
    assert place.take(response(canceled=True, compact_revision=50)) == []
    assert place.doubt is Doubt.COMPACTED
    item = Item("a", b"", 51, 60)
    assert place.listed(Snapshot(60, (item,))) == Changes(60, (item,), reset=True)
    assert (place.next, place.doubt) == (61, None)


def test_a_lagging_member_is_no_reset() -> None:
    place = Place(10)
    assert place.take(response(created=True, revision=8)) == []
    assert place.doubt is Doubt.BEHIND
    assert place.listed(Snapshot(12, ())) is None
    assert (place.next, place.doubt) == (11, None)


def test_a_store_that_lost_revisions_is_a_reset() -> None:
    place = Place(10)
    place.take(response(created=True, revision=3))
    reset = place.listed(Snapshot(3, ()))
    assert reset == Changes(3, reset=True)
    assert place.next == 4


def test_created_at_the_place_is_no_doubt() -> None:
    place = Place(10)
    assert place.take(response(created=True, revision=10)) == []
    assert place.doubt is None
