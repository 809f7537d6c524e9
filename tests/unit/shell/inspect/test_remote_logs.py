"""Following nodes that do not always answer: no line is lost or comes twice, and each trouble is one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking
from supervisor.shell.inspect.remote_logs import ALL_LINES, Follower, Wish, nodes_of, of_leader, read
from supervisor.wire import keys
from supervisor.wire.node_requests import Item, NodeRequest
from supervisor.wire.records import Registration, RunRecord, encode
from tests.unit.shell.records import SPEC

Answer = list[Item] | str | Retryable
"""Items, a sentence on why there are none, or etcd goes away."""


class Nodes:
    """Nodes whose answers are scripted; they stand in the place of `asking.answers`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lines: int = 20) -> None:
        self.store, self.notes, self.asked = MemoryStore(), list[str](), list[dict[str, NodeRequest]]()
        self.script: list[dict[str, Answer]] = []
        monkeypatch.setattr(asking, "answers", self._answers)
        self.register("n1")
        self.register("n2")
        mirror = Mirror(self.store.list(keys.PREFIX))
        self.log = Follower(self.store, mirror, Wish(run="run", lines=lines), self.notes.append)

    def register(self, node: str, of: str = "run") -> None:
        record = Registration(
            node=node, address="127.0.0.1", role="trainer", allocation="", slots=1, agent_pid=1, version=""
        )
        self.store.put(keys.registration(node), encode(record))
        grant = Grant(key=f"{of}-{node}", state="granted", nodes=(node,), engine_id="")
        self.store.put(keys.grant(of, grant.key), encode(grant))

    def _answers(
        self, store: Any, mirror: Any, requests: Mapping[str, NodeRequest], missing: dict[str, str]
    ) -> Iterator[tuple[str, list[Item]]]:
        self.asked.append(dict(requests))
        for node, answer in self.script.pop(0).items():
            if isinstance(answer, Retryable):
                raise answer
            if isinstance(answer, str):
                missing[node] = answer
            yield node, [line(1.0, "cut")] if isinstance(answer, str) else answer

    def new(self, **script: Answer) -> list[str]:
        self.script.append(script)
        return [entry.text for entry in self.log.new()]


def line(t: float, text: str) -> Item:
    return {"t": t, "what": "line", "group": 0, "generation": 1, "rank": 0, "text": text}


def given(at: int, *items: Item, behind: bool = False) -> list[Item]:
    return [*items, {"position": {"at": at}, "behind": behind, "empty": False}]


def test_a_node_of_its_pool_that_a_group_has_left_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    for node in ("n1", "n3", "gone"):
        nodes.register(node, of="lab")
    nodes.store.commit({}, [keys.registration("gone")])
    of_pool = replace(SPEC, allocation=AllocationSpec(engine="pool", pool="lab"))
    for spec, asked in ((SPEC, ["n1", "n2"]), (of_pool, ["n1", "n2", "n3"])):
        nodes.store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir="/r", launched_unix_s=1.0)))
        assert nodes_of(Mirror(nodes.store.list(keys.PREFIX)), "run") == asked


def test_each_node_is_asked_from_where_its_answer_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch, lines=7)
    assert nodes.new(n1=given(1, line(2.0, "b")), n2=given(5, line(1.0, "a"), behind=True)) == ["a", "b"]
    assert nodes.log.behind is True
    assert nodes.new(n1=given(2, line(4.0, "d")), n2=given(6, line(3.0, "c"))) == ["c", "d"]
    assert [nodes.log.behind] == [False]
    assert [{node: r.position for node, r in asked.items()} for asked in nodes.asked] == [
        {"n1": {}, "n2": {}}, {"n1": {"at": 1}, "n2": {"at": 5}},
    ]  # fmt: skip
    assert nodes.asked[0]["n1"].lines == 7


def test_an_answer_that_is_not_whole_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    nodes.new(n1=given(1), n2=given(5))
    assert nodes.new(n1=given(2, line(1.0, "a")), n2="its agent has ended meanwhile: ask again") == ["a"]
    assert nodes.new(n1=given(3), n2=given(6, line(2.0, "b"))) == ["b"]
    assert [asked["n2"].position for asked in nodes.asked] == [{}, {"at": 5}, {"at": 5}]
    assert nodes.notes == [], "once may be an agent that has just started"


