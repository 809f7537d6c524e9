"""Examines the live system: its leader, nodes, runs, lighthouses and forwarders."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from supervisor.core.model.memory import Memory
from supervisor.core.remediation.restore import ENDED
from supervisor.core.report.words import say
from supervisor.shell.control import observe, version_guard
from supervisor.shell.control import webhook as notify
from supervisor.shell.control.audit import audit
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import status
from supervisor.shell.inspect.doctor import timeouts
from supervisor.shell.inspect.doctor.finding import Finding, bad, good, note
from supervisor.wire import keys
from supervisor.wire.records import GateObserved, GatePresence, LeaderRecord, NodeObserved, Registration, RunRecord

CONNECT_S = 2.0


def examine(mirror: Mirror) -> Iterator[Finding]:
    unreadable = audit(mirror, list(mirror.items))
    why = version_guard.why_not(mirror, mirror.items)
    if why:
        yield bad(why, "a supervisor of this version stands by until then")
    of_runs = ""
    yield _leader(mirror)
    for node in status.node_status(mirror):
        for problem in node.problems:
            yield bad(f"node {node.node}: {problem}", "look at its agent's log")
    for name, record in observe.runs(mirror).items():
        try:
            memory = observe.memory(mirror, name)
        except observe.Unreadable as error:
            yield bad(str(error), "delete nothing, or its numbers are used again: docs/runbooks/run-undecided.md")
            of_runs += str(error)
            continue
        if memory.halt_reason:
            yield bad(
                f"run {name} is halted: {say(memory.halt_reason)}",
                f'supervisor incidents --run {name}; once the cause is fixed: supervisor resume {name} --because "..."',
            )
        if memory.phase not in ENDED and not record.spec.is_pool:
            yield from lighthouse(mirror, record.spec.name, memory)
            yield from forwarders(mirror, record.spec.name, memory)
            yield from webhook(mirror, record)
            yield from timeouts.examine(mirror, record, memory)
    for key, reason in unreadable.items():
        if key not in of_runs:
            yield bad(f"{key} cannot be read: {reason}", "it is left alone; delete it if no one needs it")


def _leader(mirror: Mirror) -> Finding:
    leader = mirror.record(keys.LEADER, LeaderRecord)
    if leader is None:
        return bad("no supervisor leads", "start a supervisor: supervisor up, or supervisor run")
    epoch = observe.epochs_before(mirror) + mirror.items[keys.LEADER].create_revision
    return good(f"leader {leader.host}:{leader.pid}, epoch {epoch}")


def lighthouse(mirror: Mirror, run: str, memory: Memory) -> Iterator[Finding]:
    """Examines the run's lighthouse: its seat, the connection to its gate, and the groups that it hears."""
    seat = memory.lighthouse
    where = f"run {run}: the lighthouse of generation {seat.generation} on {seat.node}"
    if not seat.node:
        yield bad(f"run {run} has no lighthouse", "start a service host: supervisor-agent run --role service ...")
        return
    host = mirror.record(keys.registration(seat.node), Registration)
    if host is None:
        yield bad(
            f"{where}: the agent of its host is silent", f"look at node {seat.node}; another host would take over"
        )
    presence = mirror.record(keys.gate_presence(seat.node, run), GatePresence)
    if presence is None or presence.generation != seat.generation:
        yield bad(
            f"{where}: its gate does not reach etcd", "look at the network of its host, and at the gate's log there"
        )
    if not seat.address:
        yield note(f"{where} is not open", "supervisor status says what it waits for")
        return
    refused = connects(seat.address)
    if refused:
        do = f"if nodes reach it (supervisor status), only this machine does not; otherwise look at node {seat.node}"
        yield bad(f"{where}: its gate at {seat.address} takes no connection from here ({refused})", do)
    else:
        yield good(f"{where}: its gate at {seat.address} takes connections")
    yield from _hearing(mirror, run, memory)


def _hearing(mirror: Mirror, run: str, memory: Memory) -> Iterator[Finding]:
    gate = mirror.record(keys.gate(memory.lighthouse.node, run), GateObserved)
    if gate is None or gate.generation != memory.lighthouse.generation:
        return
    heard = {g.group: (g.generation, g.hearing) for g in gate.groups}
    for number, group in sorted(memory.groups.items()):
        generation, hearing = heard.get(number, (0, "absent"))
        if group.phase != "running" or (generation, hearing) == (group.generation, "beating"):
            continue
        what = (
            f"run {run}: the gate hears group {number} as {hearing}, and admits its generation {generation} "
            f"({group.generation} runs)"
        )
        do = f"supervisor logs --run {run} --group {number}"
        # A gate that has just opened has not heard every group yet.
        coming = generation == group.generation and hearing in ("absent", "holding")
        yield note(what, f"look again in a moment; {do}") if coming else bad(what, do)


def webhook(mirror: Mirror, record: RunRecord) -> Iterator[Finding]:
    """Checks that the run's webhook file exists. It must exist on this machine if a supervisor leads here."""
    file = record.spec.policy.webhook_file
    missing = notify.not_here(file)
    if not missing:
        return
    leader = mirror.record(keys.LEADER, LeaderRecord)
    another_users = os.path.exists(file) and not os.access(file, os.R_OK)
    needed = leader is not None and leader.host == socket.gethostname() and not another_users
    do = f"write it, or: supervisor policy set webhook_file= --because WHY --run {record.spec.name}"
    what = f"run {record.spec.name}: {missing}"
    yield bad(what, do) if needed else note(what, f"look on the machines where supervisors run; {do}")


def connects(address: str) -> str:
    """Returns why host:port takes no TCP connection; empty if it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def forwarders(mirror: Mirror, run: str, memory: Memory) -> Iterator[Finding]:
    """Checks that each trainer's forwarder passes on to the gate that has the seat, and reaches it."""
    right = 0
    seat = memory.lighthouse.address
    for node in mirror.nodes():
        seen = mirror.record(keys.observed(node), NodeObserved)
        alive = mirror.record(keys.registration(node), Registration) is not None
        for t in seen.trainers if seen is not None and alive else ():
            group = memory.groups.get(t.group)
            if t.run != run or t.state != "running" or group is None or group.generation != t.generation:
                continue
            who = f"run {run}: the forwarder of group {t.group} rank {t.rank} on {node}"
            if t.gate is not None and t.gate != seat:
                yield bad(
                    f"{who} forwards to {t.gate or 'no gate'}, the seat is {seat or 'empty'}", "look at its agent's log"
                )
            elif t.reaches_gate is False:
                yield bad(
                    f"{who} does not reach the gate at {seat}", f"look at the network between {node} and the gate"
                )
            elif t.reaches_gate:
                right += 1
    if right:
        yield good(f"run {run}: {right} forwarders reach the gate")
