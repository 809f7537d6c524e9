"""What can be broken on this machine."""

from __future__ import annotations

from fault_injection.faults.fault import Site
from fault_injection.memory_cgroup import memory_cgroup
from supervisor.ports.errors import Fatal

SHARED_DISK = "the nodes share this machine's disk"
SHARED_NETWORK = "the nodes share this machine's network: `supervisor demo` takes a node's link down"


def of_machine() -> Site:
    """For a run that is started here to be broken: local nodes, an etcd of its own, trainers that obey."""
    return Site(no_memory_cgroup=no_memory_cgroup(), no_own_disks=SHARED_DISK, no_cut=SHARED_NETWORK)


def no_memory_cgroup() -> str:
    """Why no memory cgroup can be made here; empty when it can."""
    try:
        with memory_cgroup("try"):
            return ""
    except Fatal as error:
        return str(error)
