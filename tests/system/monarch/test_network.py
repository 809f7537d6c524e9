"""A mesh over machines of their own: addresses off loopback, and a node that falls silent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.testbed import netns
from tests.system.monarch import needs, network_cases  # noqa: F401

WITHIN_S = 240


@pytest.mark.root
@pytest.mark.etcd
@pytest.mark.trainers
@pytest.mark.timeout(WITHIN_S + 30)
def test_a_silent_node(tmp_path: Path) -> None:
    """Run by a pytest of its own inside the hub's namespace: a process cannot be in two networks."""
    if why_not := netns.available():
        pytest.skip(f"no network namespaces here: {why_not}")
    case = f"{network_cases.__file__}::{network_cases.test_a_silent_node_ends_its_part.__name__}"
    with netns.network(len(network_cases.NODES)) as net:
        command = [sys.executable, "-m", "pytest", case, "-q", "-s", "--timeout", str(WITHIN_S)]
        command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inside'}"]
        inner = subprocess.Popen(
            netns.inside(net, command),
            env=netns.environment(net), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            output, _ = inner.communicate(timeout=WITHIN_S + 20)
        finally:
            # its fixtures end what it started
            if inner.poll() is None:
                inner.terminate()
                inner.wait(60)
        print(output)
        assert inner.returncode == 0, output[-4000:]
