"""Groups of real trainers on several nodes lose ranks and nodes: only what is lost is replaced. A namespace is a machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.testbed import netns, own_slurm
from tests.real_trainers import nodes_of_a_group_cases as cases

WITHIN_S = 2400
UNRESOLVED = ("unshare", "--uts", "sh", "-c", 'hostname no-such-host.invalid && exec "$@"', "sh")
"""Prefix of a command whose machine has a name that no one resolves."""


@pytest.mark.root
@pytest.mark.etcd
@pytest.mark.trainers
@pytest.mark.long
@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize(
    ("shape", "ranks_meet", "engine", "chosen"),
    [
        ("2x2x2", "", "local", ()),
        pytest.param("2x2x2", "", "slurm", (), marks=pytest.mark.slurm),
        ("3x2x1", "", "local", ("-k", "killed_node or lost_silently and not one_group or checkers")),
        ("2x3x1", "", "local", ("-k", "killed_node or lost_silently and not one_group or checkers")),
        ("2x2x1", f"{netns.SUBNET_6}/64", "local", ("-k", "killed_rank and 0 or a_node_lost_silently or checkers")),
    ],
)
def test_each_way_to_lose_a_part_of_a_group(
    shape: str, ranks_meet: str, engine: str, chosen: tuple[str, ...], tmp_path: Path
) -> None:
    """All cases share one run, in a pytest of its own inside the hub's namespace: a process cannot be in two networks.
    `ranks_meet`: the network between ranks, where it is another than that of etcd and agents; the name of the host
    resolves to no address then."""
    why_not = netns.no_filter() or (own_slurm.available() if engine == "slurm" else "")
    if why_not:
        pytest.skip(why_not)
    groups, size, _ = map(int, shape.split("x"))
    with netns.network(groups * size + cases.SPARES + 2, version_6=bool(ranks_meet)) as net:
        body = {"hub": net.hub, "hub_address": net.hub_address, "nodes": net.nodes}
        command = [sys.executable, "-m", "pytest", str(cases.__file__), "-v", "-m", "", "--timeout", "600"]
        command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}", *chosen]
        command += shlex.split(os.environ.get("CASES", ""))
        inner = subprocess.Popen(
            netns.inside(net, [*UNRESOLVED, *command] if ranks_meet else command),
            env={
                **os.environ,
                "SPLIT_NETWORK": json.dumps(body),
                cases.SHAPE: shape,
                cases.RANKS_MEET: ranks_meet,
                cases.ENGINE: engine,
            },
        )
        try:
            assert inner.wait(WITHIN_S) == 0, "a case failed"
        finally:
            if inner.poll() is None:
                inner.terminate()
                inner.wait(60)