def test_a_node_that_stays_away_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    nodes.new(n1=given(1), n2=given(5))
    for _ in range(3):
        nodes.new(n1=given(2), n2="it is away")
    assert nodes.notes == ["n2: it is away"]
    nodes.new(n1=given(2), n2=given(6))
    assert nodes.notes == ["n2: it is away", "n2: it answers again"]
    nodes.new(n1=given(2), n2=[{"position": {}}])
    nodes.new(n1=given(2), n2=[])
    assert nodes.notes[2:] == [f"n2: {asking.NOT_READ}"]


def test_what_came_before_etcd_went_away_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    nodes.new(n1=given(1), n2=given(5))
    assert nodes.new(n1=given(2, line(1.0, "a")), n2=Retryable("etcd is away")) == ["a"]
    assert nodes.new(n1=Retryable("etcd is away")) == []
    assert nodes.new(n1=given(3, line(2.0, "b")), n2=given(6)) == ["b"]
    assert nodes.asked[-1]["n1"].position == {"at": 2}
    assert nodes.notes == ["etcd is away; this goes on once etcd answers", "etcd answers again"]


def test_a_node_that_comes_later_gives_what_it_has_since_the_follow_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what a pool's node has of an earlier time of the run there."""
    nodes = Nodes(monkeypatch)
    nodes.new(n1=given(1), n2=given(5))
    nodes.register("n3")
    assert nodes.new(n1=given(1), n2=given(5), n3=given(1, line(1.0, "c"))) == ["c"]
    request = nodes.asked[-1]["n3"]
    assert (request.lines, request.since_s) == (ALL_LINES, pytest.approx(0.0, abs=60.0))


@pytest.mark.parametrize("first", ["its agent cannot read the request", Retryable("etcd is away"), "none"])
def test_a_first_look_without_a_log_is_waited_out(monkeypatch: pytest.MonkeyPatch, first: Answer) -> None:
    """Its agent is older or has just started, etcd is away, or nothing is printed yet."""
    nodes = Nodes(monkeypatch)
    nodes.store.put(keys.spec("run"), b"{}")
    nodes.log = Follower(nodes.store, Mirror(nodes.store.list(keys.PREFIX)), Wish(run="run"), nodes.notes.append)
    none: Item = {"position": {"at": 1}, "behind": False, "empty": True}
    given_first = [none] if first == "none" else first
    nodes.new(n1=given_first, n2=given_first)
    assert not nodes.log.empty
    nodes.new(n1=given_first, n2=given_first)
    assert nodes.notes, "a person sees why nothing is shown"
    assert nodes.new(n1=given(1, line(1.0, "a")), n2=given(5)) == ["a"]


def test_a_run_that_is_over_and_has_no_log_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    none: Item = {"position": {"at": 1}, "behind": False, "empty": True}
    nodes.new(n1=[none], n2=[none])
    assert nodes.log.empty, "its spec is gone"


def test_positions_of_many_nodes_are_written_in_parts_that_etcd_takes() -> None:
    puts = {f"k{n}": b"x" * (asking.CHUNK_BYTES // 3) for n in range(7)}
    chunks = [*asking._chunks(puts)]
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    assert {k: v for chunk in chunks for k, v in chunk.items()} == puts


def test_of_a_run_that_has_no_nodes_any_node_may_have_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool's nodes keep the files of a run that is over. A follower asks all of them only once."""
    nodes = Nodes(monkeypatch)
    for node in ("n1", "n2"):
        nodes.store.commit({}, deletes=[keys.grant("run", f"run-{node}")])
    none: Item = {"position": {"at": 1}, "behind": False, "empty": True}
    assert nodes.new(n1=given(1, line(1.0, "a")), n2=[none]) == ["a"]
    nodes.new(n1=given(1))
    assert [[*asked] for asked in nodes.asked] == [["n1", "n2"], ["n1"]]
    nodes.script.append({"n1": [line(1.0, "a")]})
    found, missing = read(nodes.store, Mirror(nodes.store.list(keys.PREFIX)), Wish(run="run"))
    assert ([entry.text for entry in found], missing) == (["a"], {})


def test_the_leaders_log_without_a_leader_is_a_sentence() -> None:
    store = MemoryStore()
    with pytest.raises(Fatal, match="the leader gives no log: no supervisor leads"):
        of_leader(store, Mirror(store.list(keys.PREFIX)), Wish(run=""))
