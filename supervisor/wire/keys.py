"""etcd keys. Everything lives under one prefix; the docstrings say who may write what."""

from __future__ import annotations

PREFIX = "/supervisor/v1/"

LEADER = PREFIX + "leader"
"""The leader's key, under its lease. Its create revision is the epoch."""

EPOCHS_BEFORE = PREFIX + "epochs-before"
"""A number that is added to every epoch, so that epochs grow although a restored etcd counts from 1 again. Written by
`restore`."""

RESTORING = PREFIX + "restoring"
"""Exists while `restore` writes, so that no one leads on half a state. Written by `restore`."""

SYSTEM = PREFIX + "system"
"""A random name of this system, which marks its jobs at a scheduler. Written once, by the first supervisor."""

CORDONS = PREFIX + "cordons/"

NODES = PREFIX + "nodes/"
RUNS = PREFIX + "runs/"


def registration(node: str) -> str:
    """The agent's own key, under its lease: exists while the agent lives. Written by the agent."""
    return f"{NODES}{node}/registration"


def removed_node(node: str) -> str:
    """Exists once `init-auth --remove-node` took the node's rights: it gets no certificate. Written by `root`."""
    return f"{PREFIX}removed-nodes/{node}"


def second(node: str) -> str:
    """Exists, under its own lease, while a second agent of the node's name waits for the first. Written by the
    second."""
    return f"{NODES}{node}/second"


def health(node: str) -> str:
    """The machine's health. Written by the agent, on change and every 5 s."""
    return f"{NODES}{node}/health"


def observed(node: str) -> str:
    """The processes on the node. Written by the agent."""
    return f"{NODES}{node}/observed"


def check(node: str) -> str:
    """The results of the machine's checks, which outlive the node. Written by the agent, and by a check by hand."""
    return f"{NODES}{node}/check"


def gate(node: str, run: str) -> str:
    """The groups that the gate of `run` on this node hears and admits. Written by the gate."""
    return f"{NODES}{node}/gate/{run}"


def gate_presence(node: str, run: str) -> str:
    """Exists while the gate of `run` on this node reaches etcd, under its lease. Written by the gate."""
    return f"{NODES}{node}/gate-presence/{run}"


DESIRED = PREFIX + "desired/"


def desired(node: str, run: str) -> str:
    """Everything of a run that must be on the node (with an empty run: the prefix). Written by the leader, fenced."""
    return f"{DESIRED}{node}/{run}"


def cordon(host: str) -> str:
    """A person's order that keeps groups away from a host. Written by the CLI."""
    return f"{CORDONS}{host}/person"


def suspicion(host: str, run: str, incident: str) -> str:
    """An incident held against a host. Written by the leader, with its memory. Deleted by the CLI, and by the leader if
    the failure follows its group to another host."""
    return f"{CORDONS}{host}/incident/{run}/{incident}"


def spec(run: str) -> str:
    """The RunSpec. Created by `launch`, replaced by the leader when a relaunch takes effect, deleted by `rm`."""
    return f"{RUNS}{run}/spec"


def next_spec(run: str) -> str:
    """The spec of the newest relaunch that was asked for. Written by the CLI."""
    return f"{RUNS}{run}/next-spec"


def earlier_spec(run: str, number: int) -> str:
    """A spec that a relaunch has replaced. Written by the leader."""
    return f"{RUNS}{run}/specs/{number}"


def control(run: str) -> str:
    """A person's requests for the run: pause, stop, restart. Written by the CLI."""
    return f"{RUNS}{run}/control"


def policy(run: str) -> str:
    """The policy that a person has set since the launch. Written by the CLI."""
    return f"{RUNS}{run}/policy"


def code(run: str) -> str:
    """The version of the code of a run or pool, and those before it. Written by the CLI."""
    return f"{RUNS}{run}/code"


def memory(run: str, part: str) -> str:
    """One part of the supervisor's memory of the run. Written by the leader."""
    return f"{RUNS}{run}/memory/{part}"


def incident(run: str, incident: str) -> str:
    """One incident. Written by the leader."""
    return f"{RUNS}{run}/incidents/{incident}"


def allocation(run: str, key: str) -> str:
    """A wanted or given-back allocation (the intent). Written by the leader."""
    return f"{RUNS}{run}/allocations/{key}"


def grant(run: str, key: str) -> str:
    """The engine's report of an allocation (the fact). Written by the leader's engine driver."""
    return f"{RUNS}{run}/grants/{key}"


def decision(run: str, slot: int) -> str:
    """One of the newest decisions about the cluster; their slots are reused in turn. Written by the leader."""
    return f"{RUNS}{run}/decisions/{slot}"


def notice(run: str, about: str) -> str:
    """A notice to a person. Created by the leader that sends it."""
    return f"{RUNS}{run}/notices/{about}"


def faults(run: str) -> str:
    """How many faults of each kind were injected into the run. Written by `supervisor chaos`."""
    return f"{RUNS}{run}/faults"


def account(run: str) -> str:
    """Where the time of its groups went. Written by the leader."""
    return f"{RUNS}{run}/account"


def checkpoint(run: str) -> str:
    """The newest complete checkpoint. Written by the leader."""
    return f"{RUNS}{run}/checkpoint"


def removed(run: str) -> str:
    """The numbers that removed runs of this name have used. Written by `rm`."""
    return f"{RUNS}{run}/removed"
