"""The local engine: nodes are processes on this machine, taken from a pool of names in `HOME/local/pool.json`.

All state is in files and outlives the supervisor: the next one finds the nodes by pid and start time. The nodes belong
to this home and this machine. A supervisor with another home, or on another machine, has an engine that knows none of
them.
"""

from __future__ import annotations

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

from supervisor.core.model.observed import Grant
from supervisor.ports.engine import Request, RequestRefused
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.processes import holder, is_running, start_ticks
from supervisor.wire import environment as decided
from supervisor.wire import gpus
from supervisor.wire.security import SecurityError, file_of_node, load

log = logging.getLogger(__name__)

POLL_S = 0.25
"""Seconds until a lost allocation is seen; a list costs only a few small local files."""

KILL_AFTER_S = 10.0
"""Seconds from TERM to KILL of a node: twice the 5 s that its shim gives the trainers."""

STOPPED = "no node of this machine runs any more: all of them were stopped at once, or the machine lost its power"
"""Reason of every allocation in that case."""

WITHHELD = "withheld.json"
"""File beside the pool, present while no node is given."""


@dataclass(frozen=True)
class PoolNode:
    """A node that the engine may give. `netns` names the network namespace that stands for its machine, if any, and
    `switch` the switches that it is at."""

    name: str
    address: str = "127.0.0.1"
    netns: str = ""
    switch: str = ""


