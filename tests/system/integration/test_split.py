"""A network cut around the lighthouse, the nodes and etcd: one side trains, never both. A namespace is a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.testbed import netns
from tests.system.integration import split_cases

CASES = [name for name in vars(split_cases) if name.startswith("test_")]
EACH = [pytest.param(name, marks=pytest.mark.long, id=name.removeprefix("test_")) for name in CASES]
WITHIN_S = 480


@pytest.mark.root
@pytest.mark.etcd
@pytest.mark.timeout(WITHIN_S + 30)
@pytest.mark.parametrize("case", EACH)
def test_split(case: str, tmp_path: Path) -> None:
    """Each case is run by a pytest of its own inside the hub's namespace: a process cannot be in two networks."""
    why_not = netns.no_filter()
    if why_not:
        pytest.skip(f"no network namespaces here: {why_not}")
    with netns.network(len(split_cases.NODES)) as net:
        body = {"hub": net.hub, "hub_address": net.hub_address, "nodes": net.nodes}
        command = [
            sys.executable,
            "-m",
            "pytest",
            f"{split_cases.__file__}::{case}",
            "-q",
            "-s",
            "--timeout",
            str(WITHIN_S),
        ]
        command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}"]
        inner = subprocess.Popen(
            netns.inside(net, command),
            env={**os.environ, "SPLIT_NETWORK": json.dumps(body)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = inner.communicate(timeout=WITHIN_S + 20)
        finally:
            # its fixtures end what it started
            if inner.poll() is None:
                inner.terminate()
                inner.wait(60)
        print(output)
        assert inner.returncode == 0, output[-4000:]
