"""Makes network namespaces that stand for machines: one bridge in a hub namespace, one namespace a node. Adds nothing
to the machine's own network. Needs root and iproute2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fault_injection.testbed import interrupts
from fault_injection.testbed.run_command import run_command
from fault_injection.testbed.unavailable import NOT_ROOT, missing
from supervisor.ports.errors import Fatal
from supervisor.shell.engines.local import PoolNode
from supervisor.wire.security import Security, load

WORLD = "SUPERVISOR_WORLD"
"""Environment variable with the network (JSON) of a command that runs again inside a hub."""

SUBNET = "10.77.0"
"""Private addresses, seen only inside the namespaces."""

SUBNET_6 = "fd77::"
"""The same for IPv6: each node has both, where asked."""

KEEP_6 = "/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down"


@dataclass(frozen=True)
class Network:
    """The namespaces of one world. The hub has address `hub_address`, and every node can reach it."""

    hub: str
    hub_address: str
    nodes: tuple[tuple[str, str], ...]
    """(namespace, address) of each node."""

    def cut(self, index: int) -> None:
        """Takes a node's link down: it falls silent, and no connection is reset."""
        _ip("-n", self.nodes[index][0], "link", "set", "eth0", "down")

    def mend(self, index: int) -> None:
        """Brings a node's link up again."""
        _ip("-n", self.nodes[index][0], "link", "set", "eth0", "up")

    def is_cut(self, index: int) -> bool:
        """Returns true if the kernel shows a node's link as down."""
        (link,) = json.loads(run_command("ip", "-json", "-n", self.nodes[index][0], "link", "show", "eth0"))
        return "UP" not in link["flags"]

    def addresses(self) -> list[str]:
        """Returns the addresses of the hub and of every node."""
        return [self.hub_address, *(address for _, address in self.nodes)]

    def separate(self, index: int, others: Sequence[str]) -> None:
        """Separates a node from these addresses in both directions; no connection is reset."""
        for address in others:
            for chain, flag in (("INPUT", "-s"), ("OUTPUT", "-d")):
                self._iptables(index, "-A", chain, flag, address, "-j", "DROP")

    def split(self, island: Sequence[int]) -> None:
        """Lets the nodes of the island hear each other and no one else."""
        inside_ = {self.nodes[index][1] for index in island}
        for index in island:
            self.separate(index, [address for address in self.addresses() if address not in inside_])

    def join(self) -> None:
        """Lets all nodes hear each other again."""
        for index in range(len(self.nodes)):
            self.hear(index)

    def close_port(self, index: int, address: str, ports: Sequence[int]) -> None:
        """Cuts a node off from these TCP ports in both directions; no connection is reset."""
        for port in ports:
            for chain, way in (("INPUT", ("-s", address, "--sport")), ("OUTPUT", ("-d", address, "--dport"))):
                self._iptables(index, "-A", chain, "-p", "tcp", way[0], way[1], way[2], str(port), "-j", "DROP")

    def hear(self, index: int) -> None:
        """Lets the node hear all others again."""
        self._iptables(index, "-F")

    def _iptables(self, index: int, *rule: str) -> None:
        run_command("ip", "netns", "exec", self.nodes[index][0], "iptables", "-w", *rule)


def available() -> str:
    """Returns why namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return NOT_ROOT
    if why := missing("ip", "nsenter", "unshare"):
        return why
    name = f"sv{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
    except Fatal as error:
        return str(error)
    _ip("netns", "del", name)
    return ""


def no_filter() -> str:
    """Returns why no part of a network can be closed (`separate`, `split`, `close_port`); empty if it can."""
    return available() or missing("iptables")


@contextmanager
def network(count: int, version_6: bool = False) -> Iterator[Network]:
    """Yields a hub and `count` nodes, which are removed with the block. `version_6`: nodes have addresses of SUBNET_6 too."""
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
            if version_6:
                # else a link that is taken down loses it
                run_command("ip", "netns", "exec", name, "sh", "-c", f"echo 1 > {KEEP_6}")
                _ip("-n", name, "addr", "add", f"{SUBNET_6}{i + 1:x}/64", "dev", "eth0", "nodad")
        yield Network(hub=hub, hub_address=f"{SUBNET}.254", nodes=nodes)
    finally:
        for name in reversed(made):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    run_command("ip", *arguments)


def environment(network_: Network) -> dict[str, str]:
    """Returns our environment for a command of ours that runs inside, where `entered` reads its network."""
    body = {"hub": network_.hub, "hub_address": network_.hub_address, "nodes": network_.nodes}
    return {**os.environ, WORLD: json.dumps(body)}


def entered() -> Network | None:
    """Returns the network in whose hub this process was started. Removes it from the environment of its children."""
    text = os.environ.pop(WORLD, None)
    if text is None:
        return None
    body = json.loads(text)
    return Network(body["hub"], body["hub_address"], tuple((name, address) for name, address in body["nodes"]))


def pool(names: Sequence[str], network_: Network | None) -> list[PoolNode]:
    """Returns nodes for the local engine: each in its namespace, or all on loopback."""
    places = network_.nodes if network_ is not None else [("", "127.0.0.1")] * len(names)
    return [PoolNode(name, address, netns) for name, (netns, address) in zip(names, places, strict=True)]


def in_plain(home: Path) -> Security:
    """Allows plain connections: the namespaces' addresses are off loopback, but only our processes reach them."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "security.toml"
    file.write_text("insecure = true\n")
    return load(str(file))


def inside(network_: Network, command: Sequence[str], mounts: bool = False) -> list[str]:
    """Returns the command that runs this one inside the hub. `mounts`: with its own mounts, which end with the last of
    its processes.

    It avoids `ip netns exec`, which mounts a /sys without the memory cgroups that the shims read."""
    own = ["unshare", "--mount"] if mounts else []
    return ["nsenter", f"--net=/run/netns/{network_.hub}", *own, *command]


def run_inside(
    network_: Network,
    command: Sequence[str],
    environment: Mapping[str, str],
    mounts: bool = False,
    fds: Sequence[int] = (),
) -> int:
    """Runs a command of ours inside the hub, with these file descriptors, and returns its exit code. Passes on Ctrl-C,
    TERM and a closed terminal, and waits until the command has cleaned up."""
    process = subprocess.Popen(
        inside(network_, command, mounts), env=dict(environment), start_new_session=True, pass_fds=tuple(fds)
    )

    def pass_on(number: int, frame: object) -> None:
        process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, pass_on) for number in interrupts.ending()}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
