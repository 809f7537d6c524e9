"""The copy of all keys under our prefix."""

from __future__ import annotations

import pytest

from supervisor.ports.store import Changes, Item
from supervisor.shell.control.state_cache import Mirror, sort_of
from supervisor.wire import keys
from supervisor.wire.records import DigestMark, encode
from tests.unit.shell.records import mirror_of


def item(key: str, step: int, revision: int) -> Item:
    return Item(key, value(step), 1, revision)


def value(step: int) -> bytes:
    return encode(DigestMark(step=step, value="x"))


def step(mirror: Mirror, key: str = "/a") -> int | None:
    record = mirror.record(key, DigestMark)
    return record.step if record is not None else None


def test_a_change_is_taken_in() -> None:
    mirror = mirror_of({"/a": value(1)}, revision=5)
    mirror.apply(Changes(7, puts=(item("/a", 2, 6), item("/b", 3, 7))))
    assert (step(mirror), step(mirror, "/b"), mirror.revision) == (2, 3, 7)


def test_a_delete_is_taken_in() -> None:
    mirror = mirror_of({"/a": value(1)}, revision=5)
    assert step(mirror) == 1
    mirror.apply(Changes(6, deletes=("/a", "/never-there")))
    assert step(mirror) is None
    assert mirror.keys("/") == []


def test_what_is_older_than_our_own_write_is_passed_over() -> None:
    mirror = mirror_of({"/a": value(1)}, revision=5)
    mirror.wrote({"/a": value(9)}, revision=8)
    mirror.apply(Changes(6, puts=(item("/a", 2, 6),)))
    mirror.apply(Changes(7, deletes=("/a",)))
    assert step(mirror) == 9
    mirror.apply(Changes(8, puts=(item("/a", 9, 8),)))
    mirror.apply(Changes(9, puts=(item("/a", 4, 9),)))
    assert step(mirror) == 4


def test_our_own_write_keeps_the_create_revision() -> None:
    mirror = mirror_of({"/a": value(1)}, revision=5)
    mirror.wrote({"/a": value(2), "/b": value(3)}, revision=6)
    assert (mirror.items["/a"].create_revision, mirror.items["/a"].mod_revision) == (1, 6)
    assert mirror.items["/b"].create_revision == 6


def test_after_a_reset_whatever_is_not_in_it_is_gone() -> None:
    mirror = mirror_of({"/a": value(1), "/b": value(2)}, revision=5)
    mirror.apply(Changes(9, puts=(item("/a", 7, 8),), reset=True))
    assert (mirror.keys("/"), step(mirror), mirror.revision) == (["/a"], 7, 9)


def test_the_revision_never_goes_back() -> None:
    mirror = mirror_of({}, revision=5)
    mirror.wrote({"/a": value(1)}, revision=8)
    mirror.apply(Changes(8))
    mirror.apply(Changes(6))
    assert mirror.revision == 8


def test_an_unreadable_record_is_reported_and_left_alone() -> None:
    mirror = mirror_of({"/a": b"{torn", "/b": value(2)}, revision=5)
    assert [key for key, _ in mirror.records("/", DigestMark)] == ["b"]
    assert list(mirror.unreadable) == ["/a"]
    assert mirror.items["/a"].value == b"{torn"


def test_it_is_reported_for_as_long_as_it_stays() -> None:
    mirror = mirror_of({"/a": b"{torn"}, revision=5)
    assert step(mirror) is None
    assert step(mirror) is None
    assert "/a" in mirror.unreadable
    mirror.apply(Changes(6, puts=(item("/a", 3, 6),)))
    assert step(mirror) == 3
    assert mirror.unreadable == {}


def test_a_repaired_record_is_reported_no_more_even_if_nobody_asks_for_it() -> None:
    mirror = mirror_of({"/a": b"{torn"}, revision=5)
    assert step(mirror) is None
    mirror.apply(Changes(6, deletes=("/a",)))
    assert mirror.unreadable == {}


