"""The contract of every engine, held by the real ones: processes of this machine, and a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from tests.system.contract.places import WITHIN_S, Place, become, forgotten, grants, local_place


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "slurm":
        yield request.getfixturevalue("at_slurm")
    else:
        with local_place(tmp_path, monkeypatch) as made:
            yield made


def test_an_allocation_is_one_node(place: Place) -> None:
    engine = place.engine()
    assert grants(engine) == {}
    engine.acquire(place.request("a1"))
    grant = become(engine, "a1", "granted")
    assert len(grant.nodes) == 1
    assert grant.engine_id.startswith(f"{engine.name}:")
    assert (grant.leaving, engine.knows(grant)) == ("", True)


def test_asking_again_gives_nothing_more(place: Place) -> None:
    engine = place.engine()
    for _ in range(3):
        engine.acquire(place.request("a1"))
    first = become(engine, "a1", "granted")
    engine.acquire(place.request("a1"))
    place.engine().acquire(place.request("a1"))
    assert grants(place.engine()) == {"a1": first}
    assert place.running("a1") == 1


def test_who_lost_the_answer_asks_again_and_there_is_one(place: Place) -> None:
    place.ask_and_lose_the_answer(place.request("a1"))
    engine = place.engine()
    engine.acquire(place.request("a1"))
    become(engine, "a1", "granted")
    assert place.running("a1") == 1


def test_nodes_are_different_and_one_too_many_waits_until_one_is_given_back(place: Place) -> None:
    engine = place.engine()
    for key in ("a1", "a2", "a3"):
        engine.acquire(place.request(key))
    nodes = {become(engine, key, "granted").nodes for key in ("a1", "a2", "a3")}
    assert nodes == {("n1",), ("n2",), ("n3",)}
    engine.acquire(place.request("a4"))
    waiting = grants(engine)["a4"]
    assert (waiting.state, waiting.nodes) == ("pending", ())
    given_back = grants(engine)["a2"].nodes
    forgotten(engine, "a2")
    assert become(engine, "a4", "granted").nodes == given_back
    assert grants(engine)["a1"].state == "granted", "nobody else was touched"


def test_an_excluded_host_is_not_given(place: Place) -> None:
    engine = place.engine()
    engine.acquire(place.request("a1", exclude=("n1", "n3")))
    assert become(engine, "a1", "granted").nodes == ("n2",)
    engine.acquire(place.request("a2", exclude=("n1", "n3")))
    assert grants(engine)["a2"].state == "pending", "others are free"


def test_release_ends_it_and_can_be_said_again(place: Place) -> None:
    engine = place.engine()
    engine.acquire(place.request("a1"))
    become(engine, "a1", "granted")
    engine.release("a1")
    forgotten(engine, "a1")
    eventually(lambda: place.running("a1") == 0, WITHIN_S, "its processes have ended")
    engine.release("a1")
    engine.release("never-there")
    assert grants(engine) == {}


def test_release_of_one_that_waits_starts_nothing(place: Place) -> None:
    engine = place.engine()
    for key in ("a1", "a2", "a3"):
        engine.acquire(place.request(key))
    for key in ("a1", "a2", "a3"):
        become(engine, key, "granted")
    engine.acquire(place.request("a4"))
    forgotten(engine, "a4")
    assert place.running("a4") == 0
    forgotten(engine, "a1")
    assert set(grants(engine)) == {"a2", "a3"}


def test_what_was_released_by_another_is_given_back_again_without_an_error(place: Place) -> None:
    """A leader ends between the release and its note of it; the next one releases again."""
    place.engine().acquire(place.request("a1"))
    become(place.engine(), "a1", "granted")
    forgotten(place.engine(), "a1")
    forgotten(place.engine(), "a1")
    assert place.running("a1") == 0


def test_what_is_taken_away_is_gone_with_a_reason_until_it_is_given_back(place: Place) -> None:
    engine = place.engine()
    engine.acquire(place.request("a1"))
    before = become(engine, "a1", "granted")
    place.take_away("a1")
    gone = become(engine, "a1", "gone")
    assert (gone.nodes, gone.reason != "", gone.engine_id) == (before.nodes, True, before.engine_id)
    assert not before.ended
    assert not gone.ended or place.running("a1") == 0, "that it is taken away proves no end"
    assert become(place.engine(), "a1", "gone").nodes == before.nodes, "to a new object too"
    engine.acquire(place.request("a1"))
    assert grants(engine)["a1"].state == "gone", "it does not come back under its key"
    forgotten(engine, "a1")


def test_replace_gives_another_host_and_takes_the_suspect_back(place: Place) -> None:
    engine = place.engine()
    engine.acquire(place.request("a1"))
    suspect = become(engine, "a1", "granted").nodes
    other = place.request("a2", exclude=suspect)
    engine.replace("a1", other, "its disk is full")
    engine.replace("a1", other, "its disk is full")
    assert become(engine, "a2", "granted").nodes != suspect
    forgotten(engine, "a1")
    assert (place.running("a1"), place.running("a2")) == (0, 1)


def test_replace_of_what_it_does_not_know_is_an_acquire(place: Place) -> None:
    engine = place.engine()
    engine.replace("never-there", place.request("a1"), "it is lost")
    become(engine, "a1", "granted")
    assert set(grants(engine)) == {"a1"}
    assert place.running("a1") == 1


def test_two_systems_do_not_see_each_others(place: Place) -> None:
    mine, theirs = place.engine(), place.engine("another")
    mine.acquire(place.request("a1"))
    become(mine, "a1", "granted")
    theirs.release("a1")
    assert grants(theirs) == {}
    assert grants(mine)["a1"].state == "granted"


def test_it_knows_its_own_and_no_other_engines(place: Place) -> None:
    engine = place.engine()
    engine.acquire(place.request("a1"))
    grant = become(engine, "a1", "granted")
    fresh = place.engine()
    fresh.list()
    assert fresh.knows(grant)
    for other in ("kubernetes:prod:uid-7", "slurm:elsewhere:7", "local:elsewhere:abc:7"):
        assert not fresh.knows(type(grant)(key="a1", state="granted", engine_id=other))
