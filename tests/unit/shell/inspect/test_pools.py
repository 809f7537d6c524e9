"""Requests about pools: what is done, and what is refused with which sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import AllocationSpec, GroupsSpec, HoldSpec, PolicySpec, RunSpec, SlurmSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.dev import suspend
from supervisor.shell.inspect import client, pool_fit, pools, relaunch, removal, render, specs, status
from supervisor.shell.runfile import parse
from supervisor.wire import keys
from supervisor.wire.records import Account, Control, RunRecord, decode, encode
from tests.unit.shell.pools import POOL, RUN, lab, launched, lent, mirror, placed, store_of, wants

TOY = {**launched(RUN, placed(), at=2.0), **wants("toy", 1), **lent("toy", 1, 2)}
HELD = Memory(phase="running", held_since=100.0, idle_since=200.0, clock=300.0)
CLOCK = {keys.account("lab"): encode(Account(clock=300.0, clocks=((0.0, 1_000_000.0),)))}


def shown(found: Any) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(found)
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


def control(store: MemoryStore, name: str) -> Control:
    item = store.get(keys.control(name))
    return decode(item.value, Control) if item is not None else Control()


# --- hold ---


def test_a_pool_is_the_runs_allocation_without_its_groups() -> None:
    run = RunSpec(
        name="lab", groups=GroupsSpec(count=4, ranks_per_group=8), allocation=AllocationSpec(nodes=5, spares=1)
    )
    spec = pools.spec_of(run, None, None)
    assert spec.is_pool
    assert not run.is_pool
    assert (spec.groups.slots, spec.allocation.nodes, spec.allocation.spares) == (8, 6, 0)
    spec = pools.spec_of(run, 9, 60.0)
    assert (spec.allocation.nodes, spec.hold.for_s) == (9, 60.0)
    assert pools.spec_of(replace(run, hold=HoldSpec(for_s=5.0)), 9, None).hold.for_s == 5.0


def test_a_pool_is_not_held_on_a_pool() -> None:
    with pytest.raises(Fatal, match="takes its nodes from pool lab: remove"):
        pools.spec_of(RUN, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("8h", 28800.0), ("90m", 5400.0), ("1.5d", 129600.0), ("30 s", 30.0)])
def test_durations(text: str, seconds: float) -> None:
    assert pools.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["8", "h", "-1h", "0h", "8 hours", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: give a number above 0 with s, m, h or d"):
        pools.seconds_of(text)


# --- the run file ---


def test_a_run_on_a_pool_has_no_spares_of_its_own_unless_it_asks_for_some() -> None:
    spec = parse.parse(parse.on_pool({"name": "toy", "allocation": {"engine": "slurm"}}, "lab"))
    assert (spec.allocation.engine, spec.allocation.pool, spec.allocation.spares) == ("pool", "lab", 0)
    asked = parse.parse(parse.on_pool({"name": "toy", "allocation": {"spares": 1}}, "lab"))
    assert asked.allocation.spares == 1
    assert parse.on_pool({"name": "toy"}, "") == {"name": "toy"}


def test_a_run_file_of_slurm_serves_for_the_pool_and_for_the_run_on_it() -> None:
    body = {"name": "toy", "allocation": {"engine": "slurm", "slurm": {"partition": "gpu", "warn_s": 120}}}
    assert parse.parse(parse.on_pool(body, "lab")).allocation.slurm.partition == "gpu"
    body["allocation"]["slurm"]["flags"] = ["--wait"]  # type: ignore[index]
    with pytest.raises(parse.RunFileError, match=r"allocation\.slurm\.flags"):
        parse.parse(parse.on_pool(body, "lab"))


@pytest.mark.parametrize(
    ("allocation", "why"),
    [
        ({"engine": "pool"}, 'allocation.pool = "": engine = "pool" needs the name of a pool'),
        ({"pool": "lab"}, "allocation.pool = 'lab': has no effect with engine = 'local'"),
    ],
)
def test_an_engine_and_a_pool_that_do_not_agree_are_refused(allocation: dict[str, Any], why: str) -> None:
    with pytest.raises(parse.RunFileError, match=why.replace("(", r"\(")):
        parse.parse({"name": "toy", "allocation": allocation})


def test_no_run_file_makes_a_pool() -> None:
    with pytest.raises(parse.RunFileError, match=r"groups\.count = 0: must be at least 1"):
        parse.parse({"name": "toy", "groups": {"count": 0}})


# --- launch ---


REFUSED: list[tuple[dict[str, bytes], RunSpec, str]] = [
    ({}, RUN, "there is no pool 'lab'; known: none. Make one: supervisor hold --name lab"),
    (launched(replace(RUN, name="lab"), placed()), RUN, "lab is a run, not a pool: `supervisor pools` lists those"),
    (lab(Memory(phase="stopped")), RUN, "pool lab has ended: hold another one"),
    (lab(Memory(phase="stopping")), RUN, "pool lab gives its nodes back: hold another one"),
    ({**lab(), keys.control("lab"): encode(Control(stop=True))}, RUN, "pool lab gives its nodes back"),
    ({**lab(HELD, replace(POOL, hold=HoldSpec(for_s=100.0))), **CLOCK}, RUN, "the time of pool lab is over"),
    (
        lab(),
        replace(RUN, groups=GroupsSpec(ranks_per_group=8)),
        "each node of pool lab has room for 1 ranks, and run toy needs 8 on each (groups.ranks_per_group = 8, "
        "groups.nodes_per_group = 1): hold a pool by this run file",
    ),
    (
        lab(),
        replace(RUN, allocation=replace(RUN.allocation, nodes=3, spares=1)),
        "pool lab has 3 nodes, and run toy needs 4",
    ),
    (
        lab(),
        replace(RUN, policy=PolicySpec(node_lease_s=9)),
        "have a lease of 5 s, and run toy has policy.node_lease_s = 9",
    ),
]


@pytest.mark.parametrize(("there", "spec", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_a_run_is_not_launched_on_a_pool_that_cannot_serve_it(
    there: dict[str, bytes], spec: RunSpec, why: str, tmp_path: Path
) -> None:
    store = store_of(there)
    for refuse in (lambda: client.refuse_unfit(store, spec), lambda: client.launch(store, spec, tmp_path)):
        with pytest.raises(Fatal) as error:
            refuse()
        assert why in str(error.value)
    assert store.get(keys.spec("toy")) is None
    assert not (tmp_path / "toy").exists()


def test_a_run_on_a_pool_takes_over_how_its_nodes_are_taken_away(tmp_path: Path) -> None:
    on_slurm = replace(POOL, allocation=replace(POOL.allocation, engine="slurm", slurm=SlurmSpec(warn_s=77)))
    record = client.launch(store_of(lab(None, on_slurm)), RUN, tmp_path)
    assert record.spec.allocation == replace(RUN.allocation, slurm=SlurmSpec(warn_s=77))


def test_a_pool_that_is_released_at_the_same_moment_gets_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(lab())

    def and_then(mirror: Any, pool: str) -> Any:
        found = real(mirror, pool)
        client.change_control(store, "lab", lambda known: replace(known, stop=True))
        return found

    real = pool_fit.as_it_is
    monkeypatch.setattr(pool_fit, "as_it_is", and_then)
    with pytest.raises(Fatal, match="pool lab was changed at the same moment: repeat this"):
        client.launch(store, RUN, tmp_path)
    assert store.get(keys.spec("toy")) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pool": "other"}, "allocation.pool: lab -> other: a relaunch keeps the nodes of a run"),
        ({"nodes": 4}, "pool lab has 3 nodes, and run toy needs 4"),
    ],
)
def test_a_run_is_relaunched_on_the_nodes_of_its_own_pool_alone(change: dict[str, Any], why: str) -> None:
    seen = mirror(store_of(lab(), TOY))
    record = client.choose_run(seen, "toy")
    relaunch.refuse(seen, record, replace(RUN, allocation=replace(RUN.allocation, nodes=3)))
    with pytest.raises(Fatal, match=why):
        relaunch.refuse(seen, record, replace(RUN, allocation=replace(RUN.allocation, **change)))


def test_a_run_that_has_ended_is_relaunched_on_a_pool_that_still_lends() -> None:
    seen = mirror(store_of(lab(Memory(phase="stopped")), launched(RUN, Memory(phase="stopped"))))
    with pytest.raises(Fatal, match="pool lab has ended"):
        relaunch.refuse(seen, client.choose_run(seen, "toy"), replace(RUN, chaos="allowed"))


# --- release ---


def test_a_pool_that_no_run_uses_is_released() -> None:
    store = store_of(lab())
    assert pools.release(store, mirror(store), "lab") == "pool lab: its 3 nodes are given back to the engine"
    assert control(store, "lab").stop


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (TOY, r"pool lab is used by run toy: end it first \(supervisor stop toy\)"),
        (launched(replace(RUN, name="other")), "pool lab is used by run other"),
        ({**TOY, **launched(replace(RUN, name="other"))}, "pool lab is used by runs other, toy: end them first"),
        ({keys.memory("lab", "run"): encode(Memory(phase="stopped"))}, "pool lab has ended: it holds nothing any more"),
    ],
)
def test_a_pool_that_is_used_or_over_is_not_released(there: dict[str, bytes], why: str) -> None:
    store = store_of(lab(), there)
    with pytest.raises(Fatal, match=why):
        pools.release(store, mirror(store), "lab")
    assert not control(store, "lab").stop


def test_a_run_is_no_pool_and_a_pool_no_run() -> None:
    store = store_of(lab(), TOY)
    seen = mirror(store)
    with pytest.raises(Fatal, match="toy is a run, not a pool: supervisor stop toy ends it"):
        pools.release(store, seen, "toy")
    with pytest.raises(Fatal, match="there is no pool 'lob'; known: lab"):
        pools.release(store, seen, "lob")
    with pytest.raises(Fatal, match="lab is a pool, not a run: look with supervisor status lab"):
        client.choose_run(seen, "lab")
    assert client.choose_run(seen, "").spec.name == "toy"
    assert [line.run for line in specs.runs(seen)] == ["toy"]
    assert client.not_over(seen, resumable=True) == {"toy": "running"}


def test_the_newest_run_is_meant_though_a_pool_is_newer() -> None:
    seen = mirror(store_of({**lab(), **launched(POOL, placed(), at=9.0)}, TOY))
    assert client.choose_run(seen, "").spec.name == "toy"


def test_a_pool_that_holds_nodes_is_not_removed() -> None:
    store = store_of(lab())
    with pytest.raises(Fatal, match="is running"):
        removal.remove(store, "lab", with_files=False)
    store = store_of(lab(Memory(phase="stopped")))
    with pytest.raises(Fatal, match="its nodes n1, n2, n3 are not given back"):
        removal.remove(store, "lab", with_files=False)


# --- look ---


def test_a_pool_is_shown_with_its_nodes_and_users() -> None:
    store = store_of(lab(HELD, replace(POOL, hold=HoldSpec(for_s=3600.0))), TOY, CLOCK)
    found = pools.pool_status(mirror(store), record_of(store))
    assert [(n.node, n.allocation, n.state, n.run) for n in found.nodes] == [
        ("n1", "lab-a1", "granted", ""),
        ("n2", "lab-a2", "granted", "toy"),
        ("n3", "lab-a3", "granted", ""),
    ]
    assert found.used_by == {"toy": 1}
    assert found.ends_unix_s == 1_000_000.0 + 100.0 + 3600.0
    assert shown(render.pool(found, 1_003_000.0))[0:2] == [
        "pool phase engine nodes used by idle since (UTC) ends (UTC)",
        "lab running local 3 toy (1) - 01-12 14:48:20 (11 min 40 s left)",
    ]


def test_a_node_that_is_silent_is_not_counted() -> None:
    store = store_of(lab())
    store.commit({}, deletes=[keys.registration("n3")])
    found = pools.pool_status(mirror(store), record_of(store))
    assert [n.state for n in found.nodes] == ["granted", "granted", "silent"]
    assert "lab running local 2 of 3 - - -" in shown(render.pools([found], 0.0))


def test_an_idle_pool_warns() -> None:
    store = store_of(lab(HELD, replace(POOL, hold=HoldSpec(warn_idle_s=60.0))), CLOCK)
    found = pools.pool_status(mirror(store), record_of(store))
    assert found.waiting == ("no run has used pool lab for 1 min: give its nodes back with supervisor release lab",)
    assert found.idle_since_unix_s == 1_000_200.0


def test_pools_are_listed_with_those_that_hold_nodes_first() -> None:
    old = launched(replace(POOL, name="old"), Memory(phase="stopped", held_since=1.0), at=9.0)
    store = store_of(old, lab(), TOY)
    found = pools.every(mirror(store))
    assert [(p.pool, p.phase, p.used_by) for p in found] == [("lab", "running", {"toy": 1}), ("old", "stopped", {})]
    assert shown(render.pools([], 0.0)) == ["no pools: supervisor hold --nodes 4 makes one"]


def test_nodes_show_who_uses_them() -> None:
    store = store_of(lab(), TOY)
    by_node = {n.node: n for n in status.node_status(mirror(store))}
    assert {name: n.lent_to for name, n in by_node.items()} == {"n1": "", "n2": "toy", "n3": ""}
    assert "lab-a2 (toy)" in "\n".join(shown(render.nodes([by_node["n2"]])))


# --- `supervisor up` ends ---


def test_an_up_that_ends_stops_pools_and_resumes_them_before_their_runs(tmp_path: Path) -> None:
    def in_home(spec: RunSpec, memory: Memory) -> dict[str, bytes]:
        record = RunRecord(spec=spec, run_dir=str(tmp_path / spec.name), launched_unix_s=1.0)
        return {keys.spec(spec.name): encode(record), keys.memory(spec.name, "run"): encode(memory)}

    elsewhere = replace(POOL, name="far", allocation=replace(POOL.allocation, engine="slurm"))
    afar = replace(RUN, name="afar", allocation=replace(RUN.allocation, pool="far"))
    over = Memory(phase="stopped")
    of = (in_home(replace(RUN, name="a-run"), over), in_home(POOL, over), in_home(elsewhere, over), in_home(afar, over))
    store = store_of(*of, {keys.control(n): encode(Control(stop=True, suspended=True)) for n in ("lab", "a-run")})
    assert [r.spec.name for r in suspend.of_home(mirror(store), tmp_path)] == ["lab", "a-run"]
    before = len(store.commits)
    assert not suspend.resume(store, tmp_path)
    assert [list(puts) for puts in store.commits[before:]] == [[keys.control("lab")], [keys.control("a-run")]]


def record_of(store: MemoryStore, name: str = "lab") -> RunRecord:
    record = pools.named(mirror(store), name)
    assert record is not None
    return record