def test_what_cannot_be_read_is_said_again_after_a_reset() -> None:
    mirror = mirror_of({"/a": b"{torn"}, revision=5)
    assert step(mirror) is None
    mirror.apply(Changes(6, puts=(Item("/a", b"{torn", 5, 5),), reset=True))
    assert (step(mirror), list(mirror.unreadable)) == (None, ["/a"])


def test_after_a_reset_a_revision_that_was_lost_and_came_again_is_read_anew() -> None:
    mirror = mirror_of({"/a": value(1)}, revision=5)
    assert step(mirror) == 1
    mirror.apply(Changes(5, puts=(item("/a", 2, 5),), reset=True))
    assert step(mirror) == 2


def test_our_own_write_mends_what_could_not_be_read() -> None:
    mirror = mirror_of({"/a": b"{torn"}, revision=5)
    assert step(mirror) is None
    mirror.wrote({"/a": value(2)}, revision=6)
    assert (mirror.unreadable, step(mirror)) == ({}, 2)


def test_a_table_is_what_can_be_read_of_a_sort_and_the_same_until_it_changes() -> None:
    def steps() -> list[tuple[str, int]]:
        table = mirror.table("/x/b", DigestMark)
        assert mirror.table("/x/b", DigestMark) is table
        return [(key, record.step) for key, record in table.items()]

    mirror = mirror_of({"/x/b2": value(2), "/x/b10": value(10), "/x/a": value(0)}, revision=5)
    assert steps() == [("/x/b10", 10), ("/x/b2", 2)]
    before = mirror.table("/x/b", DigestMark)
    mirror.wrote({"/x/a": value(1)}, revision=6)
    assert mirror.table("/x/b", DigestMark) is before
    mirror.wrote({"/x/b2": value(3), "/x/b1": value(1)}, revision=7)
    assert steps() == [("/x/b1", 1), ("/x/b10", 10), ("/x/b2", 3)]
    mirror.apply(Changes(8, puts=(Item("/x/b1", b"{torn", 7, 8),), deletes=("/x/b10",)))
    assert steps() == [("/x/b2", 3)]
    assert list(mirror.unreadable) == ["/x/b1"]
    mirror.apply(Changes(9, puts=(item("/x/b1", 4, 9),)))
    assert steps() == [("/x/b1", 4), ("/x/b2", 3)]
    mirror.apply(Changes(10, puts=(item("/x/b3", 5, 10),), reset=True))
    assert steps() == [("/x/b3", 5)]
    assert [step for _, step in before.items()] == [DigestMark(step=s, value="x") for s in (10, 2)]


def test_records_are_sorted_by_the_rest_of_their_key() -> None:
    mirror = mirror_of({"/x/b": value(2), "/x/a": value(1), "/xy": value(3)}, revision=5)
    assert [(k, r.step) for k, r in mirror.records("/x/", DigestMark)] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("key", "sort"),
    [
        (keys.check("n1"), "check"),
        (keys.registration("runs"), "registration"),
        (keys.gate("n1", "check"), "gate"),
        (keys.cordon("check"), "cordons"),
        (keys.spec("check"), "spec"),
        (keys.policy("check"), "policy"),
        (keys.grant("check", "check-a1"), "runs/check/grants"),
        (keys.grant("check", ""), "runs/check/grants"),
        (keys.memory("a", "group-1"), "runs/a/memory"),
        (keys.LEADER, "leader"),
        ("/a", ""),
    ],
)
def test_the_sort_of_a_key(key: str, sort: str) -> None:
    assert sort_of(key) == sort


