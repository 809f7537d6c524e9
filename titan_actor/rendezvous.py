"""Process groups of ranks that have not met yet. A hot standby is built with them, and they are connected once its start
begins: only then are the group's nodes known.

torch.distributed connects a process group while it makes it. So a standby's are of a backend of their own, in which any
collective is an error, and get Gloo in its place, with the names under which a rank without a standby meets its peers.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

NAME = "later"
_INIT, _NEW = dist.init_process_group, dist.new_group
_made: dict[str, tuple[timedelta, list[int]]] = {}
"""Name of each group that is not connected -> its timeout and members."""


def later(rank: int, world_size: int) -> None:
    """Has torch.distributed make process groups without peers from now on, until `meet`. init_process_group then raises
    RuntimeError for another backend than Gloo."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _unconnected, extended_api=True, devices=["cpu"])

    def init(backend: str, timeout: timedelta, **_: Any) -> None:
        if backend != "gloo":
            raise RuntimeError(f"no standby: its process groups are of {backend}, not of Gloo alone")
        _INIT(NAME, timeout=timeout, store=dist.HashStore(), rank=rank, world_size=world_size)

    def new(*ranks: Any, backend: Any = None, **options: Any) -> Any:
        return _NEW(*ranks, backend=NAME if backend == "gloo" else backend, **options)

    dist.init_process_group, dist.new_group = init, new


def _unconnected(about: Any, _: Any) -> Any:
    _made[about.group_id] = (about.timeout, about.global_ranks_in_group)
    kind: Any = FakeProcessGroup  # its stub lacks what it has
    options = kind.Options()
    options.error_on_collective = True
    return kind._create_internal(about.group_rank, about.group_size, options)


def meet() -> None:
    """Connects them all: MASTER_ADDR and MASTER_PORT are where the ranks meet. Raises what init_process_group raises where
    a peer does not come."""
    dist.init_process_group, dist.new_group = _INIT, _NEW
    world, gloo = c10d._world, c10d.BackendConfig(dist.Backend("gloo"))
    devices = list(gloo.get_device_backend_map())
    groups = [group for group, (backend, _) in world.pg_map.items() if backend == NAME]
    timeout, _ = _made[groups[0].group_name]
    store, _, _ = next(rendezvous("env://", dist.get_rank(), dist.get_world_size(), timeout=timeout))
    store.set_timeout(timeout)
    base = dist.PrefixStore("default_pg", store)
    for group in groups:  # in the order in which every rank makes them
        timeout, members = _made.pop(group.group_name)
        shared = dist.PrefixStore(f"{group.group_name}/", base)
        own = dist.PrefixStore(f"{devices[0]}/", shared)
        one = dist.ProcessGroupGloo(own, group.rank(), group.size(), timeout=timeout)
        one.options.global_ranks_in_group, one.options.group_name = members, group.group_name
        one._set_sequence_number_for_group()
        for device in devices:
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, one)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        world.pg_map[group] = ("gloo", shared)
        world.pg_backend_config[group] = str(gloo)
        if group is groups[0]:
            base = shared  # the default group's, below which all others are
