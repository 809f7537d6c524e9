"""The address of a rank: the node's own, or the one that it has in the run's network."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.agent.launch import address_for
from agents.agent.surroundings import StartFailed
from agents.shim.settings import Settings
from supervisor.core.model.spec import NetworkSpec

SETTINGS = Settings(node="n1", home=Path("/nowhere"), etcd=("127.0.0.1:2379",), address="10.9.8.7")


def test_a_rank_has_the_nodes_address_unless_the_run_names_a_network() -> None:
    assert address_for(SETTINGS, NetworkSpec()) == "10.9.8.7"
    assert address_for(SETTINGS, NetworkSpec(interface="lo")) == "127.0.0.1"
    assert address_for(SETTINGS, NetworkSpec(address="127.0.0.0/8")) == "127.0.0.1"


@pytest.mark.parametrize(
    ("network", "key"),
    [(NetworkSpec(interface="ib9"), "network.interface"), (NetworkSpec(address="203.0.113.0/24"), "network.address")],
)
def test_a_start_fails_on_a_node_without_such_an_address(network: NetworkSpec, key: str) -> None:
    with pytest.raises(StartFailed, match=rf"^{key}: there is no .*127\.0\.0\.1 on lo.* \(node n1\)"):
        address_for(SETTINGS, network)