def test_what_is_derived_is_made_again_when_one_of_its_sorts_has_changed() -> None:
    mirror = mirror_of({keys.check("n1"): value(1), keys.health("n1"): value(1)}, revision=5)
    made = []

    def make(mirror: Mirror) -> list[str]:
        made.append(mirror.revision)
        return mirror.of_sort("check")

    assert mirror.derived(make, "check") == [keys.check("n1")]
    mirror.apply(Changes(6, puts=(item(keys.health("n1"), 2, 6),)))
    assert mirror.derived(make, "check") == [keys.check("n1")]
    assert made == [5]
    mirror.wrote({keys.check("n2"): value(1)}, revision=7)
    assert mirror.derived(make, "check") == [keys.check("n1"), keys.check("n2")]
    mirror.apply(Changes(8, deletes=(keys.check("n1"),)))
    assert mirror.derived(make, "check") == [keys.check("n2")]
    mirror.apply(Changes(9, puts=(item(keys.check("n3"), 1, 9),), reset=True))
    assert mirror.derived(make, "check") == [keys.check("n3")]


def test_keys_are_sorted_whatever_came_and_went() -> None:
    mirror = mirror_of({"/a/2": value(1), "/b": value(1), "/a/10": value(1)}, revision=5)
    mirror.wrote({"/a/1": value(1), "/b": value(2)}, revision=6)
    mirror.apply(Changes(7, puts=(item("/a", 1, 7),), deletes=("/a/10",)))
    assert mirror.keys("/a/") == ["/a/1", "/a/2"]
    assert mirror.keys("") == ["/a", "/a/1", "/a/2", "/b"]
    mirror.apply(Changes(8, puts=(item("/c", 1, 8),), reset=True))
    assert mirror.keys("/") == ["/c"]


def test_what_was_made_of_a_node_is_kept_until_something_of_it_is_written_or_goes() -> None:
    mirror = mirror_of({keys.check("n1"): value(1), keys.check("n2"): value(5), "/b": value(1)}, revision=5)
    made: list[tuple[int | None, str]] = []

    def make(node: str, more: str) -> tuple[int | None, str]:
        made.append((step(mirror, keys.check(node)), more))
        return made[-1]

    def look(more: str = "") -> list[tuple[int | None, str]]:
        made.clear()
        mirror.of_each("a", [("n1", more), ("n2", "")], make)
        return list(made)

    assert (look(), look()) == ([(1, ""), (5, "")], [])
    mirror.apply(Changes(6, puts=(item("/b", 9, 6), item(keys.grant("n1", "a"), 1, 6))))
    assert look() == []
    mirror.wrote({keys.check("n1"): value(2)}, revision=7)
    assert look() == [(2, "")]
    mirror.apply(Changes(7, puts=(item(keys.check("n1"), 2, 7),)))
    assert look() == [], "our own write came back"
    mirror.apply(Changes(8, puts=(item(keys.gate("n2", "run"), 1, 8),)))
    assert look() == [(5, "")]
    assert look("x") == [(2, "x")]
    mirror.apply(Changes(9, deletes=(keys.check("n1"),)))
    assert look("x") == [(None, "x")]
    assert mirror.of_each("b", [("n2", "")], make) == {"n2": (5, "")}


def test_the_nodes_are_those_of_which_a_key_is_there() -> None:
    mirror = mirror_of(
        {keys.check("n2"): value(1), keys.health("n2"): value(1), keys.cordon("n3"): value(1)}, revision=5
    )
    assert mirror.nodes() == ["n2"]
    mirror.wrote({keys.gate("n1", "run"): value(1), keys.gate("n2", "run"): value(1)}, revision=6)
    assert mirror.nodes() == ["n1", "n2"]
    mirror.apply(Changes(7, deletes=(keys.gate("n1", "run"), keys.check("n2"))))
    assert mirror.nodes() == ["n2"]
    mirror.apply(Changes(8, puts=(item(keys.check("n4"), 1, 8), item(keys.check("n2"), 1, 8)), reset=True))
    assert mirror.nodes() == ["n2", "n4"]
    mirror.apply(Changes(9, deletes=(keys.check("n2"),)))
    assert mirror.nodes() == ["n4"]
