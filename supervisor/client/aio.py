"""The client for asyncio: each coroutine runs a method of the other client in a thread, and adds nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from supervisor.client import past
from supervisor.client.breakpoints import Breakpoint
from supervisor.client.live import Client, Run, connect
from supervisor.client.past import PastRun
from supervisor.client.pool import Pool

if TYPE_CHECKING:
    from supervisor.client.mesh import Mesh
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.code.sync import Done
    from supervisor.shell.inspect.execution import Executed
    from supervisor.shell.inspect.pools import PoolStatus

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Twin(Generic[R]):
    """A twin of a Run or a PastRun."""

    run: R


def _in_a_thread(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[_Twin[R], P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: _Twin[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.run, *args, **kwargs)

    return call


async def aconnect(
    etcd: str | None = None, home: str | Path | None = None, security: str | Path | None = None
) -> AsyncClient:
    """Connects as `connect` does: `async with await aconnect() as client`."""
    return AsyncClient(await asyncio.to_thread(connect, etcd, home, security))


class AsyncClient:
    """A Client whose methods are coroutines."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection. The runs go on."""
        await asyncio.to_thread(self.client.close)

    async def runs(self) -> tuple[AsyncRun, ...]:
        """Returns all runs, as Client.runs does."""
        return tuple(map(AsyncRun, await asyncio.to_thread(self.client.runs)))

    async def run(self, name: str = "") -> AsyncRun:
        """Returns a run, as Client.run does."""
        return AsyncRun(await asyncio.to_thread(self.client.run, name))

    async def launch(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec,
        name: str | None = None,
        set: Mapping[str, Any] | None = None,
        on: str = "",
        resume_from: str | Path | None = None,
    ) -> AsyncRun:
        """Starts a run, as Client.launch does."""
        return AsyncRun(await asyncio.to_thread(self.client.launch, run, name, set, on, resume_from))

    async def execute(self, node: str, *command: str, limit_s: float = 60.0) -> Executed:
        """Runs a command on a node, as Client.execute does."""
        return await asyncio.to_thread(self.client.execute, node, *command, limit_s=limit_s)

    async def hold(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec | None = None,
        name: str = "pool",
        nodes: int | None = None,
        for_: str | None = None,
    ) -> AsyncPool:
        """Holds nodes, as Client.hold does."""
        return AsyncPool(await asyncio.to_thread(self.client.hold, run, name, nodes, for_))

    async def pool(self, name: str) -> AsyncPool:
        """Returns a pool, as Client.pool does."""
        return AsyncPool(await asyncio.to_thread(self.client.pool, name))

    async def pools(self) -> tuple[AsyncPool, ...]:
        """Returns all pools, as Client.pools does."""
        return tuple(map(AsyncPool, await asyncio.to_thread(self.client.pools)))


class AsyncPool:
    """A Pool whose methods are coroutines."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.name = pool.name

    def __repr__(self) -> str:
        return f"<AsyncPool {self.name}>"

    async def status(self) -> PoolStatus:
        """Returns its status, as Pool.status does."""
        return await asyncio.to_thread(self.pool.status)

    async def launch(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec,
        name: str | None = None,
        set: Mapping[str, Any] | None = None,
        resume_from: str | Path | None = None,
    ) -> AsyncRun:
        """Starts a run on its nodes, as Pool.launch does."""
        return AsyncRun(await asyncio.to_thread(self.pool.launch, run, name, set, resume_from))

    async def mesh(self, nodes: int | None = None) -> Mesh:
        """Makes a Monarch mesh on its idle nodes, as Pool.mesh does."""
        return await asyncio.to_thread(self.pool.mesh, nodes)

    async def sync(self, folder: str | Path, most_mib: float = 1024.0) -> Done:
        """Makes a folder the code of its runs, as Pool.sync does."""
        return await asyncio.to_thread(self.pool.sync, folder, most_mib)

    async def release(self) -> str:
        """Gives its nodes back, as Pool.release does."""
        return await asyncio.to_thread(self.pool.release)


class AsyncRun(_Twin[Run]):
    """A Run whose methods are coroutines. One that is cancelled goes on in its thread: give `wait` a `timeout_s`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.name, self.folder, self.notes = run.name, run.folder, run.notes

    def __repr__(self) -> str:
        return f"<AsyncRun {self.name}>"

    status = _in_a_thread(Run.status)
    incidents = _in_a_thread(Run.incidents)
    explain = _in_a_thread(Run.explain)
    logs = _in_a_thread(Run.logs)
    stacks = _in_a_thread(Run.stacks)
    execute = _in_a_thread(Run.execute)

    async def breakpoints(self) -> tuple[AsyncBreakpoint, ...]:
        """Returns the ranks that stand at a `breakpoint()`, as Run.breakpoints does."""
        return tuple(map(AsyncBreakpoint, await asyncio.to_thread(self.run.breakpoints)))

    metrics = _in_a_thread(Run.metrics)
    wait = _in_a_thread(Run.wait)
    relaunch = _in_a_thread(Run.relaunch)
    scale = _in_a_thread(Run.scale)
    sync = _in_a_thread(Run.sync)
    pause = _in_a_thread(Run.pause)
    resume = _in_a_thread(Run.resume)
    stop = _in_a_thread(Run.stop)
    restart = _in_a_thread(Run.restart)
    remove = _in_a_thread(Run.remove)


async def aopen(folder: str | Path) -> AsyncPastRun:
    """Opens the folder of a run, as `open` does."""
    return AsyncPastRun(await asyncio.to_thread(past.open, folder))


class AsyncPastRun(_Twin[PastRun]):
    """A PastRun whose methods are coroutines."""

    def __init__(self, run: PastRun) -> None:
        self.run = run
        self.name, self.folder = run.name, run.folder

    def __repr__(self) -> str:
        return f"<Async{repr(self.run)[1:]}"

    incidents_list = _in_a_thread(PastRun.incidents_list)
    steps_list = _in_a_thread(PastRun.steps_list)
    ledger = _in_a_thread(PastRun.ledger)
    explain = _in_a_thread(PastRun.explain)
    logs = _in_a_thread(PastRun.logs)
    incidents = _in_a_thread(PastRun.incidents)
    steps = _in_a_thread(PastRun.steps)
    goodput = _in_a_thread(PastRun.goodput)


class AsyncBreakpoint:
    """A Breakpoint whose methods are coroutines."""

    def __init__(self, breakpoint: Breakpoint) -> None:
        self.breakpoint = breakpoint
        self.at = breakpoint.at

    @property
    def stands(self) -> bool:
        """False: it goes on, or has ended."""
        return self.breakpoint.stands

    def __repr__(self) -> str:
        return f"<Async{repr(self.breakpoint)[1:]}"

    async def command(self, line: str) -> str:
        """Gives the debugger a command, as Breakpoint.command does."""
        return await asyncio.to_thread(self.breakpoint.command, line)

    async def resume(self) -> None:
        """Lets it go on, as Breakpoint.resume does."""
        await asyncio.to_thread(self.breakpoint.resume)
