"""The client for asyncio: the same methods, with the same arguments, and nothing of its own."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

import supervisor.client as everstep
from fault_injection.doubles.memory_store import MemoryStore
from supervisor.client import aio, breakpoints, live, past, pool
from supervisor.shell import etcd
from tests.unit.shell.records import run_values


def public(kind: type) -> dict[str, list[str]]:
    """Names of the public methods, and of their arguments."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: list(inspect.signature(method).parameters) for name, method in methods if not name.startswith("_")}


@pytest.mark.parametrize(
    ("twin", "of"),
    [
        (aio.AsyncRun, live.Run),
        (aio.AsyncClient, live.Client),
        (aio.AsyncPool, pool.Pool),
        (aio.AsyncBreakpoint, breakpoints.Breakpoint),
        (aio.AsyncPastRun, past.PastRun),
    ],
)
def test_each_method_has_its_twin(twin: type, of: type) -> None:
    assert public(twin) == public(of)
    assert all(inspect.iscoroutinefunction(getattr(twin, name)) for name in public(of))
    assert inspect.signature(aio.aconnect).parameters.keys() == inspect.signature(live.connect).parameters.keys()


def test_what_a_coroutine_returns_and_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = MemoryStore()
    store.commit(run_values())
    monkeypatch.setattr(etcd, "connect", lambda *_, **__: store)

    async def use() -> None:
        async with await everstep.aconnect("127.0.0.1:1", home=tmp_path) as client:
            (listed,) = await client.runs()
            run = await client.run("run")
            assert (listed.name, run.name, run.folder) == ("run", "run", Path("/runs/run"))
            status, incidents = await asyncio.gather(run.status(), run.incidents())
            assert (status.phase, [i.id for i in incidents]) == ("running", ["i1"])
            assert await run.pause() == "run: paused"
            assert (await run.status()).paused
            with pytest.raises(everstep.EverstepError, match="run run is not at step 7 in time"):
                await run.wait("step=7", timeout_s=0)

    asyncio.run(use())
    assert store._closed
