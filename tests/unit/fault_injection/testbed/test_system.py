"""Faults on parts of a system that is started to be broken: its etcds, its network, its GPUs, its failpoints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.doubles.clocks import Clocks
from fault_injection.doubles.gpus import FOLDER, Gpus
from fault_injection.testbed import etcds, netns
from fault_injection.testbed.netns import Network
from fault_injection.testbed.system import SPACE_WITHIN_S, House
from fault_injection.testbed.unavailable import no_command
from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell import failpoints

NETWORK = Network(hub="sv1-hub", hub_address="10.77.0.254", nodes=(("sv1-n1", "10.77.0.1"), ("sv1-n2", "10.77.0.2")))


class Members:
    """Three members that run, are killed and are started again. `refuses`: attempts to make space that fail."""

    endpoints = ("10.77.0.254:1001", "10.77.0.254:1002", "10.77.0.254:1003")

    def __init__(self, refuses: int = 0) -> None:
        self.runs = [True, True, True]
        self._refuses = refuses

    @property
    def members(self) -> list[Any]:
        return [SimpleNamespace(pid=n, poll=lambda runs=runs: None if runs else 0) for n, runs in enumerate(self.runs)]

    def kill(self, n: int) -> None:
        self.runs[n] = False

    def start(self, n: int) -> None:
        self.runs[n] = True

    def make_space(self, revision: int) -> None:
        self._refuses -= 1
        if self._refuses >= 0:
            raise Retryable("no leader", after_s=0.01)


def house(folder: Path, members: Members | None = None, network: Network | None = NETWORK) -> House:
    made: Any = members or Members()
    return House(made, Gpus(folder / "gpus", ["n1", "n2"]), Clocks(folder / "clocks"), folder, ["n1", "n2"], network)


def test_a_member_that_ends_is_started_again_unless_it_was_lost_on_purpose(tmp_path: Path) -> None:
    members = Members()
    made = house(tmp_path, members)
    members.kill(0)
    made.lose([1])
    made.tend()
    assert members.runs == [True, False, True]
    assert made.etcd_pids() == [0, 2]
    made.bring_back()
    assert members.runs == [True, True, True]


def test_space_is_asked_for_until_etcd_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house(tmp_path, Members(refuses=2)).make_space(5)
    monkeypatch.setattr("fault_injection.testbed.system.SPACE_WITHIN_S", 0.05)
    with pytest.raises(Fatal, match="etcd has no space again: no leader"):
        house(tmp_path, Members(refuses=1000)).make_space(5)
    assert SPACE_WITHIN_S > 1


def test_a_node_is_cut_off_from_the_ports_of_etcd_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    flags: list[str] = []

    def run(*command: str) -> str:
        if "-json" in command:
            return json.dumps([{"ifname": "eth0", "flags": flags}])
        ran.append(" ".join(command))
        return ""

    monkeypatch.setattr(netns, "run_command", run)
    made = house(tmp_path)
    made.cut_off("n2")
    inside = "ip netns exec sv1-n2 iptables -w"
    assert ran[:2] == [
        f"{inside} -A INPUT -p tcp -s 10.77.0.254 --sport 1001 -j DROP",
        f"{inside} -A OUTPUT -p tcp -d 10.77.0.254 --dport 1001 -j DROP",
    ]
    assert len(ran) == 6
    made.hear("n2")
    made.cut("n1")
    made.mend("n1")
    assert ran[6:] == [f"{inside} -F", "ip -n sv1-n1 link set eth0 down", "ip -n sv1-n1 link set eth0 up"]
    flags += ["BROADCAST", "UP"]
    with pytest.raises(Fatal, match="the link of n1 is still up"):
        made.cut("n1")
    with pytest.raises(Fatal, match="not in networks of their own"):
        house(tmp_path, network=None).cut("n1")


def test_what_is_started_while_a_failpoint_is_armed_dies_there_once(tmp_path: Path) -> None:
    made = house(tmp_path)
    once = made.arm("committed")
    assert failpoints.armed() is not None
    code = "from supervisor.shell.failpoints import reach; reach('committed'); print('lives')"
    first, second = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2))
    assert (first.returncode, second.stdout) == (-9, "lives\n")
    assert once.exists()
    made.disarm()
    assert failpoints.armed() is None


ASKS = """
import sys, time
from pathlib import Path
from fault_injection.doubles import gpus
gpus.stand_in(["--node=n1"])
import pynvml
pynvml.nvmlInit()
of = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceRegisterEvents(of, pynvml.nvmlEventTypeXidCriticalError, None)
print("ready", flush=True)
sys.stdin.readline()
print(pynvml.nvmlEventSetWait_v2(None, 1).eventData)
try:
    pynvml.nvmlDeviceGetHandleByIndex(0)
except pynvml.NVMLError_GpuIsLost as error:
    print(error)
"""


def test_a_driver_says_what_the_file_says_and_of_events_those_since_it_was_asked_first(tmp_path: Path) -> None:
    gpus = Gpus(tmp_path, ["n1"])
    gpus.say("n1", xid=13)
    agent = subprocess.Popen(
        [sys.executable, "-c", ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, FOLDER: str(tmp_path)},
    )  # fmt: skip
    assert agent.stdout is not None
    assert agent.stdout.readline() == "ready\n"
    gpus.say("n1", xid=79, lost=True)
    said, _ = agent.communicate("go on\n", timeout=20)
    assert said == "79\nGPU is lost\n"
    gpus.say("n1")
    assert json.loads((tmp_path / "n1.json").read_text())["gpus"][0]["lost"] is False


def test_a_network_is_handed_to_the_command_inside_and_to_nobody_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert netns.entered() is None
    monkeypatch.setenv(netns.WORLD, netns.environment(NETWORK)[netns.WORLD])
    assert netns.entered() == NETWORK
    assert netns.WORLD not in os.environ
    assert netns.inside(NETWORK, ["x"], mounts=True) == [
        "nsenter",
        "--net=/run/netns/sv1-hub",
        "unshare",
        "--mount",
        "x",
    ]
    assert [(n.name, n.netns, n.address) for n in netns.pool(["a", "b"], NETWORK)] == [
        ("a", "sv1-n1", "10.77.0.1"), ("b", "sv1-n2", "10.77.0.2"),
    ]  # fmt: skip
    assert [(n.netns, n.address) for n in netns.pool(["a"], None)] == [("", "127.0.0.1")]


def test_a_slow_disk_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(Fatal, match=re.escape(no_command("strace"))),
        etcds.slow_disk([1], 0.1, tmp_path / "log"),
    ):
        pass
