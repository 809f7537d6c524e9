"""The filter of docs/SECURITY.md keeps TorchFT's plain ports for the user who trains, and for the hosts that train."""

from __future__ import annotations

import json
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.testbed import netns
from tests.helpers.ordinary_user import ENTRY, NAME, as_user, environment, view

pytestmark = pytest.mark.root

REPOSITORY = Path(__file__).parents[3]
OTHER = pwd.getpwnam("daemon")
TRAINER, PEER, STRANGER = 0, 1, 3
HOSTS = f"{netns.SUBNET}.1 {netns.SUBNET}.2"
"""The trainer and its peer; the stranger is another machine of the same link."""
HERE_6 = "::1"
"""The store listens there too."""

# what a rank of a real trainer opens: the group's store, its manager, and the server of its weights
RANK = """
import datetime, json, os, sys
import torch, torch.distributed as dist
from torchft._torchft import LighthouseServer, ManagerServer
from torchft.checkpointing import HTTPTransport

address, second = sys.argv[1], datetime.timedelta(seconds=1)
store = dist.TCPStore(address, 20000, is_master=True, wait_for_workers=False)
lighthouse = LighthouseServer(bind=f"{address}:0", min_replicas=1)
port = lighthouse.address().rpartition(":")[2]
manager = ManagerServer("g0", f"http://{address}:{port}", address, f"{address}:0", f"{address}:{store.port}", 1,
                        second, second, 0)
heal = HTTPTransport(timeout=second, num_chunks=0)
heal.send_checkpoint([1], 7, {"weights": torch.zeros(4)}, second)
ports = {"store": store.port, "manager": int(manager.address().rpartition(":")[2]),
         "heal": int(heal.metadata().split("/")[2].rpartition(":")[2])}
print(json.dumps(ports), flush=True)
sys.stdin.read()
os._exit(0)
"""
CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 5).close()
        print("reached")
    except ConnectionRefusedError:
        print("refused")
"""


@pytest.fixture
def net() -> Iterator[netns.Network]:
    if why_not := netns.no_filter():
        pytest.skip(why_not)
    with netns.network(4) as made:
        yield made


def inside(net: netns.Network, node: int) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{net.nodes[node][0]}"]


def reached(net: netns.Network, node: int, uid: int, ports: dict[str, int], address: str) -> list[str]:
    """Connects to each port as that user of that node."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    command = [*inside(net, node), *view(), *user, sys.executable, "-c", CONNECT, address]
    done = subprocess.run(
        [*command, *map(str, ports.values())], capture_output=True, text=True, check=True, cwd="/", timeout=60
    )
    return done.stdout.split()


def the_filter() -> str:
    page = (REPOSITORY / "docs/SECURITY.md").read_text()
    found = re.search(r"### A filter for the training network\n.*?```sh\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def test_others_reach_no_port_of_a_trainer(net: netns.Network) -> None:
    address = net.nodes[TRAINER][1]
    rank = subprocess.Popen(
        [*inside(net, TRAINER), *as_user(sys.executable, "-c", RANK, address)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env=environment(Path("/")),
    )  # fmt: skip
    assert rank.stdin is not None
    assert rank.stdout is not None
    with rank:
        try:
            ports = json.loads(rank.stdout.readline())
            everywhere = [(TRAINER, ENTRY.pw_uid), (TRAINER, OTHER.pw_uid), (PEER, ENTRY.pw_uid), (STRANGER, 0)]
            for node, uid in everywhere:
                assert reached(net, node, uid, ports, address) == ["reached"] * 3, (node, uid)
            assert reached(net, TRAINER, OTHER.pw_uid, {"store": ports["store"]}, HERE_6) == ["reached"]
            for node in (TRAINER, PEER):
                for hosts, program in ((HOSTS, "iptables"), ("fe80::/10", "ip6tables")):
                    script = f"TRAINS={NAME} HOSTS='{hosts}'\n{the_filter().replace('iptables', program)}"
                    subprocess.run([*inside(net, node), "sh", "-c", script], check=True, capture_output=True, text=True)

            def now(node: int, uid: int) -> list[str]:
                return reached(net, node, uid, ports, address)

            assert now(TRAINER, ENTRY.pw_uid) == now(PEER, ENTRY.pw_uid) == now(PEER, 0) == ["reached"] * 3
            assert reached(net, TRAINER, OTHER.pw_uid, {"store": ports["store"]}, HERE_6) == ["refused"]
            assert now(TRAINER, OTHER.pw_uid) == now(PEER, OTHER.pw_uid) == now(STRANGER, 0) == ["refused"] * 3
        finally:
            rank.stdin.close()
