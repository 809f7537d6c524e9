"""Defines RunSpec, the contents of a run file.

Every field is made by `setting`, with its default and the reason for it. A key that is a time or a size carries its
unit as a suffix. `docs/RUN_FILE.md` is generated from this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from supervisor.core.engines import EngineName


def setting(default: Any, reason: str) -> Any:
    """Makes a field with its default and the reason for it; `...` as default means that the user must give it."""
    metadata = {"reason": reason}
    if default is ...:
        return field(metadata=metadata)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The source of the training text."""

    source: Literal["python-stdlib", "folder"] = setting(
        "python-stdlib", "the standard library's own source is on every machine, so a first run needs no download"
    )
    path: str = setting("", "local folder of .txt, .jsonl or .parquet files; needed when source is folder")
    text_field: str = setting(
        "text", "the column of jsonl and parquet files that holds the text, as most data sets name it"
    )


@dataclass(frozen=True, kw_only=True)
class TitanSpec:
    """The training by TorchTitan: recipe, length, data and checkpoints."""

    recipe: str = setting(
        "llama3-debug", "a shipped recipe, or MODULE:FUNCTION that returns a TorchTitan FaultTolerantTrainer config"
    )
    steps: int = setting(1000, "committed steps to train for; small enough to end while somebody watches")
    seed: int = setting(1234, "any fixed number: the replicas must start from the same one to be comparable")
    overrides: dict[str, Any] = setting(
        dict, "path.to.field = value, checked against the fields and types of the config; none by default"
    )
    data: DataSpec = setting(DataSpec, "see [titan.data]")
    checkpoint_interval_steps: int = setting(
        50, "a whole-run loss costs at most this many steps; peers heal each other, so disk is the last resort"
    )
    checkpoints_kept: int = setting(2, "the newest, and one more in case a reader is still on the older one")
    digest_interval_steps: int = setting(
        0,
        "hash parameters, optimizer and learning rate every N committed steps to compare replicas; 0 is off: it costs time",
    )


@dataclass(frozen=True, kw_only=True)
class GroupsSpec:
    """The replica groups."""

    count: int = setting(2, "two is the least with which training survives the loss of one")
    ranks_per_group: int = setting(1, "one process holds the model unless it is too large for one")
    min_groups: int = setting(
        1, "fewest groups that may step together; 1 keeps training through every loss but the last"
    )


@dataclass(frozen=True, kw_only=True)
class SlurmSpec:
    """The request to Slurm for a node: one job each. An empty value leaves Slurm's default."""

    partition: str = setting("", "sbatch --partition; a cluster has its own default")
    account: str = setting("", "sbatch --account")
    qos: str = setting("", "sbatch --qos")
    constraint: str = setting("", "sbatch --constraint")
    gres: str = setting("", 'sbatch --gres, as "gpu:8"')
    exclusive: bool = setting(True, "training has a host for itself; false: several jobs may share one")
    time_limit: str = setting("", 'sbatch --time, as "2-00:00:00"; a job near its limit is replaced before it')
    warn_s: int = setting(
        300, "Slurm warns a job this long before its limit: time for a successor to start and heal, or for a checkpoint"
    )
    flags: tuple[str, ...] = setting((), 'further flags of sbatch, as ["--reservation=llm"]')
    setup: str = setting(
        "",
        'shell lines before the agent starts, as "module load python"; never a secret: source a file that only you can read',
    )
    agent_command: str = setting(
        "", "what starts the agent, as in a container; by default that of the supervisor's own environment"
    )
    node_folder: str = setting(
        "", "folder on each node for logs and records, not shared; by default one of the user's below /tmp"
    )
    drain_suspects: bool = setting(
        True, "tell Slurm to drain a host that failed, where the user may: others would be given it"
    )


@dataclass(frozen=True, kw_only=True)
class AllocationSpec:
    """The machines, and the engine that gives them."""

    engine: EngineName = setting("local", "processes on this machine, for a first run; slurm: a job a node")
    nodes: int = setting(2, "one node a group")
    spares: int = setting(1, "one node can be lost without asking the engine for another")
    wait_for_all: bool = setting(
        False,
        "an engine that has too few nodes, and no queue, gets no more by waiting: the groups that have a node start at once, if they are min_groups, and the others join later; true: they wait for all, up to policy.allocation_timeout_s (`launch --wait`)",
    )
    slurm: SlurmSpec = setting(SlurmSpec, "see [allocation.slurm]")


