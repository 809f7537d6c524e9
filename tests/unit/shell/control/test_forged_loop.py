"""Records that a compromised node forges, played through the whole loop, its metrics, `status` and the page."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from rich.console import Console

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.evidence import gpu_faults
from supervisor.core.model.observed import UNUSABLE
from supervisor.shell.control import observe
from supervisor.shell.control.bounds import ITEMS, LARGEST, LARGEST_FLOAT, RECORD, SHORT, STRING, bounded
from supervisor.shell.control.engine_driver import EngineDriver
from supervisor.shell.control.journal import Journal
from supervisor.shell.control.loop import Loop, Machine
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import render, status
from supervisor.shell.metrics.telemetry import Telemetry
from supervisor.shell.web.snapshot import Live, snapshot
from supervisor.wire import keys
from supervisor.wire.records import (
    ExitObserved,
    Fact,
    GateGroup,
    GateObserved,
    Health,
    NodeObserved,
    Progress,
    decode,
    encode,
    version_of,
)
from tests.helpers.forged import OF_NODES, forged_of, least, tame
from tests.helpers.told import ToldWorld
from tests.unit.shell.records import Term

_NUMBER = re.compile(r"'i\d+'")
"""Number of an incident, which counts those of all groups."""

TRANSACTION = 1_500_000
"""Bytes of a request that etcd takes by default."""

LONG = "\ud800\u2028<b>" + "x" * 100_000


def wild(value: Any) -> Iterator[Any]:
    if isinstance(value, int):
        yield from (10**400, -(10**400))
    elif isinstance(value, float):
        yield from (float("nan"), float("inf"), -1e308)
    elif isinstance(value, str):
        yield LONG


@pytest.fixture(scope="module")
def world() -> ToldWorld:
    """Five groups that train, of which one has just crashed. The node of another turned."""
    world = ToldWorld(groups=5, spares=1, ranks=1)
    world.lead()
    world.bring_up()
    world.train(3)
    world.save(1, 3)
    world.round(0.1)
    world.crash(2)
    world.tell()
    return world


class _NoDeaths:
    look_after_s = float("inf")

    def look(self, mirror: Mirror, observed: Any) -> dict[str, Any]:
        return {}


class _Unlisted:
    def look(self, *_: Any) -> None:
        return None

    def forget(self, run: str) -> None: ...


class _Played:
    """Two turns of a leader on some values, and what people are shown of them."""

    def __init__(self, values: dict[str, bytes], folder: Path) -> None:
        store = MemoryStore()
        values = {key: value for key, value in values.items() if key != keys.LEADER}
        for at in range(0, len(values), 100):
            store.commit(dict([*values.items()][at : at + 100]))
        written, clock = len(store.commits), [0.0]
        machine = Machine(
            monotonic=lambda: clock[0],
            journal=lambda _: Journal(folder / "journal.jsonl"),
            folders=_Unlisted(),
            deaths=_NoDeaths(),
        )
        telemetry = Telemetry()
        leads = Loop(store, Term(store), EngineDriver(store, _Engine()), telemetry, machine=machine)  # type: ignore[arg-type]
        self.others: list[str] = []
        for _ in range(2):
            clock[0] += 1.5
            leads._turn()
            assert not leads.stands_down
            memory = observe.memory(leads._mirror, "run")
            groups = {g: group for g, group in memory.groups.items() if g != 1}
            incidents = {i.group: (i.kind, i.rung, i.reason) for i in memory.incidents.values() if i.group != 1}
            seat = (memory.lighthouse, memory.checkpoint, memory.phase, memory.silent)
            self.others.append(_NUMBER.sub("'i'", repr((groups, incidents, *seat))))
        generate_latest(telemetry.metrics.registry)
        self.most = max(sum(map(len, puts.values())) for puts in store.commits[written:])
        self._show(Mirror(store.list(keys.PREFIX)))
        leads._journals["run"].close(5.0)

    def _show(self, mirror: Mirror) -> None:
        record = observe.runs(mirror)["run"]
        found = status.run_status(mirror, record)
        nodes = status.node_status(mirror)
        console = Console(file=io.StringIO(), width=120)
        console.print(render.run(found, 1e9), render.nodes(nodes))
        json.dumps(status.as_json(found)), json.dumps(status.as_json(nodes))
        self.page = json.dumps(snapshot(mirror, record, Live(now=1e9)), allow_nan=False)
        self.page.encode()
        console.file.getvalue().encode()  # type: ignore[attr-defined]


class _Engine:
    name = "none"

    def list(self) -> list[Any]:
        return []


@pytest.fixture(scope="module")
def values(world: ToldWorld) -> dict[str, bytes]:
    return {item.key: item.value for item in world.store.list(keys.PREFIX).items}


@pytest.fixture(scope="module")
def right(values: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two turns of the others without a forgery: the crashed one starts again."""
    others = _Played(values, tmp_path_factory.mktemp("right")).others
    assert all("phase='starting'" in turn for turn in others)
    return others


