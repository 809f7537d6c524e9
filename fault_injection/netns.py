"""Network namespaces that stand for machines: one bridge in a hub namespace, one namespace a node. Nothing is added to
the machine's own network. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from supervisor.ports.errors import Fatal

SUBNET = "10.77.0"
"""Private addresses, seen only inside the namespaces."""


@dataclass(frozen=True)
class Network:
    """The namespaces of one world. The hub has address `hub_address`, and every node can reach it."""

    hub: str
    hub_address: str
    nodes: tuple[tuple[str, str], ...]
    """(namespace, address) of each node."""

    def cut(self, index: int) -> None:
        """Take a node's link down: it falls silent, no connection is reset."""
        _ip("-n", self.nodes[index][0], "link", "set", "eth0", "down")

    def mend(self, index: int) -> None:
        """Bring it up again."""
        _ip("-n", self.nodes[index][0], "link", "set", "eth0", "up")

    def addresses(self) -> list[str]:
        """Of the hub and of every node."""
        return [self.hub_address, *(address for _, address in self.nodes)]

    def separate(self, index: int, others: Sequence[str]) -> None:
        """A node and these addresses do not hear each other any more; no connection is reset."""
        for address in others:
            for chain, flag in (("INPUT", "-s"), ("OUTPUT", "-d")):
                self._iptables(index, "-A", chain, flag, address, "-j", "DROP")

    def split(self, island: Sequence[int]) -> None:
        """The nodes of the island hear each other and nobody else."""
        inside_ = {self.nodes[index][1] for index in island}
        for index in island:
            self.separate(index, [address for address in self.addresses() if address not in inside_])

    def join(self) -> None:
        """Everybody hears everybody again."""
        for index in range(len(self.nodes)):
            self._iptables(index, "-F")

    def _iptables(self, index: int, *rule: str) -> None:
        _run("ip", "netns", "exec", self.nodes[index][0], "iptables", "-w", *rule)


def available() -> str:
    """An empty string when namespaces can be made here, else why not."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "no `ip` command (Debian: apt-get install iproute2)"
    name = f"sv{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
    except Fatal as error:
        return str(error)
    _ip("netns", "del", name)
    return ""


@contextmanager
def network(count: int) -> Iterator[Network]:
    """A hub and `count` nodes; all of it is gone on the way out."""
    prefix = f"sv{os.getpid()}"
    hub = f"{prefix}-hub"
    nodes = tuple((f"{prefix}-n{i + 1}", f"{SUBNET}.{i + 1}") for i in range(count))
    made: list[str] = []
    try:
        _ip("netns", "add", hub)
        made.append(hub)
        for command in (
            ["link", "set", "lo", "up"],
            ["link", "add", "br0", "type", "bridge"],
            ["link", "set", "br0", "up"],
            ["addr", "add", f"{SUBNET}.254/24", "dev", "br0"],
        ):
            _ip("-n", hub, *command)
        for i, (name, address) in enumerate(nodes):
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"v{i + 1}", "netns", hub)
            _ip("-n", hub, "link", "set", f"v{i + 1}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield Network(hub=hub, hub_address=f"{SUBNET}.254", nodes=nodes)
    finally:
        for name in reversed(made):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Fatal(f"{' '.join(command)}: {result.stderr.strip()}")


def inside(network_: Network, command: Sequence[str]) -> list[str]:
    """The command as it is run inside the hub."""
    return ["ip", "netns", "exec", network_.hub, *command]
