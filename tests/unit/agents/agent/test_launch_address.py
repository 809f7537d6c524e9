"""Where a rank meets others: its own address, and the variables by which it finds its group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.agent.launch import address_for, read_launch, write_launches
from agents.agent.surroundings import StartFailed
from agents.shim.settings import Settings
from supervisor.core.model.spec import NetworkSpec, TitanSpec, TorchFTSpec
from supervisor.wire import environment
from supervisor.wire.records import TrainerDesired

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


def test_the_ranks_of_a_groups_second_node_meet_at_its_first_node(tmp_path: Path) -> None:
    desired = TrainerDesired(
        run="run", group=1, generation=3, world_size=4, groups=2, min_groups=1, gate="h:1", run_dir=str(tmp_path),
        titan=TitanSpec(), torchft=TorchFTSpec(), term_grace_s=5.0, nodes=2, first_rank=2, store="10.9.8.6:4711",
    )  # fmt: skip
    write_launches(replace(SETTINGS, home=tmp_path), desired, "127.0.0.1:2")
    launches = [read_launch(tmp_path / "nodes" / "n1" / "ranks" / f"run.1.3.{rank}") for rank in (2, 3)]
    found = [environment.meeting_point(launch) for launch in launches if launch is not None]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [[each[name] for name in names] for each in found] == [
        ["2", "4", "0", "2", "10.9.8.6", "4711"],
        ["3", "4", "1", "2", "10.9.8.6", "4711"],
    ]
