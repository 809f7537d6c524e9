"""Holds what only a system started to be broken has: etcds, a network, GPUs, clocks and failpoints of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_injection.doubles.clocks import Clocks
from fault_injection.doubles.gpus import Gpus
from fault_injection.testbed.etcds import Cluster
from fault_injection.testbed.netns import Network
from supervisor.ports.errors import Fatal, Retryable

FAILPOINT, ONCE = "SUPERVISOR_FAILPOINT", "SUPERVISOR_FAILPOINT_ONCE"

SPACE_WITHIN_S = 30.0


@dataclass
class House:
    """Such a system's parts that faults use. `nodes`: names, in the network's order. `folder`: for files written
    here."""

    etcds: Cluster
    gpus: Gpus
    clocks: Clocks
    folder: Path
    nodes: Sequence[str]
    network: Network | None = None
    _down: set[int] = field(default_factory=set)
    """Members that must stay away for now."""

    def tend(self) -> None:
        """Restarts the members of etcd that have ended."""
        for n, member in enumerate(self.etcds.members):
            if member.poll() is not None and n not in self._down:
                self.etcds.start(n)

    # --- etcd ---

    def etcd_pids(self) -> list[int]:
        return [member.pid for member in self.etcds.members if member.poll() is None]

    def lose(self, members: Sequence[int]) -> None:
        """Kills members with SIGKILL, and keeps them away."""
        self._down |= set(members)
        for n in members:
            self.etcds.kill(n)

    def bring_back(self) -> None:
        self._down.clear()
        self.tend()

    def make_space(self, revision: int) -> None:
        """Makes space in etcd again. Raises Fatal if etcd does not allow it."""
        until = time.monotonic() + SPACE_WITHIN_S
        while True:
            try:
                return self.etcds.make_space(revision)
            except Retryable as error:
                if time.monotonic() > until:
                    raise Fatal(f"etcd has no space again: {error}") from error
                time.sleep(min(1.0, error.after_s))

    # --- the network ---

    def cut(self, node: str) -> None:
        """Takes a node's link down."""
        network, index = self._place(node)
        network.cut(index)
        if not network.is_cut(index):
            raise Fatal(f"the link of {node} is still up")

    def mend(self, node: str) -> None:
        network, index = self._place(node)
        network.mend(index)

    def cut_off(self, node: str) -> None:
        """Cuts a node off from etcd alone; its other peers do not notice."""
        network, index = self._place(node)
        network.close_port(index, network.hub_address, [int(e.rpartition(":")[2]) for e in self.etcds.endpoints])

    def hear(self, node: str) -> None:
        network, index = self._place(node)
        network.hear(index)

    def _place(self, node: str) -> tuple[Network, int]:
        if self.network is None:
            raise Fatal("the nodes are not in networks of their own")
        return self.network, list(self.nodes).index(node)

    # --- failpoints ---

    def arm(self, name: str) -> Path:
        """Makes a process that starts from now on die at a failpoint, once. The returned file exists when it has."""
        once = self.folder / f"failpoint-{time.time_ns()}"
        os.environ[FAILPOINT], os.environ[ONCE] = name, str(once)
        return once

    def disarm(self) -> None:
        for name in (FAILPOINT, ONCE):
            os.environ.pop(name, None)
