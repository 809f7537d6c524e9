"""Checks [network], [env] and [hooks]: names, secrets, and what Everstep sets itself."""

from __future__ import annotations

import ipaddress
import re

from supervisor.core.model.spec import EnvSpec, HooksSpec, NetworkSpec, RunSpec
from supervisor.wire import environment

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def problems(spec: RunSpec) -> list[str]:
    """Returns the problems as sentences."""
    return _network(spec.network) + _env(spec.env) + _hooks(spec.hooks, spec.policy.start_timeout_s)


def _network(network: NetworkSpec) -> list[str]:
    found = []
    if network.interface and network.address:
        found.append("network.interface and network.address both choose an interface: remove one of them")
    if not re.fullmatch(r"[^\s/]{0,15}", network.interface):
        found.append(
            f"network.interface = {network.interface!r}: the name of an interface has up to 15 characters, as ib0"
        )
    try:
        ipaddress.ip_network(network.address or "0.0.0.0/0", strict=False)
    except ValueError:
        found.append(f'network.address = {network.address!r}: give a network with its length, as "10.1.0.0/16"')
    return found


def _env(env: EnvSpec) -> list[str]:
    found = []
    for table, names in {"set": env.set, "files": env.files, "pass": env.pass_, "unset": env.unset}.items():
        for name in names:
            found += _name(table, name)
    for name, value in env.set.items():
        if environment.SECRET.search(name):
            found.append(
                f"env.set.{name}: this name is that of a secret, and a run file lies in etcd, in journals and in backups: "
                "write the value to a file on every node that only its owner can read, and give that file's path as "
                f"env.files.{name}"
            )
        if "\0" in value:
            found.append(f"env.set.{name}: a zero byte cannot be in a variable's value: remove it")
        for other, names in (("files", env.files), ("unset", env.unset)):
            if name in names:
                found.append(f"env.set.{name}: it is in env.{other} too: remove one of them")
    for name, path in env.files.items():
        if not path.startswith("/"):
            found.append(f"env.files.{name} = {path!r}: give the absolute path of a file on the nodes")
        if name in env.unset:
            found.append(f"env.files.{name}: it is in env.unset too: remove one of them")
    if env.directory and not env.directory.startswith("/"):
        found.append(f"env.directory = {env.directory!r}: give the absolute path of a folder on the nodes")
    return found


def _name(table: str, name: str) -> list[str]:
    is_list = table in ("pass", "unset")
    key = f"env.{table}: {name!r}" if is_list else f"env.{table}.{name}"
    if not _NAME.fullmatch(name.removesuffix("*") if is_list and len(name) > 1 else name):
        prefix = ", with a * at its end for all that begin so" if is_list else ""
        return [f"{key}: a variable's name is of letters, digits and underscores{prefix}"]
    if table != "pass" and (why := environment.refused(name)):
        return [f"{key}: Everstep decides this variable ({why}): remove it"]
    return []


def _hooks(hooks: HooksSpec, start_timeout_s: float) -> list[str]:
    found = []
    for key, command in (("before", hooks.before), ("after", hooks.after)):
        if command and not command[0]:
            found.append(f'hooks.{key}: the command is empty: give the program first, as ["/shared/me/stage.sh"]')
    if hooks.before and hooks.timeout_s >= start_timeout_s:
        found.append(
            f"hooks.timeout_s = {hooks.timeout_s:g}: must be below policy.start_timeout_s = {start_timeout_s:g}, within "
            "which a start has to commit its first step, the hook included: lower the one or raise the other"
        )
    return found
