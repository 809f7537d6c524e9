"""`supervisor up`: runs etcd (unless one is given), a supervisor, the service host and the local pool of nodes, on this
machine.

It may die at any moment: the next one in the same home adopts what lives and starts what is missing. Training ends only
by a person's order: Ctrl-C, TERM or `supervisor down`. Without a pool it is the program of a control-plane job
(docs/SLURM.md), one on each host, in a shared home.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.ports.errors import Fatal, PortError, Retryable
from supervisor.shell.control import observe
from supervisor.shell.control.leader import has_ended
from supervisor.shell.dev import suspend
from supervisor.shell.dev.home import noted, system_folder
from supervisor.shell.dev.up_lock import POOL_LOCK, alone
from supervisor.shell.dev.up_parts import SERVICE_HOST, SUPERVISOR, Up
from supervisor.shell.engines.local import LocalEngine, Pool, PoolNode
from supervisor.shell.processes import holder
from supervisor.shell.signals import Notice, ended_by_signals, not_interrupted, notices
from supervisor.wire import keys
from supervisor.wire.address import taken, told
from supervisor.wire.records import LeaderRecord, RecordError, decode
from supervisor.wire.security import PRIVATE, Security, SecurityError, file_of_node, load, refuse_listener

LOOK_S = 0.5
"""Seconds between checks of the parts."""

READY_WITHIN_S = 30.0
"""Seconds that a first start may take, until a supervisor leads and the service host is registered."""

DOWN_WITHIN_S = suspend.STOP_WITHIN_S + 60.0
"""Longest end of `up`, in seconds: the runs' last checkpoints, then 10 s a part, 20 s the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of an `up`, as a person gives them."""

    etcd: str = ""
    """Endpoints of an existing etcd; empty: `up` starts its own."""
    address: str = "127.0.0.1"
    name: str = SERVICE_HOST
    """Node name of the service host."""
    node_folder: Path | None = None
    """Where the service host keeps its records, when not in the home."""
    cold: bool = False
    """Nodes have no warm processes."""
    security: Security = Security()
    with_prometheus: bool = False


@contextmanager
def up(
    home: Path,
    nodes: Sequence[PoolNode],
    options: Options,
    *,
    say: Callable[[str], None] = print,
    on_notice: Callable[[], str] | None = None,
) -> Iterator[Up]:
    """Adopts or starts all parts, and ends them on exit. Without nodes it runs only a supervisor and a service host,
    for an existing etcd. `on_notice` handles SIGUSR1, even while waiting for a predecessor. Raises Fatal, Retryable
    or SecurityError with a sentence if something is in the way; an earlier `up`'s parts are then left alone."""
    os.umask(PRIVATE)
    for node in (options.name, *(node.name for node in nodes)):
        file_of_node(options.security, node)
    home = system_folder(home)
    started = Up(
        home=home,
        address=options.address,
        name=options.name,
        pool=bool(nodes),
        node_folder=options.node_folder,
        security=options.security,
        endpoint=options.etcd,
        notice=Notice(on_notice),
    )
    noticing = contextlib.nullcontext() if nodes and on_notice is None else notices(started.notice)
    with ended_by_signals(), noticing, alone(started, say):
        try:
            _begin(started, nodes, options, say)
        except BaseException:
            with not_interrupted():
                started.leave() if started.found else started.stop()
            raise
        wished = False
        try:
            yield started
            wished = True
        except KeyboardInterrupt:
            wished = True
            raise
        finally:
            with not_interrupted():
                # no error of ours may end what trained before us
                left = started.stop() if wished or not started.found else started.leave()
            if left:
                say(f"these did not end: {', '.join(left)}")


def _begin(started: Up, nodes: Sequence[PoolNode], options: Options, say: Callable[[str], None]) -> None:
    started.look()
    if started.found:
        _refuse_another_system(started, options.etcd)
    started.address = _own(started.address, options.etcd, started.security)
    started.plan(options.etcd)
    for part in started.parts:
        if nodes and part.name == SUPERVISOR:
            _save_pool(started, nodes, options.cold, say)
        try:
            part.begin()
        except OSError as error:
            raise Fatal(f"cannot start {part.name}: {error}") from error
    if nodes:
        started.save()
    _wait_ready(started, say)
    if options.with_prometheus:
        started.start_prometheus(say)


def _refuse_another_system(started: Up, etcd: str) -> None:
    """Refuses settings that differ from those of adopted parts, which keep their etcd, address and certificates."""
    about = noted(started.home.parent)
    wanted = {"given": etcd, "address": started.address, "security": started.security.path, "name": started.name}
    differ = {key: about[key] for key, value in wanted.items() if key in about and about[key] != value}
    if differ:
        was = ", ".join(f"{'etcd' if key == 'given' else key} {value or 'of its own'}" for key, value in differ.items())
        raise Fatal(
            f"processes that still run in {started.home.parent} were started with {was}: end them first with `supervisor down`"
        )
    if not etcd:
        started.endpoint = about.get("etcd", "")


def _save_pool(started: Up, nodes: Sequence[PoolNode], cold: bool, say: Callable[[str], None]) -> None:
    pool = Pool(nodes=tuple(nodes), etcd=started.endpoint, cold=cold, security=started.security.path)
    old = Pool.load(started.home)
    if old is not None and old.gpus and len(old.nodes) != len(nodes) and LocalEngine(started.home).alive():
        say(f"the pool keeps its {len(old.nodes)} nodes while one of them runs: they divide this machine's GPUs")
        pool = replace(pool, nodes=old.nodes)
    pool.save(started.home)


