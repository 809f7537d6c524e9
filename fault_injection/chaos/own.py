"""Starts a system of its own on this machine, to be broken: real trainers that obey orders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fault_injection.chaos.live import LiveRun
from fault_injection.chaos.watch import Watcher
from fault_injection.doubles import clocks, gpus
from fault_injection.doubles.clocks import Clocks
from fault_injection.doubles.gpus import Gpus
from fault_injection.testbed import netns
from fault_injection.testbed.etcds import cluster
from fault_injection.testbed.netns import Network
from fault_injection.testbed.run_command import run_command
from fault_injection.testbed.system import House
from supervisor.core.model.spec import (
    AllocationSpec,
    BudgetSpec,
    DataSpec,
    GroupsSpec,
    HangSpec,
    PolicySpec,
    RunSpec,
    TitanSpec,
    TorchFTSpec,
)
from supervisor.shell.dev import up as up_module
from supervisor.shell.dev.home import system_folder
from supervisor.shell.etcd import connect
from supervisor.shell.inspect import client
from supervisor.wire.checkpoints import folder_of
from supervisor.wire.programs import SEAM
from supervisor.wire.security import Security

PROGRAMS = {
    "trainer": "fault_injection.in_rank.trainer",
    "warm": "fault_injection.in_rank.warm",
    "agent": "fault_injection.doubles.agent",
}

DISK_BYTES = 64 << 20
"""Size of a node's disk: eight times the free space that its own checks want."""

CHECKPOINT_BYTES = 512 << 20
"""Size of the checkpoints' disk: seven of the debug model, of which two are kept and one is being written."""

STORE_MEGABYTES = 8.0
"""Text of the token store: 2,593 steps of two ranks, more than `make chaos` takes, tokenized in four seconds of a core."""

GROUPS = 2

MORE_NODES = 4
"""Nodes beside those of the groups: a spare, one to replace a lost one, and two that may still be ending."""


def spec(name: str, ranks: int = 1, tokens: Path | None = None, nodes: int = 1) -> RunSpec:
    """Returns a run of TorchTitan's Llama 3 debug model in two groups, on a token store or on the recipe's own text. Its
    timeouts are short, so that a hang is found in seconds; its budgets suit a run that is broken every minute. `ranks`
    and `nodes` are a group's; on several nodes the model has fewer layers, as more ranks share the cores."""
    recipe = "llama3-debug" if nodes == 1 else "llama3-debug-small"
    groups = GroupsSpec(count=GROUPS, ranks_per_group=ranks, nodes_per_group=nodes)
    data = DataSpec() if tokens is None else DataSpec(source="tokens", path=str(tokens))
    return RunSpec(
        name=name,
        chaos="allowed",
        titan=TitanSpec(recipe=recipe, steps=10**6, checkpoint_interval_steps=25, digest_interval_steps=5, data=data),
        groups=groups,
        allocation=AllocationSpec(nodes=groups.nodes, spares=1),
        torchft=TorchFTSpec(heartbeat_timeout_ms=1000, join_timeout_ms=2000, process_group_timeout_ms=4000),
        policy=PolicySpec(
            budget=BudgetSpec(restart=60, replace=60, reallocate=60),
            hang=HangSpec(at_least_s=15.0, at_most_s=60.0),
            backoff_first_s=0.0,
            backoff_max_s=0.0,
            start_timeout_s=120.0,
            allocation_timeout_s=60.0,
        ),
    )


@contextmanager
def started(
    home: Path, made: RunSpec, cold: bool, say: Callable[[str], None], network: Network | None = None
) -> Iterator[LiveRun]:
    """Launches the run in a system of its own below `home`, all of which has ended when the block has.

    With a network, this process is in its hub, with its own mounts. Each node then has its own network and disk, and
    the checkpoints have a disk."""
    names = [f"n{i + 1}" for i in range(made.groups.nodes + MORE_NODES)]
    address = network.hub_address if network is not None else "127.0.0.1"
    system = system_folder(home / made.name)
    security = netns.in_plain(home / made.name) if network is not None else Security()
    with ExitStack() as stack:
        if network is not None:
            for name in names:
                stack.enter_context(disk(system / "nodes" / name, DISK_BYTES))
            stack.enter_context(disk(folder_of(str(home.resolve() / made.name)), CHECKPOINT_BYTES))
        etcds = stack.enter_context(cluster(system / "etcd", host=address, security=security))
        house = House(etcds, Gpus(system / "gpus", names), Clocks(system / "clocks"), system, names, network)
        seams = {
            SEAM: json.dumps(PROGRAMS),
            gpus.FOLDER: str(house.gpus.folder),
            clocks.FOLDER: str(house.clocks.folder),
        }
        stack.enter_context(_environment(seams))
        etcds.leader()
        up = stack.enter_context(
            up_module.up(
                home / made.name, netns.pool(names, network),
                up_module.Options(etcd=etcds.endpoint, address=address, cold=cold, security=security), say=say,
            )
        )  # fmt: skip
        store = connect(etcds.endpoints, security=security)
        stack.callback(store.close)
        record = client.launch(store, made, home)
        watcher = Watcher(store, made.name)
        watcher.start()
        stack.callback(watcher.stop)
        yield LiveRun(store, watcher, record, up.home, tended=up.mend, house=house)


@contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """Mounts a disk of its own for a node or for checkpoints. Its files are in the folder afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    run_command("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", folder.name, str(folder))
    kept = folder.with_name(f".{folder.name}")
    try:
        yield
    finally:
        shutil.copytree(folder, kept, ignore=_no_files)
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
        folder.rmdir()
        kept.rename(folder)


def _no_files(folder: str, names: list[str]) -> list[str]:
    """Names sockets and pipes, which cannot be copied."""
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