@dataclass(frozen=True, kw_only=True)
class TorchFTSpec:
    """TorchFT's timeouts. With those of the policy they form a chain (docs/TIMEOUTS.md): heartbeat < join, process group < hang."""

    heartbeat_timeout_ms: int = setting(
        1000, "how long a live group's network may be silent; the gate's beats drop a dead process much sooner"
    )
    join_timeout_ms: int = setting(
        5000, "how long the quorum waits for a group that heartbeats but has not asked to step"
    )
    process_group_timeout_ms: int = setting(
        10000, "longest healthy collective; survivors of a silent loss are freed after this"
    )
    quorum_timeout_ms: int = setting(
        1_800_000,
        "the longest control-plane outage a trainer survives, and how long a store or network that ends groups is waited for where the breaker does not hold; TorchFT's 60 s killed both replicas in a test",
    )
    quorum_retries: int = setting(
        1000,
        "the pause between retries is timeout/(retries+1): 1.8 s here; with 0 retries one lost connection is fatal",
    )


@dataclass(frozen=True, kw_only=True)
class BudgetSpec:
    """Uses of each rung within a window; past it the ladder climbs to the next rung."""

    restart: int = setting(
        3, "per group: a crash that comes back three times in the window is not cured by a fourth restart"
    )
    replace: int = setting(4, "per run: more node losses than this in a window smell of a cause that is not the nodes")
    reallocate: int = setting(3, "per run: allocations are dear, and a person should look after the third")
    window_s: float = setting(3600.0, "an hour: a failure that comes less than hourly is worth its restarts")


@dataclass(frozen=True, kw_only=True)
class FirstRungSpec:
    """The rung at which the ladder begins for a kind of failure; from there on the budgets make it climb."""

    crash: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "a process ended and its node lives: starting it again there is the cheapest cure"
    )
    oom: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "its node lives; with the same memory it may end the same way, and then another node is tried"
    )
    error: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "a process ended and its node lives: starting it again there is the cheapest cure"
    )
    peers_gone: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "it found no peer to heal from: started again, it resumes from the newest checkpoint"
    )
    start_timeout: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "it never committed: one more start may, and is the cheapest thing to try"
    )
    stalled: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "its node lives, and it has been silent for longer than a hiccup lasts"
    )
    hang: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "its node lives: starting its processes again is the cheapest thing that ends a hang"
    )
    numerics: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "replace", "its numbers were not finite while the others' were: its hardware is suspect"
    )
    gpu: Literal["replace", "reallocate", "stop"] = setting(
        "replace", "its GPU needs a reset or a hand before it can be used again"
    )
    node_lost: Literal["replace", "reallocate", "stop"] = setting(
        "replace", "its node is gone, nothing can be started there"
    )
    straggler: Literal["ride_through", "restart", "replace"] = setting(
        "ride_through",
        "it fails nothing: it is reported; else what is done once it was slow for straggler_for_s, and never more than replace",
    )
    allocation_lost: Literal["reallocate", "stop"] = setting("reallocate", "the engine took its allocation away")


@dataclass(frozen=True, kw_only=True)
class HangSpec:
    """The time after which a step hangs: `factor` times what it usually takes on that rank, within these bounds."""

    factor: float = setting(10.0, "a step five times as slow is a neighbour's noise; ten times is none that was seen")
    at_least_s: float = setting(
        30.0, "longer than survivors of a lost peer wait: join_timeout and process_group_timeout, twice"
    )
    at_most_s: float = setting(
        1800.0,
        "for what has not been learned yet: the first steps, checkpoint and evaluation of a large model are slow; and for each compile",
    )
    stopped_s: float = setting(
        1.5,
        "a process that the kernel shows as stopped (SIGSTOP, a debugger) is ended after this: a person's slip of a second is forgiven, and the others wait for less than two; 0 is never, and the bound of a step counts",
    )


