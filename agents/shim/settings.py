"""The settings of a node, from its command line: shim and agent get the same arguments."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from supervisor.wire.security import (
    NAME_AT_MOST,
    Security,
    SecurityError,
    checked,
    host_and_port,
    load,
    node_name,
    read_certificate,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to run a node. The reasons for the defaults are in the help texts of agents/cli.py."""

    node: str
    home: Path
    etcd: tuple[str, ...]
    host: str = ""
    """The machine, as its scheduler names it; empty: the node's name."""
    address: str = "127.0.0.1"
    role: str = "trainer"
    allocation: str = ""
    slots: int = 1
    lease_s: int = 5
    report_s: float = 5.0
    metrics_port: int = 0
    grace_s: float = 5.0
    cold: bool = False
    security: str = ""
    """Path of the security file."""
    switch: str = ""
    """Switches to which the host is connected, outermost first, as in `spine.leaf`; empty: unknown."""

    @cached_property
    def node_folder(self) -> Path:
        return self.home / "nodes" / self.node

    def credentials(self) -> Security:
        """Returns the security file's content as it is now. Raises SecurityError."""
        return load(self.security)

    def arguments(self) -> list[str]:
        """Returns the command line that `parse` reads back."""
        pairs = {name: getattr(self, name) for name in _KINDS} | {"etcd": ",".join(self.etcd)}
        # only if set: an older agent or shim of this node does not know them
        wanted = {name: value for name, value in pairs.items() if value or name not in ("host", "security", "switch")}
        return [f"--{_option(name)}={value}" for name, value in wanted.items()] + (["--cold"] if self.cold else [])

    def malformed(self) -> str | None:
        """Returns a sentence about the first setting that is wrong, without a look at the security file; None: none is."""
        for option, name in (("node", self.node), ("host", self.host or self.node)):
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", name):
                return f"--{option} {name!r}: a name must be letters, digits, dots, dashes and underscores, 63 at most"
        if self.host not in ("", self.node) and not self.node.startswith(f"{self.host}."):
            return f"--host {self.host!r}: a node of a host of another name is called HOST.NAME, and this one {self.node!r}"
        for endpoint in self.etcd or ("",):
            try:
                host_and_port(endpoint)
            except ValueError:
                return f"--etcd {endpoint!r}: each endpoint is HOST:PORT, as in 127.0.0.1:2379 or https://etcd-0:2379"
        if self.role not in ("trainer", "service"):
            return f"--role {self.role!r}: it must be trainer or service"
        if self.role == "trainer" and self.slots < 1:
            return f"--slots {self.slots}: a trainer node has room for at least one rank"
        if self.lease_s < 1 or self.report_s <= 0 or self.grace_s < 0:
            return "--lease-s, --report-s and --grace-s: a time must be above 0"
        if not 0 <= self.metrics_port < 65536:
            return f"--metrics-port {self.metrics_port}: a port must be 0 (any free one) to 65535"
        if not self.address:
            return "--address is empty: give the address at which the other nodes reach this one"
        return None

    def unsafe(self) -> str | None:
        """Returns a sentence if this node may not listen, or reach etcd, with its security file."""
        try:
            security = checked(self.security, self.etcd, [("what this node listens on", self.address)])
            if not security.tls:
                return None
            who, wanted = read_certificate(security).name, node_name(self.node)
        except SecurityError as error:
            return str(error)
        if len(wanted) > NAME_AT_MOST:
            return f"--node {self.node}: with certificates a name has {NAME_AT_MOST - len(node_name(''))} characters at most"
        if who != wanted:
            return f"{security.cert} is the certificate of {who!r}: node {self.node} needs that of {wanted!r}"
        return None


_KINDS = {f.name: {"int": int, "float": float}.get(str(f.type), str) for f in fields(Settings) if f.name != "cold"}
"""Conversion of each option's text."""


def _option(name: str) -> str:
    return name.replace("_", "-")


def parse(arguments: Sequence[str]) -> Settings:
    """Reads `Settings.arguments`. Prints a sentence and exits 2 for arguments that are wrong. The security file is not
    read: `supervisor-agent` has checked it just before."""
    parser = argparse.ArgumentParser(prog="supervisor-agent run")
    for name, kind in _KINDS.items():
        needed = name in ("node", "home", "etcd")
        parser.add_argument(f"--{_option(name)}", type=kind, default=argparse.SUPPRESS, required=needed)
    parser.add_argument("--cold", action="store_true")
    values = vars(parser.parse_args(arguments))
    values["etcd"] = tuple(part.strip() for part in values["etcd"].split(",") if part.strip())
    values["home"] = Path(values["home"]).resolve()
    settings = Settings(**values)
    problem = settings.malformed()
    if problem is not None:
        parser.error(problem)
    return settings