@pytest.mark.parametrize("name", OF_NODES)
def test_no_value_of_a_record_stops_a_turn_or_changes_what_is_done_about_others(
    name: str, world: ToldWorld, values: dict[str, bytes], right: list[str], tmp_path: Path
) -> None:
    """A new field of a record, at any depth, is among what is forged."""
    (node,) = world.group(1).nodes
    key, kind = keys.PREFIX + name.replace("n1", node), OF_NODES[name]
    tried = 0
    for forged in forged_of(_honest(values, key, kind, node), kind, wild):
        tried += 1
        played = _Played({**values, key: _written(forged)}, tmp_path)
        assert played.others == right, repr(forged)[:2000]
        assert played.most < len(LONG), repr(forged)[:2000]
    assert tried > 3


@pytest.mark.parametrize("name", [*OF_NODES, "nodes/n1/zzz", "nodes/n1/health/zzz"])
def test_no_bytes_under_a_nodes_keys_stop_a_turn(
    name: str, world: ToldWorld, values: dict[str, bytes], right: list[str], tmp_path: Path
) -> None:
    (node,) = world.group(1).nodes
    key, kind = keys.PREFIX + name.replace("n1", node), OF_NODES.get(name)
    head = b'{"$kind":"%s","$version":' % getattr(kind, "__name__", "X").encode()
    own = encode(_honest(values, key, kind, node)) if kind is not None else b"{}"
    for forged in (
        b"",
        b"null",
        b"\xff\x00",
        b"[" * 100_000,
        head + b"99}",
        head + b"9" * 5000 + b"}",
        own.decode().encode("utf-16"),
        own[:-1] + b',"unknown":' + b'{"a":' * 500 + b"1" + b"}" * 501,
        own[:-1] + b',"node":"\xed\xa0\x80"}',
    ):
        assert _Played({**values, key: forged}, tmp_path).others == right, forged[:200]


def test_however_much_a_node_reports_a_transaction_holds_what_is_made_of_it(
    world: ToldWorld, values: dict[str, bytes], tmp_path: Path
) -> None:
    (node,) = world.group(1).nodes
    text = "\u2028" * STRING
    end = ExitObserved(exit_code=1, error_file=text, trace=text, last_words=text, kernel=text, disk=text)
    seen = decode(values[keys.observed(node)], NodeObserved)
    seen = replace(seen, trainers=tuple(replace(rank, state="exited", exit=end) for rank in seen.trainers))
    facts = [Fact(kind=kind, subject="", evidence=text) for kind in sorted(UNUSABLE | gpu_faults.KINDS) * 4]
    health = replace(decode(values[keys.health(node)], Health), facts=tuple(facts))
    forged = {keys.observed(node): encode(seen), keys.health(node): encode(health)}
    assert _Played({**values, **forged}, tmp_path).most < TRANSACTION / 3


def _written(record: Any) -> bytes:
    """Writes what our own programs would not: half a character as a key."""
    kind = type(record).__name__
    return json.dumps({"$kind": kind, "$version": version_of(kind), **asdict(record)}).encode()


def _honest(values: dict[str, bytes], key: str, kind: Any, node: str) -> Any:
    if key in values:
        return decode(values[key], kind)
    own = {"node": node, "host": node, "run": "run"}
    record = least(kind)
    return replace(record, **{name: value for name, value in own.items() if hasattr(record, name)})


def test_a_record_within_the_bounds_is_the_same_object() -> None:
    kind = OF_NODES["nodes/n1/observed"]
    for record in forged_of(least(kind), kind, tame):
        assert bounded(record, 100) is record
    lost = Progress(run="r", group=0, generation=1, rank=0, pid=1, sequence=1, phase="failed", loss=float("nan"))
    assert bounded(lost, 100) is lost, "a loss that is no number is honest"


def test_what_is_beyond_is_cut() -> None:
    health = decode(
        encode(
            replace(
                least(Health),
                problems=("a\ud800" * STRING,),
                load_1m=float("inf"),
                store_ms=float("nan"),
                sequence=10**30,
            )
        ),
        Health,
    )
    found = bounded(health, 100)
    assert found.problems == (("a\ufffd" * STRING)[:STRING],)
    assert (found.load_1m, found.store_ms, found.sequence) == (LARGEST_FLOAT, 0.0, LARGEST)
    assert len(bounded(health, RECORD + 1).problems[0]) == SHORT
    assert len(bounded(replace(health, problems=("a",) * 999), 100).problems) == ITEMS


def test_a_gate_reports_all_groups_of_a_run() -> None:
    groups = tuple(GateGroup(group=group, generation=1, hearing="beating") for group in range(1000))
    record = GateObserved(run="run", node="n1", generation=1, address="h:1", groups=groups)
    assert bounded(record, 100) is record
