"""A mesh over machines of their own: addresses off loopback, and a node that falls silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_injection.testbed import netns
from tests.helpers.inside import passes_inside
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
    with netns.network(len(network_cases.NODES)) as net:
        passes_inside(net, network_cases.test_a_silent_node_ends_its_part, tmp_path, WITHIN_S)