@dataclass(frozen=True)
class Pool:
    """All nodes of this machine, and how they are started."""

    nodes: tuple[PoolNode, ...]
    etcd: str
    report_s: float = 1.0
    cold: bool = False
    security: str = ""
    """Path of the starter's security file; the nodes' own files are where it says."""
    host: str = field(default_factory=socket.gethostname)
    """Name of the machine on which the nodes run: the home's disk may be shared."""
    gpus: tuple[str, ...] = field(default_factory=gpus.there)
    """GPUs as CUDA_VISIBLE_DEVICES named them when the pool was made, so that every starter divides the same ones."""

    def raised_to(self, nodes: int) -> str:
        """Returns how a person raises the pool to that number of nodes."""
        command = f"supervisor up --nodes {nodes}"
        if self.gpus:
            return f"its nodes divide this machine's GPUs: for more, run `supervisor down`, then `{command}`"
        return f"`{command}` enlarges it, even while an `up` runs"

    def save(self, home: Path) -> None:
        _write(_folder(home) / "pool.json", asdict(self))

    @staticmethod
    def load(home: Path) -> Pool | None:
        """Reads the pool; None if there is none. Raises Fatal if it cannot be read."""
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
                f"{path} is not a pool of nodes: move it away; `supervisor up --nodes N` makes a new one"
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
    """When TERM was sent, by this machine's clock; 0 if it was not."""


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
        """Returns this machine's pool, if any. Reads the file again, to find a pool that was made or raised later."""
        self._pool = Pool.load(self._home)
        return None if self._elsewhere() else self._pool

    def _elsewhere(self) -> bool:
        """Returns true if the nodes belong to another machine: its pids mean nothing here."""
        return self._pool is not None and self._pool.host != socket.gethostname()

    def acquire(self, request: Request) -> None:
        """Asks for an allocation. Leaves no trace without a pool: another supervisor may get the same request. Raises
        RequestRefused for several nodes: each node of this machine has an allocation of its own."""
        if request.nodes > 1:
            raise RequestRefused(
                f"allocation {request.key} is of {request.nodes} nodes, and the local engine gives one at a time: "
                "request an allocation for each node"
            )
        if not self._here() or self._path(request.key).exists():
            return
        self._save(_Allocation(key=request.key, slots=request.slots, lease_s=request.lease_s, exclude=request.exclude))
        self._serve_pending()

    def replace(self, key: str, request: Request, because: str) -> None:
        """Asks for the new node and gives the old one back. `request.exclude` alone keeps us off the old node."""
        self.acquire(request)
        self.release(key)

    def events(self, changed: Callable[[], None]) -> None:
        """Never calls: files send no notifications."""

    def release(self, key: str) -> None:
        allocation = self._load(key)
        if allocation is not None and allocation.state == "pending" and allocation.node:
            # We may have died right after starting its node: then only the node's lock shows it.
            allocation = self._adopt(allocation) or allocation
            self._save(replace(allocation, state="gone"))
        if allocation is not None and not self._ended(allocation):
            self._end(allocation)
        elif allocation is not None:
            self._path(key).unlink(missing_ok=True)

    def take_away(self, key: str, reason: str) -> None:
        """Takes an allocation away as a scheduler does: it is gone and its processes are ended (TERM, then KILL)."""
        allocation = self._load(key)
        if allocation is None:
            raise Fatal(f"there is no allocation {key}")
        self._save(replace(allocation, state="gone", reason=reason))
        self._end(replace(allocation, state="gone", reason=reason))

    def withhold(self, reason: str) -> None:
        """Simulates a cluster without free nodes: requests stay pending until `give_again`, or until this process ends.
        Raises Fatal if another process does so already."""
        if why := self._withheld():
            raise Fatal(f"the nodes of {self._home} are withheld already: {why}")
        about = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "reason": reason}
        _write(_folder(self._home) / WITHHELD, about)

    def give_again(self) -> None:
        """Gives nodes again, if this process withheld them."""
        path = _folder(self._home) / WITHHELD
        if path.exists() and json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()

    def list(self) -> Sequence[Grant]:
        found, withheld, full = self._all(), "", ""
        if any(a.state == "pending" for a in found):  # else nothing is given, and this is asked four times a second
            self._serve_pending()
            found = self._all()
            withheld, full = self._withheld(), self._full(sum(a.state == "pending" for a in found))
        allocations = self._stopped_at_once([self._with_its_shim(a) for a in found])
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
        """Returns the allocation with its current shim, which may have replaced the one started for it."""
        if allocation.state != "granted" or _alive(allocation):
            return allocation
        adopted = self._adopt(allocation)
        if adopted is None:
            return allocation
        self._save(adopted)
        return adopted

    def _stopped_at_once(self, allocations: Sequence[_Allocation]) -> Sequence[_Allocation]:
        """Returns the allocations, all gone if no shim of this machine lives: the machine was stopped, or lost its
        power.

        One dead shim among live ones is a lost node, not a lost allocation: its lease shows it.
        """
        granted = [a for a in allocations if a.state == "granted"]
        # a shim that ended since it was looked at may have left its node to another
        if not granted or any(_alive(a) or self._adopt(a) is not None for a in granted):
            return allocations
        gone = {a.key: replace(a, state="gone", reason=STOPPED) for a in granted}
        for allocation in gone.values():
            self._save(allocation)
        return [gone.get(a.key, a) for a in allocations]

    def knows(self, grant: Grant) -> bool:
        """Returns true for our ids. Older versions wrote `local-PID` or no id, without an owner."""
        return not grant.engine_id or grant.engine_id.startswith((self._id, "local-"))

    def alive(self) -> Sequence[str]:
        """Returns the names of the nodes whose shims run."""
        return [a.node for a in self._all() if a.node and (_alive(a) or self._adopt(a) is not None)]

    def stop_all(self, deadline_s: float) -> Sequence[str]:
        """Ends every node. Returns those that did not end in time."""
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
            # Save the name first: if we die in between, the next supervisor starts this node again and not a second
            # one. The shim's own lock ensures that only one lives.
            allocation = replace(allocation, node=free[0].name)
            self._save(allocation)
            self._start(allocation, free[0], pool)

    def free(self) -> int:
        """Returns the number of nodes of the pool that could be given now; 0 without a pool."""
        pool = self._here()
        return len({n.name for n in pool.nodes} - self._held(self._all())) if pool is not None else 0

    def _held(self, allocations: Sequence[_Allocation]) -> set[str]:
        """Returns the nodes that are given, or are still ending."""
        return {a.node for a in allocations if a.node and (a.state == "pending" or not self._ended(a))}

    def held(self) -> int:
        """Returns the number of nodes given, including those of a formerly larger pool."""
        return len(self._held(self._all()))

    def _full(self, pending: int) -> str:
        """Returns why pending requests stay pending; empty if they do not."""
        pool = self._pool
        if pool is None or self.free():
            return ""
        held = self.held()
        return f"{held} nodes are held, of a pool of {len(pool.nodes)}; {pool.raised_to(max(held, len(pool.nodes)) + pending)}"

    def _withheld(self) -> str:
        """Returns why no node is given; empty if nodes are, or if the withholding process was killed."""
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
        command += ["--switch", node.switch] if node.switch else []
        if pool.security:
            command += ["--security", _security(pool.security, node.name)]
        if node.netns:
            # `ip netns exec` would mount a /sys without the memory cgroups in which the shim sees out-of-memory kills
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
        """Returns the allocation with the shim that now holds the node's lock; None if none does."""
        pid = holder(self._home / "nodes" / allocation.node / "shim.lock")
        ticks = start_ticks(pid) if pid else None
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
    """Returns our environment as filtered for a node, with the node's GPUs."""
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
        os.waitpid(allocation.pid, os.WNOHANG)  # reap it if it is our own child: leave no zombie
    except ChildProcessError:
        pass
    return is_running(allocation.pid, allocation.ticks)


def _signal(allocation: _Allocation, number: int) -> None:
    """Signals exactly this process, or none: the pidfd pins it between the check and the signal."""
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
            os.fsync(file.fileno())  # an empty file after a power loss would need a person
        temporary.rename(path)
    except OSError as error:
        raise Retryable(f"cannot write {path}: {error.strerror}", after_s=5.0) from error