@dataclass(frozen=True, kw_only=True)
class BreakerSpec:
    """If many groups, nodes or checks fail at once, no node is given up, ended groups restart, and a person looks."""

    share: float = setting(
        0.2,
        "above 0, at most 1: a fifth of the nodes, or of the groups, do not fail by themselves at once: a switch or a store did",
    )
    at_least: int = setting(5, "below this many a share says nothing")
    window_s: float = setting(
        60.0, "a switch takes its nodes within seconds, and their leases lapse within seconds more"
    )


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """The supervisor's decisions: budgets, rungs and timeouts."""

    mode: Literal["act", "observe"] = setting(
        "act", "observe: decide and write down, and do nothing; for a first week beside what you have"
    )
    observe: tuple[str, ...] = setting(
        (),
        "kinds of failure that are only observed whatever the mode is, as `supervisor incidents` names them, and what comes of them: who observes error is not halted by the same error again",
    )
    budget: BudgetSpec = setting(BudgetSpec, "see [policy.budget]")
    first_rung: FirstRungSpec = setting(FirstRungSpec, "see [policy.first_rung]")
    kind_budget: dict[str, int] = setting(
        dict,
        "crash = 2: of a group's crashes within budget.window_s no more than two begin at their first rung, the next ones a rung higher; by default only the rungs have budgets",
    )
    hang: HangSpec = setting(HangSpec, "see [policy.hang]")
    breaker: BreakerSpec = setting(BreakerSpec, "see [policy.breaker]")
    backoff_first_s: float = setting(1.0, "pause before the second restart in a row; the first has none")
    backoff_max_s: float = setting(60.0, "a minute keeps a restart loop cheap without adding much to a real recovery")
    kind_backoff_s: dict[str, float] = setting(
        dict, "oom = 30.0: in the place of backoff_first_s for one kind; by default there is one pause for all kinds"
    )
    healthy_after_s: float = setting(120.0, "a group that ran this long since its incident starts again at no backoff")
    silent_timeout_s: float = setting(
        30.0, "a stopped process or a network hiccup often comes back; after this, waiting costs more than a restart"
    )
    straggler_factor: float = setting(
        1.5,
        "a group that takes half as long again as the others, itself, slows all of them down",
    )
    straggler_for_s: float = setting(
        600.0, "before anything is done about one: a neighbour's noise is over in minutes (see first_rung.straggler)"
    )
    loss_spike_factor: float = setting(
        10.0,
        "a committed loss so many times its usual spread (median absolute deviation) above the last ones is reported; a normal distribution goes beyond 10 once in 10^11 steps",
    )
    start_timeout_s: float = setting(
        300.0,
        "from start to first commit: large models load and compile for minutes; a stop ends after it, and a few steps, what has not ended by itself",
    )
    node_lease_s: int = setting(
        5, "an agent silent for longer has lost its node; a single machine's agents renew every 1.7 s"
    )
    allocation_timeout_s: float = setting(
        600.0, "how long a new allocation may stay pending before the run goes on without it"
    )
    cut_off_stop_s: float = setting(
        1800.0,
        "a node that reaches neither etcd nor the lighthouse for this long stops its trainers: their quorum times out by then; 0 is never",
    )
    term_grace_s: float = setting(5.0, "from TERM to KILL: a trainer ends its step and closes its sockets in this")
    webhook_file: str = setting(
        "",
        "file on the supervisors' machines with the one URL that is told of rungs 3 and 4, of a group that is left out, of an open breaker and of a hang for which nobody is ended, again for a minute where it does not take it; a file, since whoever has the URL may write there; empty is nobody",
    )


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One pretraining run."""

    name: str = setting(..., "names the run everywhere: etcd keys, folders, metrics; letters, digits and dashes")
    chaos: Literal["forbidden", "allowed"] = setting(
        "forbidden", "allowed: `supervisor chaos run` may break it on purpose; a run that matters is broken by nobody"
    )
    titan: TitanSpec = setting(TitanSpec, "see [titan]")
    groups: GroupsSpec = setting(GroupsSpec, "see [groups]")
    allocation: AllocationSpec = setting(AllocationSpec, "see [allocation]")
    torchft: TorchFTSpec = setting(TorchFTSpec, "see [torchft]")
    policy: PolicySpec = setting(PolicySpec, "see [policy]")
