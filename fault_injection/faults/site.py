"""Finds out what can be broken on this machine."""

from __future__ import annotations

import functools
import socket

from fault_injection.doubles import clocks
from fault_injection.faults.fault import Site
from fault_injection.testbed import connections, netns
from fault_injection.testbed.memory_cgroup import memory_cgroup
from fault_injection.testbed.unavailable import NotHere, missing
from supervisor.ports.errors import Fatal

SHARED_DISK = "the nodes share this machine's disk"
SHARED_NETWORK = "the nodes share this machine's network"
ONE_RANK = "nothing is summed up in a group of one rank: a schedule may say ranks_per_group = 2"
NOT_OURS = "only in a system that is started to be broken: leave --run out"


def of_machine(ranks: int = 1) -> Site:
    """Returns the site of a run that is started here to be broken, with `ranks` ranks per group. It has local nodes,
    etcds and GPUs of its own, and trainers that obey."""
    alone = netns.available()
    return Site(
        no_memory_cgroup=no_memory_cgroup(),
        no_collective=no_collective(ranks),
        no_own_disks=alone,
        no_cut=alone,
        no_filter=netns.no_filter(),
        no_reset=no_reset(),
        no_faketime=no_faketime(),
        no_trace=no_trace(),
    )


def no_collective(ranks: int) -> str:
    """Returns why the ranks of a group sum nothing up among themselves; empty if they do."""
    return ONE_RANK if ranks == 1 else ""


@functools.cache
def no_reset() -> str:
    """Returns why the kernel does not end other processes' connections here, found by ending one; empty if it does."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0],
    ):
        try:
            connections.end(0, one.getsockname(), one.getpeername())
            one.send(b"x")
        except Fatal as error:
            return str(error)
        except OSError:
            return ""
    return "`ss -K` ends no connection: not root, or a kernel without CONFIG_INET_DIAG_DESTROY"


def no_faketime() -> str:
    """Returns why no process can have a clock of its own; empty if it can."""
    try:
        clocks.library()
    except NotHere as error:
        return str(error)
    return ""


def no_trace() -> str:
    """Returns why system calls cannot be delayed; empty if they can."""
    return missing("strace")


def no_memory_cgroup() -> str:
    """Returns why no memory cgroup can be made here; empty if it can."""
    try:
        with memory_cgroup("try"):
            return ""
    except NotHere as error:
        return str(error)