def pool_size(home: Path) -> int:
    """Returns the number of nodes in the pool of this home; 0 if there is no pool."""
    pool = Pool.load(system_folder(home))
    return len(pool.nodes) if pool is not None else 0


def raised(home: Path, nodes: Sequence[PoolNode]) -> str:
    """Gives the running `up` of this home more nodes. Returns what was done; empty if none runs, or it has as many."""
    folder = system_folder(home)
    pool = Pool.load(folder)
    if pool is None or len(nodes) <= len(pool.nodes) or not holder(folder / POOL_LOCK):
        return ""
    if pool.gpus:
        raise Fatal(
            f"the pool keeps its {len(pool.nodes)} nodes while `supervisor up` runs: they divide this machine's GPUs"
        )
    more = nodes[len(pool.nodes) :]
    for node in more if pool.security else ():
        file_of_node(load(pool.security), node.name)
    replace(pool, nodes=(*pool.nodes, *more)).save(folder)
    return f"the pool of the `supervisor up` that runs in {home} has {len(nodes)} nodes now, {len(pool.nodes)} before"


def down(home: Path, say: Callable[[str], None]) -> None:
    """Ends the `up` of this home as Ctrl-C does, or what a killed one has left. Raises Fatal if nothing runs."""
    folder = system_folder(home)
    pid = holder(folder / POOL_LOCK)
    if pid:
        os.kill(pid, signal.SIGTERM)
        say(f"ending the `supervisor up` (pid {pid}) in {home}: its runs are stopped with a last checkpoint first")
        until = time.monotonic() + DOWN_WITHIN_S
        while holder(folder / POOL_LOCK) == pid:
            if time.monotonic() > until:
                raise Fatal(f"the `supervisor up` (pid {pid}) has not ended within {DOWN_WITHIN_S:.0f} s: repeat this")
            time.sleep(0.1)
        return
    about = noted(home)
    started = Up(
        home=folder,
        address=about.get("address", "127.0.0.1"),
        name=about.get("name", SERVICE_HOST),
        security=load(about["security"]) if about.get("security") else Security(),
        endpoint=about.get("etcd", ""),
    )
    if not folder.is_dir() or not started.look():
        raise Fatal(f"nothing of a `supervisor up` runs in {home}")
    with ended_by_signals(), alone(started, say):
        started.plan(about.get("given", ""))
        for part in started.parts:
            part.begin()
        started.suspend(say)
        with not_interrupted():
            left = started.stop()
    if left:
        raise Fatal(f"these did not end: {', '.join(left)}")


def _own(address: str, etcd: str, security: Security) -> str:
    """Returns the address, `auto` resolved. Raises Fatal if it cannot be listened on, SecurityError if it may not."""
    try:
        found = told(address, etcd.split(",")[0].strip())
    except (OSError, ValueError) as error:
        raise Fatal(str(error)) from error
    refusal = refuse_listener("what this host listens on", found, security)
    if refusal is not None:
        raise SecurityError(refusal)
    why = taken(found, 0)
    if why:
        raise Fatal(f"cannot listen on {found}: {why}; give an --address of this machine")
    return found


def _wait_ready(started: Up, say: Callable[[str], None]) -> None:
    """Waits until a supervisor leads and the service host is registered. If parts of an earlier `up` still run, a
    timeout is only reported: training goes on without them."""
    until = time.monotonic() + READY_WITHIN_S
    while True:
        dead = started.dead()
        try:
            if not dead and _is_ready(started):
                return
        except Retryable as error:
            dead = [str(error)]
        if dead and not started.found:
            raise Fatal("; ".join(dead) + _last_lines(started))
        for sentence in started.mend():
            say(sentence)
        if time.monotonic() > until:
            sentence = (
                f"the supervisor or the service host is not up after {READY_WITHIN_S:g} s; logs are in {started.home}"
            )
            if not started.found:
                raise Fatal(sentence)
            say(f"{sentence}; running processes go on, and these two are tried again")
            return
        time.sleep(0.05)


def _is_ready(started: Up) -> bool:
    with started.store() as store:
        # any leader will do: a supervisor that stands by is as ready
        item = store.get(keys.LEADER)
        if item is None or store.get(keys.registration(started.name)) is None:
            return False
    with contextlib.suppress(RecordError):
        leader = decode(item.value, LeaderRecord)
        if has_ended(leader):
            return False  # its lease has not lapsed yet
        started.leads(leader)
    return True


def _last_lines(started: Up) -> str:
    text = ""
    for path in (started.supervisor_log, started.host_log):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()[-3:]
            text += "".join(f"\n  {path.name}: {line}" for line in lines)
    return text


def watch_over(started: Up, say: Callable[[str], None] = print) -> None:
    """Watches until Ctrl-C or TERM: restarts ended parts and answers notices. Then stops the runs of the pool, with a
    last checkpoint."""
    wrong = ""
    try:
        _guarded(lambda: started.greet(say), say, wrong)
        while True:
            for sentence in (*started.mend(), *started.miss_prometheus()):
                say(sentence)
            wrong = _guarded(started.resume, say, wrong)
            started.notice.look(say)
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        started.suspend(say)


def _guarded(act: Callable[[], None], say: Callable[[str], None], wrong: str) -> str:
    """Runs an action that may fail without ending training. Returns the error, which is printed once."""
    try:
        act()
    except (PortError, RecordError, observe.Unreadable) as error:
        if str(error) != wrong:
            say(str(error))
        return str(error)
    return ""
