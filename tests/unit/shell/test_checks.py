"""Nodes' reports of their checks, as the supervisor reads them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.ports.errors import Fatal
from supervisor.ports.store import Changes, Item
from supervisor.shell.control import cordons, observe, projection
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import hosts, render, status
from supervisor.wire import keys
from supervisor.wire.checks import CheckResult, from_line, to_line
from supervisor.wire.records import NodeCheck, decode, encode
from tests.unit.shell.control.test_loop import _loop, launched
from tests.unit.shell.inspect.test_status import text
from tests.unit.shell.records import MEMORY, registration

FULL = CheckResult(name="disk", outcome="failed", evidence="OSError: No space left on device")
FINE = CheckResult(name="memory", outcome="passed", evidence="9 GB/s copied", value=9.0, unit="GB/s")
WHY = "its checks failed on node h9.9 (before its first rank): disk: OSError: No space left on device"


def check(node: str = "h9.9", state: Any = "failed", began: int = 0, host: str = "h9") -> dict[str, bytes]:
    results = (FINE, FULL) if state == "failed" else (FINE,)
    record = NodeCheck(
        node=node, host=host, state=state, why="before its first rank", began=began,
        results=() if state == "pending" else results,
    )  # fmt: skip
    return {keys.check(node): encode(record)}


def suspicion(incident: str = "i1", at: float = 5.0, run: str = "run", freed: str = "") -> dict[str, bytes]:
    found = Suspicion(host="h9", run=run, incident=incident, kind=Kind.NODE_LOST, at=at, freed=freed)
    return projection.suspicion_records([found])


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    store = launched(tmp_path)
    for key, value in registration("h9.9", host="h9").items():
        store.put(key, value)
    return store


def put(store: MemoryStore, *values: dict[str, bytes]) -> int:
    """Puts these values; returns the revision of the last."""
    return [store.put(key, value) for found in values for key, value in found.items()][-1]


def mirror(store: MemoryStore) -> Mirror:
    return Mirror(store.list(keys.PREFIX))


def test_a_result_is_a_line() -> None:
    assert from_line(to_line(FINE)) == FINE
    for line in ("", "{", "[]", '{"name": "x"}', "7"):
        with pytest.raises(ValueError):
            from_line(line)


def test_a_failed_check_bars_its_host_for_every_run_until_the_next_one_passes(store: MemoryStore) -> None:
    put(store, check())
    seen = cordons.seen_by(mirror(store), "other")
    assert (seen["h9"].why, seen["h9"].ours) == (WHY, False)
    put(store, check("h9.77", "passed"))
    assert cordons.seen_by(mirror(store), "other") == {}, "the newest of the host, by whatever name its node had"


def test_one_that_cannot_be_read_bars_nothing(store: MemoryStore) -> None:
    put(store, {keys.check("h9.9"): b"{torn"})
    assert cordons.seen_by(mirror(store), "run") == {}


def test_a_person_frees_it_and_it_is_shown_until_then(store: MemoryStore) -> None:
    put(store, check())
    (row,) = [n for n in status.node_status(mirror(store)) if n.node == "h9.9"]
    assert (row.cordon, row.check is not None and row.check.state) == (WHY, "failed")
    assert json.dumps(status.as_json(row))
    assert "free again" in hosts.uncordon(store, mirror(store), "h9")
    assert cordons.by_host(mirror(store)) == {}
    with pytest.raises(Fatal):
        hosts.uncordon(store, mirror(store), "h9")


def test_a_node_that_is_being_checked_is_one_only_while_its_agent_lives(store: MemoryStore) -> None:
    put(store, check("n1", "pending", host="n1"))
    observed = observe.observed(mirror(store), "run", MEMORY, 1.0, 1.0)
    assert not observed.nodes["n1"].checking
    put(store, registration("n1", allocation="run-a1"))
    assert observe.observed(mirror(store), "run", MEMORY, 1.0, 1.0).nodes["n1"].checking
    assert "being checked (before its first rank)" in text(render.nodes(status.node_status(mirror(store))))


def test_a_check_that_runs_hides_none_of_another_node_there_that_has_failed(store: MemoryStore) -> None:
    put(store, check("h9.1", "failed", host="h9"))
    put(store, check("h9.2", "pending", host="h9"))
    assert cordons.by_host(mirror(store))["h9"].failed
    assert cordons.seen_by(mirror(store), "run")["h9"].failed


def many(count: int, failed: int) -> dict[str, bytes]:
    return {
        k: v
        for i in range(count)
        for k, v in check(f"m{i:02}", "failed" if i < failed else "passed", host=f"m{i:02}").items()
    }


def barred(store: MemoryStore) -> list[str]:
    return [host for host, cordon in cordons.seen_by(mirror(store), "run").items() if cordon.why]


def test_one_cause_that_fails_the_checks_of_many_bars_no_host_for_every_run(store: MemoryStore) -> None:
    put(store, many(10, failed=2))
    assert barred(store) == ["m00", "m01"]
    put(store, many(10, failed=3))
    assert barred(store) == []
    put(store, {keys.check("m00"): encode(NodeCheck(node="m00", host="m00", state="passed", why="repeated"))})
    assert barred(store) == ["m01", "m02"]
    said = hosts.uncordon(store, mirror(store), "m01", "m02")
    assert said.count("is free again, for every run (it was: its checks failed on node m0") == 2
    assert barred(store) == []


def test_one_alone_bars_its_host_however_few_there_are(store: MemoryStore) -> None:
    put(store, check("h9.9"))
    assert barred(store) == ["h9"]


def test_all_that_failed_on_a_host_is_forgotten_when_a_person_frees_it(store: MemoryStore) -> None:
    put(store, registration("h9.8", host="h9"))
    put(store, check("h9.8"), check("h9.9"))
    hosts.uncordon(store, mirror(store), "h9")
    assert barred(store) == []
    put(store, check("h9.8"), check("h9.9", "passed"))
    assert barred(store) == [], "the newest counts"
    assert WHY.replace("h9.9", "h9.8") in hosts.uncordon(store, mirror(store), "h9.8")
    assert store.get(keys.check("h9.8")) is None
    assert store.get(keys.check("h9.9")) is not None


def unsure(state: Any = "unknown", node: str = "h9.9", host: str = "h9") -> dict[str, bytes]:
    late = CheckResult(name="device", outcome="unknown", evidence="no answer within 120 s")
    record = NodeCheck(node=node, host=host, state=state, why="before its first rank", results=(FINE, late))
    return {keys.check(node): encode(record)}


def test_what_could_not_be_done_is_its_nodes_alone_and_a_person_may_say_that_it_is_well(store: MemoryStore) -> None:
    put(store, registration("n1", allocation="run-a1"), unsure(), check("n1", host="n1"))
    words = "its checks could not run on node h9.9 (before its first rank): device: no answer within 120 s"
    assert "h9" not in cordons.seen_by(mirror(store), "run")
    assert f"given no group: {words}" in text(render.nodes(status.node_status(mirror(store))))
    view = observe.observed(mirror(store), "run", MEMORY, 1.0, 1.0).nodes["n1"]
    assert (view.failed, view.unsure) == (WHY.replace("h9.9", "n1"), "")
    put(store, unsure(node="n1", host="n1"))
    view = observe.observed(mirror(store), "run", MEMORY, 1.0, 1.0).nodes["n1"]
    assert (view.failed, view.unsure, view.checking) == ("", words.replace("h9.9", "n1"), False)
    assert f"(it was: {words})" in hosts.uncordon(store, mirror(store), "h9.9")
    with pytest.raises(Fatal, match="is not cordoned"):
        hosts.uncordon(store, mirror(store), "h9.9")


def test_what_is_repeated_stands_until_it_ends(store: MemoryStore) -> None:
    repeated = NodeCheck(node="n1", host="n1", state="pending", why="repeated", results=(FINE, FULL))
    put(store, registration("n1", allocation="run-a1"), {keys.check("n1"): encode(repeated)})
    view = observe.observed(mirror(store), "run", MEMORY, 1.0, 1.0).nodes["n1"]
    assert (bool(view.failed), view.checking) == (True, False)
    assert barred(store) == ["n1"]
    put(store, unsure("pending", "n1", "n1"))
    view = observe.observed(mirror(store), "run", MEMORY, 1.0, 1.0).nodes["n1"]
    assert (view.failed, bool(view.unsure), view.checking) == ("", True, True)
    assert barred(store) == []


def test_what_a_round_reads_of_them_is_made_again_only_when_one_has_changed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, many(10, failed=1))
    copy, read = mirror(store), []
    record = Mirror.record
    monkeypatch.setattr(Mirror, "record", lambda self, key, kind: read.append(key) or record(self, key, kind))

    def look() -> tuple[int, list[str]]:
        read.clear()
        found = sorted(host for host, cordon in cordons.seen_by(copy, "run").items() if cordon.why)
        cordons.freed_by_checks(copy)
        return len(read), found

    assert look()[1] == ["m00"]
    copy.apply(Changes(98, puts=(Item(keys.health("m03"), b"{}", 98, 98),)))
    assert look() == (0, ["m00"])
    copy.apply(Changes(99, puts=(Item(keys.check("m00"), many(1, 0)[keys.check("m00")], 99, 99),)))
    assert look()[1] == []
    hosts.cordon(store, mirror(store), "m03", "its fan", drain=False)
    copy.apply(Changes(100, puts=tuple(store.list(keys.CORDONS).items)))
    assert look()[1] == ["m03"]
    copy.wrote({keys.check("m04"): check("m04", host="m04")[keys.check("m04")]}, 101)
    assert look()[1] == ["m03", "m04"]
    copy.apply(Changes(102, deletes=(keys.check("m04"),)))
    assert look()[1] == ["m03"]
    copy.apply(Changes(103, reset=True))
    assert look()[1] == []


# --- freed ---


def held(store: MemoryStore) -> list[tuple[str, bool]]:
    found = [decode(item.value, Suspicion) for item in store.list(keys.CORDONS).items]
    return sorted((s.incident, not s.freed) for s in found)


def test_the_leader_frees_a_host_from_what_was_before_its_passed_check(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = put(store, suspicion("i1"))
    put(store, suspicion("i2", at=9.0, run="other"))
    put(store, check(state="passed", began=before))
    loop = _loop(store)
    loop.step()
    assert held(store) == [("i1", False), ("i2", True)]
    (said,) = [r for r in caplog.records if "is free of incident i1 of run run" in r.getMessage()]
    assert getattr(said, "about", None) == {"run": "run", "incident": "i1"}
    seen = cordons.seen_by(mirror(store), "run")["h9"]
    assert (seen.ours, seen.passed) == (False, "the checks that it passed on node h9.9 (before its first rank)")
    assert "within a day" in seen.why, "i2 came after the check, and within a day of i1"
    put(store, check(state="passed", began=store.revision))
    loop.step()
    assert held(store) == [("i1", False), ("i2", True)], "only a person frees it now"
    hosts.uncordon(store, mirror(store), "h9")
    loop.step()
    assert held(store) == []


def test_both_of_two_are_freed_by_a_check_after_them(store: MemoryStore) -> None:
    last = put(store, suspicion("i1"), suspicion("i2", at=9.0, run="other"))
    assert cordons.seen_by(mirror(store), "third")["h9"].why
    put(store, check(state="passed", began=last))
    _loop(store).step()
    assert held(store) == [("i1", False), ("i2", False)]
    assert cordons.seen_by(mirror(store), "third")["h9"].why == ""


@pytest.mark.parametrize("state", ["failed", "pending"])
def test_nothing_else_frees_it(store: MemoryStore, state: str) -> None:
    last = put(store, suspicion())
    put(store, check(state=state, began=last))
    _loop(store).step()
    assert held(store) == [("i1", True)]


def test_a_persons_cordon_stays(store: MemoryStore) -> None:
    hosts.cordon(store, mirror(store), "h9", "its fan", drain=False)
    last = put(store, suspicion())
    put(store, check(state="passed", began=last))
    _loop(store).step()
    assert "its fan" in cordons.seen_by(mirror(store), "run")["h9"].why


def test_what_a_person_frees_at_the_same_moment_does_not_come_back_nor_end_the_term(store: MemoryStore) -> None:
    last = put(store, suspicion())
    put(store, check(state="passed", began=last))
    loop = _loop(store)
    hosts.uncordon(store, mirror(store), "h9")
    loop._free_checked()  # it has not seen that yet
    assert held(store) == []
    loop.step()
    assert held(store) == []
