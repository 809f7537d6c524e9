"""The local engine: nodes are processes on this machine, taken from a pool of names in `HOME/local/pool.json`.

All state is in files, so that it outlives the supervisor: whoever comes next finds the nodes by pid and start time.
They are this home's and this machine's; a supervisor that has another home, or this home on another machine, has an engine
that knows none of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from supervisor.core.model import Grant
from supervisor.ports.engine import Request
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.processes import is_running, start_ticks
from supervisor.wire import environment as decided
from supervisor.wire import gpus
from supervisor.wire.security import SecurityError, file_of_node, load

log = logging.getLogger(__name__)

POLL_S = 0.25
"""A list is a few small files of this machine; a lost allocation is seen within this."""

KILL_AFTER_S = 10.0
"""From TERM to KILL of a node: twice the 5 s that its shim gives the trainers."""

STOPPED = "no node of this machine runs any more: all of them were stopped at once, or the machine lost its power"
"""The reason of every allocation then."""

WITHHELD = "withheld.json"
"""Beside the pool, while no node is given."""


@dataclass(frozen=True)
class PoolNode:
    """A node that the engine may give: `netns` names a network namespace that stands for its machine, if any."""

    name: str
    address: str = "127.0.0.1"
    netns: str = ""


@dataclass(frozen=True)
class Pool:
    """All nodes there are, and how they are started."""

    nodes: tuple[PoolNode, ...]
    etcd: str
    report_s: float = 1.0
    cold: bool = False
    security: str = ""
    """Path of the security file of whoever starts the nodes; theirs are beside it."""
    host: str = field(default_factory=socket.gethostname)
    """Name of the machine that the nodes are processes of: the home's disk may be shared."""
    gpus: tuple[str, ...] = field(default_factory=gpus.there)
    """As CUDA_VISIBLE_DEVICES names them, when the pool was made: all nodes divide the same, whoever starts them."""

    def raised_to(self, nodes: int) -> str:
        """How a person gives it that number of nodes."""
        command = f"supervisor up --nodes {nodes}"
        if self.gpus:
            return f"as they divide this machine's GPUs, more take `supervisor down`, then `{command}`"
        return f"`{command}` raises it, also while an `up` runs"

    def save(self, home: Path) -> None:
        _write(_folder(home) / "pool.json", asdict(self))

    @staticmethod
    def load(home: Path) -> Pool | None:
        """None when there is none. Raises Fatal where it cannot be read."""
        path = _folder(home) / "pool.json"
        try:
            body = json.loads(path.read_text())
            return Pool(
                nodes=tuple(PoolNode(**n) for n in body["nodes"]),
                etcd=body["etcd"],
                report_s=body["report_s"],
                cold=body["cold"],
                security=body.get("security", ""),
                host=body.get("host") or socket.gethostname(),
                gpus=tuple(body.get("gpus", ())),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Fatal(f"the pool of nodes {path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(
                f"{path} is no pool of nodes: move it away, and `supervisor up --nodes N` makes another"
            ) from error


@dataclass(frozen=True)
class _Allocation:
    key: str
    slots: int
    lease_s: int
    exclude: tuple[str, ...] = ()
    state: Literal["pending", "granted", "gone"] = "pending"
    node: str = ""
    pid: int = 0
    ticks: int = 0
    reason: str = ""
    term_unix_s: float = 0.0
    """When TERM was sent; this machine's clock."""


class LocalEngine:
    """Implements ports.engine.Engine."""

    name = "local"

    def __init__(self, home: Path) -> None:
        self.poll_s = POLL_S
        self._home = home
        self._id = f"local:{socket.gethostname()}:{hashlib.sha256(bytes(home.resolve())).hexdigest()[:12]}:"
        self._pool: Pool | None = None
        if not self._here():
            log.warning(
                "no local nodes here: this supervisor can lead, but gives no allocations; `supervisor up` makes a pool"
            )

    def _here(self) -> Pool | None:
        """The pool, if it is of this machine; one that is made or raised later is found."""
        self._pool = Pool.load(self._home)
        return None if self._elsewhere() else self._pool

    def _elsewhere(self) -> bool:
        """Whether the nodes are another machine's: its pids mean nothing here."""
        return self._pool is not None and self._pool.host != socket.gethostname()

    def acquire(self, request: Request) -> None:
        """Where there is no pool it leaves no trace: whoever has one may be asked for the same."""
        if not self._here() or self._path(request.key).exists():
            return
        self._save(_Allocation(key=request.key, slots=request.slots, lease_s=request.lease_s, exclude=request.exclude))
        self._serve_pending()

    def replace(self, key: str, request: Request, because: str) -> None:
        """There is nobody to keep off the old node but us: `request.exclude` does."""
        self.acquire(request)
        self.release(key)

    def events(self, changed: Callable[[], None]) -> None:
        """Files do not call."""

    def release(self, key: str) -> None:
        allocation = self._load(key)
        if allocation is not None and allocation.state == "pending" and allocation.node:
            # We may have died right after starting its node: then only the node's lock knows.
            allocation = self._adopt(allocation) or allocation
            self._save(replace(allocation, state="gone"))
        if allocation is not None and not self._ended(allocation):
            self._end(allocation)
        elif allocation is not None:
            self._path(key).unlink(missing_ok=True)

    def take_away(self, key: str, reason: str) -> None:
        """What a scheduler does to us: the allocation is gone and its processes are ended (TERM, then KILL)."""
        allocation = self._load(key)
        if allocation is None:
            raise Fatal(f"there is no allocation {key}")
        self._save(replace(allocation, state="gone", reason=reason))
        self._end(replace(allocation, state="gone", reason=reason))

    def withhold(self, reason: str) -> None:
        """What a cluster does to us in which no node is free: what is asked for stays pending, until `give_again`, and no longer
        than this process lives. Raises Fatal where another does so already."""
        if why := self._withheld():
            raise Fatal(f"the nodes of {self._home} are withheld already: {why}")
        about = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "reason": reason}
        _write(_folder(self._home) / WITHHELD, about)

    def give_again(self) -> None:
        """If it was this process that withheld the nodes."""
        path = _folder(self._home) / WITHHELD
        if path.exists() and json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()

    def list(self) -> Sequence[Grant]:
        self._serve_pending()
        allocations = self._stopped_at_once([self._with_its_shim(a) for a in self._all()])
        withheld, full = self._withheld(), self._full(sum(a.state == "pending" for a in allocations))
        grants = []
        for allocation in allocations:
            if allocation.state == "gone" and not self._ended(allocation):
                self._end(allocation)
            grants.append(
                Grant(
                    key=allocation.key,
                    state=allocation.state,
                    nodes=(allocation.node,) if allocation.node else (),
                    engine_id=f"{self._id}{allocation.pid}",
                    reason=(withheld or full) if allocation.state == "pending" else allocation.reason,
                    exhausted=allocation.state == "pending" and not withheld and bool(full),
                    ended=allocation.state == "gone" and self._ended(allocation),
                )
            )
        return grants

    def _with_its_shim(self, allocation: _Allocation) -> _Allocation:
        """The allocation, with the shim that lives now where that is not the one that was started for it."""
        if allocation.state != "granted" or _alive(allocation):
            return allocation
        adopted = self._adopt(allocation)
        if adopted is None:
            return allocation
        self._save(adopted)
        return adopted

    def _stopped_at_once(self, allocations: Sequence[_Allocation]) -> Sequence[_Allocation]:
        """The allocations, all gone where no shim of this machine lives any more: it was stopped, or lost its power.

        One dead shim among live ones is a lost node, not a lost allocation: its lease tells.
        """
        granted = [a for a in allocations if a.state == "granted"]
        if not granted or any(map(_alive, granted)):
            return allocations
        gone = {a.key: replace(a, state="gone", reason=STOPPED) for a in granted}
        for allocation in gone.values():
            self._save(allocation)
        return [gone.get(a.key, a) for a in allocations]

    def knows(self, grant: Grant) -> bool:
        """`local-PID`, and none, are what was written before the id said whose it is."""
        return not grant.engine_id or grant.engine_id.startswith((self._id, "local-"))

    def alive(self) -> Sequence[str]:
        """Names of the nodes whose shims run."""
        return [a.node for a in self._all() if a.node and (_alive(a) or self._adopt(a) is not None)]

    def stop_all(self, deadline_s: float) -> Sequence[str]:
        """End every node; returns those that would not go."""
        until = time.monotonic() + deadline_s
        left = self._all()
        while left and time.monotonic() < until:
            for allocation in left:
                self.release(allocation.key)
            left = self._all()
            if left:
                time.sleep(0.05)
        return [a.node for a in left]

    def _serve_pending(self) -> None:
        pool = self._here()
        if pool is None:
            return
        allocations = self._all()
        held = self._held(allocations)
        if self._withheld():
            held |= {n.name for n in pool.nodes}
        for allocation in allocations:
            if allocation.state != "pending":
                continue
            free = [n for n in pool.nodes if n.name == allocation.node] or [
                n for n in pool.nodes if n.name not in held and n.name not in allocation.exclude
            ]
            if not free:
                continue
            held.add(free[0].name)
            # The name first: when we die in between, the next of us starts this node again, not a second one, and
            # the shim's own lock sees to it that only one lives.
            allocation = replace(allocation, node=free[0].name)
            self._save(allocation)
            self._start(allocation, free[0], pool)

    def free(self) -> int:
        """How many nodes of the pool could be given now; 0 where there is no pool."""
        pool = self._here()
        return len({n.name for n in pool.nodes} - self._held(self._all())) if pool is not None else 0

    def _held(self, allocations: Sequence[_Allocation]) -> set[str]:
        """Nodes that are given, or are still ending."""
        return {a.node for a in allocations if a.node and (a.state == "pending" or not self._ended(a))}

    def held(self) -> int:
        """How many nodes are given, also those of a pool that was larger before."""
        return len(self._held(self._all()))

    def _full(self, pending: int) -> str:
        """Why what is pending stays so; empty: it does not."""
        pool = self._pool
        if pool is None or self.free():
            return ""
        held = self.held()
        return f"{held} nodes are held, of a pool of {len(pool.nodes)}; {pool.raised_to(max(held, len(pool.nodes)) + pending)}"

    def _withheld(self) -> str:
        """Why no node is given; empty: they are. Whoever withheld them may have been killed."""
        try:
            about = json.loads((_folder(self._home) / WITHHELD).read_text())
        except FileNotFoundError:
            return ""
        return str(about["reason"]) if is_running(about["pid"], about["ticks"]) else ""

    def _start(self, allocation: _Allocation, node: PoolNode, pool: Pool) -> None:
        command = [sys.executable, "-m", "agents.cli", "run", "--node", node.name, "--home", str(self._home)]
        command += ["--etcd", pool.etcd, "--address", node.address, "--allocation", allocation.key]
        command += ["--slots", str(allocation.slots), "--lease-s", str(allocation.lease_s)]
        command += ["--report-s", f"{pool.report_s:g}"] + (["--cold"] if pool.cold else [])
        if pool.security:
            command += ["--security", _security(pool.security, node.name)]
        if node.netns:
            # not `ip netns exec`: it mounts a /sys without the memory cgroups in which the shim sees who was killed for memory
            command = ["nsenter", f"--net=/run/netns/{node.netns}", *command]
        folder = self._home / "nodes" / node.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "shim.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=environment(pool, node, allocation.slots),
                )
        except OSError as error:
            raise Retryable(f"cannot start node {node.name}: {error}", after_s=5.0) from error
        ticks = start_ticks(process.pid) or 0
        self._save(replace(allocation, state="granted", pid=process.pid, ticks=ticks))

    def _adopt(self, allocation: _Allocation) -> _Allocation | None:
        """The allocation with the shim that holds the node's lock now, if another than ours does."""
        try:
            with (self._home / "nodes" / allocation.node / "shim.lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    pid = int(lock.read().strip() or 0)
        except (OSError, ValueError):
            return None
        ticks = start_ticks(pid)
        return replace(allocation, pid=pid, ticks=ticks) if ticks is not None else None

    def _end(self, allocation: _Allocation) -> None:
        if not _alive(allocation):
            return
        now = time.time()
        if not allocation.term_unix_s:
            _signal(allocation, signal.SIGTERM)
            self._save(replace(allocation, term_unix_s=now))
        elif now - allocation.term_unix_s > KILL_AFTER_S:
            _signal(allocation, signal.SIGKILL)

    def _ended(self, allocation: _Allocation) -> bool:
        return not allocation.pid or not _alive(allocation)

    def _path(self, key: str) -> Path:
        return _folder(self._home) / f"allocation-{key}.json"

    def _load(self, key: str) -> _Allocation | None:
        if self._elsewhere():
            return None
        try:
            body = json.loads(self._path(key).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Fatal(f"{self._path(key)} cannot be read ({error}): remove it, and end the node by hand") from error
        return _Allocation(**{**body, "exclude": tuple(body["exclude"])})

    def _all(self) -> Sequence[_Allocation]:
        found = []
        for path in sorted(_folder(self._home).glob("allocation-*.json")):
            allocation = self._load(path.stem.removeprefix("allocation-"))
            if allocation is not None:
                found.append(allocation)
        return found

    def _save(self, allocation: _Allocation) -> None:
        _write(self._path(allocation.key), asdict(allocation))


def environment(pool: Pool, node: PoolNode, slots: int) -> dict[str, str]:
    """Ours as decided for a node, with the node's GPUs."""
    ours = decided.of_node(os.environ, (node.address,))
    ours.pop(gpus.SHARED, None)
    if pool.gpus:
        own, shared = gpus.of_node(pool.gpus, pool.nodes.index(node), len(pool.nodes), slots)
        ours |= {gpus.VISIBLE: ",".join(own)} | ({gpus.SHARED: "1"} if shared else {})
    return ours


def _security(file: str, node: str) -> str:
    try:
        return file_of_node(load(file), node)
    except SecurityError as error:
        raise Retryable(f"cannot start node {node}: {error}", after_s=5.0) from error


def _alive(allocation: _Allocation) -> bool:
    try:
        os.waitpid(allocation.pid, os.WNOHANG)  # our own child when we started it: leave no zombie
    except ChildProcessError:
        pass
    return is_running(allocation.pid, allocation.ticks)


def _signal(allocation: _Allocation, number: int) -> None:
    """To this very process, or to none: the pidfd holds on to it between the look and the signal."""
    try:
        handle = os.pidfd_open(allocation.pid)
    except ProcessLookupError:
        return
    try:
        if is_running(allocation.pid, allocation.ticks):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass  # it ended by itself
    finally:
        os.close(handle)


def _folder(home: Path) -> Path:
    return home / "local"


def _write(path: Path, body: object) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with temporary.open("w") as file:
            file.write(json.dumps(body))
            file.flush()
            os.fsync(file.fileno())  # a file that is empty after a power loss would need a person
        temporary.rename(path)
    except OSError as error:
        raise Retryable(f"cannot write {path}: {error.strerror}", after_s=5.0) from error
