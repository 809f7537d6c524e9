"""Defines RunSpec, the contents of a run file.

Every field is made by `setting`, with its default and the reason for it. A key that is a time or a size carries its
unit as a suffix. `docs/RUN_FILE.md` is generated from this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from supervisor.core.model.engines import EngineName


def setting(default: Any, reason: str) -> Any:
    """Makes a field with its default and the reason for it; `...` as default means that the user must give it."""
    metadata = {"reason": reason}
    if default is ...:
        return field(metadata=metadata)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


LostPlace = Literal["error", "start", "skip"]


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The source of the training text."""

    source: Literal["recipe", "python-stdlib", "folder", "tokens"] = setting(
        "recipe",
        "recipe: what the recipe reads; the shipped ones read Python's standard library, which is on every machine. tokens: a store of `supervisor data build` (docs/DATA.md)",
    )
    path: str = setting(
        "",
        "local folder of .txt, .jsonl or .parquet files, or of a token store; needed when source is folder or tokens",
    )
    text_field: str = setting(
        "text", "column of jsonl and parquet files that holds the text; most data sets use this name"
    )
    lost_place: LostPlace = setting(
        "error",
        "a resume without a place in the data is an error; or begins at the first document or sample (start), or leaves out as many batches as the steps took (skip, not for token stores)",
    )


@dataclass(frozen=True, kw_only=True)
class TitanSpec:
    """The training by TorchTitan: recipe, length, data and checkpoints. A command of yours ([trainer]) gets `steps`,
    `seed` and `checkpoint_interval_steps`; the other keys are refused beside one."""

    recipe: str = setting(
        "llama3-debug",
        "a shipped recipe, MODULE:FUNCTION that returns the config of a TorchTitan trainer, or what TorchTitan's command line takes: --module M --config C",
    )
    steps: int = setting(1000, "committed steps to train for; the default is small enough to watch to its end")
    seed: int = setting(1234, "any fixed number; replicas are comparable only if they start from the same seed")
    overrides: dict[str, Any] = setting(
        dict, "path.to.field = value; checked against the fields and types of TorchTitan's config"
    )
    data: DataSpec = setting(DataSpec, "see [titan.data]")
    global_batch: Literal["constant", "shrinks"] = setting(
        "constant",
        'with data.source = "tokens", size of a step that lacks groups. constant: those that are there take its samples too, so that loss and schedule do not depend on failures. With other sources each group reads its own text, and a step shrinks',
    )
    max_accumulation: int = setting(
        0,
        "most forward and backward passes of a group in a constant step; beyond them the step shrinks. 0: no limit, since groups.min_groups bounds it already",
    )
    shrunk_lr: Literal["left", "scaled"] = setting(
        "left",
        'learning rate of a step that is smaller than planned, with data.source = "tokens"; scaled: by its share of the samples. Which is better depends on the optimizer, so nothing is changed unasked',
    )
    checkpoint_interval_steps: int = setting(
        50, "losing all groups at once costs at most this many steps; peers heal each other, so disk is the last resort"
    )
    checkpoints_kept: int = setting(2, "the newest checkpoint, and one more for a reader that still uses the older one")
    digest_interval_steps: int = setting(
        0,
        "committed steps between comparisons of replicas, by a hash of parameters, optimizer and learning rate; 0 disables them, because hashing costs time",
    )


@dataclass(frozen=True, kw_only=True)
class TrainerSpec:
    """The program that trains: TorchTitan's trainer, or a command of yours (docs/OWN_SCRIPT.md)."""

    command: tuple[str, ...] = setting(
        (),
        'program and arguments of each rank, as ["python", "train.py"]; empty: TorchTitan\'s trainer. `python` is the interpreter that runs the supervisor. It starts in env.directory, or else in the run file\'s folder',
    )
    reports: Literal["steps", "output"] = setting(
        "steps",
        "steps: the command reports its steps with everstep_trainer. output: it uses no library, and only its exit code and the growth of its output are seen",
    )
    silent_after_s: float = setting(
        0.0,
        "seconds without a new line of output, or a touch of the file named by SUPERVISOR_HEARTBEAT, after which a command that reports only output hangs; 0: never, since no one knows how often yours writes",
    )

    @property
    def plain(self) -> bool:
        """True for a command that reports no steps."""
        return self.reports == "output"


MAX_GROUPS = 100_000
"""More groups than any run has; no number beyond it may be counted up to."""

MAX_NODES_PER_GROUP = 32
"""One transaction of etcd must hold all that is decided about a group: three records for each of its nodes."""


@dataclass(frozen=True, kw_only=True)
class GroupsSpec:
    """The replica groups."""

    count: int = setting(2, "two is the fewest with which training survives the loss of one")
    ranks_per_group: int = setting(1, "one process, unless the model is too large for it")
    nodes_per_group: int = setting(1, "at most 32; one node, unless the model is too large for its GPUs")
    ranks_per_node: int = setting(0, "0: ranks_per_group / nodes_per_group; a run file may give either")
    min_groups: int = setting(
        1, "fewest groups that may step together; with 1, training goes on until the last group is lost"
    )

    @property
    def slots(self) -> int:
        """Ranks of a group on each of its nodes."""
        return self.ranks_per_group // self.nodes_per_group

    @property
    def nodes(self) -> int:
        """Nodes of all groups."""
        return self.count * self.nodes_per_group


@dataclass(frozen=True, kw_only=True)
class SlurmSpec:
    """The request to Slurm for nodes. An empty value leaves Slurm's default."""

    partition: str = setting("", "sbatch --partition; empty: the cluster's default")
    account: str = setting("", "sbatch --account")
    qos: str = setting("", "sbatch --qos")
    constraint: str = setting("", "sbatch --constraint")
    gres: str = setting("", 'sbatch --gres, as "gpu:8"')
    exclusive: bool = setting(True, "each job has a host of its own; false: jobs may share a host")
    time_limit: str = setting("", 'sbatch --time, as "2-00:00:00"; a job is replaced before it reaches its limit')
    warn_s: int = setting(
        300,
        "seconds before its limit at which Slurm warns a job: time for a successor to start and heal, or for a checkpoint",
    )
    flags: tuple[str, ...] = setting((), 'further flags for sbatch, as ["--reservation=llm"]')
    setup: str = setting(
        "",
        'shell lines before the agent starts, as "module load python"; no secrets here: source a file that only you can read',
    )
    agent_command: str = setting(
        "",
        "command that starts the agent, for example in a container; empty: the agent of the supervisor's environment",
    )
    node_folder: str = setting(
        "", "local folder on each node for logs and records; empty: a folder of the user below /tmp"
    )
    shape: Literal["job_per_node", "job_per_group"] = setting(
        "job_per_node",
        "a job for each node, so that each is given back alone; job_per_group: one job for the nodes of a group when the run starts, for sites where many jobs are unwelcome; if its batch script is ended, Slurm ends all of it (docs/SLURM.md)",
    )
    max_pending: int = setting(
        0, "most jobs of ours that wait in Slurm's queue at once, for sites that count them; 0: all at once"
    )
    drain_suspects: bool = setting(
        True, "drain a failed host in Slurm, if the user may, so that Slurm gives it to no one else"
    )


@dataclass(frozen=True, kw_only=True)
class AllocationSpec:
    """The machines, and the engine that gives them."""

    engine: EngineName = setting(
        "local",
        "local: processes on this machine, for a first run; slurm: jobs, one for each node or each group; pool: nodes of a pool that `supervisor hold` keeps (`launch --on POOL`)",
    )
    pool: str = setting("", "name of the pool; needed when engine is pool (docs/POOLS.md)")
    nodes: int = setting(
        2, "at least groups.count x groups.nodes_per_group, a node for each seat; not computed: set it with them"
    )
    spares: int = setting(1, "one node can be lost without waiting for the engine")
    wait_for_all: bool = setting(
        False,
        "false: if the engine gives too few nodes and has no queue, min_groups groups start, and the others join later. true: all groups wait for their nodes, up to policy.allocation_timeout_s (`launch --wait`)",
    )
    slurm: SlurmSpec = setting(SlurmSpec, "see [allocation.slurm]")


@dataclass(frozen=True, kw_only=True)
class HoldSpec:
    """The pool that `supervisor hold` makes of this run file (docs/POOLS.md). A launched run does not read it."""

    for_s: float = setting(
        0.0,
        "seconds after which the pool gives its nodes back, once no run uses it any more; 0: only `supervisor release` does (`hold --for 8h`)",
    )
    warn_idle_s: float = setting(
        3600.0,
        "warns each time that no run has used the pool for so long: idle nodes cost as much as busy ones; 0: never",
    )


@dataclass(frozen=True, kw_only=True)
class TorchFTSpec:
    """TorchFT's timeouts. With those of the policy they form a chain (docs/TIMEOUTS.md): heartbeat < join, process group < hang."""

    heartbeat_timeout_ms: int = setting(
        1000, "longest silence of a live group's network; the gate notices a dead process much sooner"
    )
    join_timeout_ms: int = setting(
        5000, "longest wait of the quorum for a group that heartbeats but has not asked to step"
    )
    process_group_timeout_ms: int = setting(
        10000, "longest healthy collective; survivors of a silent loss go on after this"
    )
    heal_timeout_s: float = setting(
        240.0,
        "longest transfer of a state to a group that heals: in its step the others wait so long for it, and not process_group_timeout. 30 GB a rank over 1 Gbit/s. A heal is a part of a start: raise policy.start_timeout_s with it",
    )
    quorum_timeout_ms: int = setting(
        1_800_000,
        "longest control-plane outage that a trainer survives; also the longest wait for a store or network whose loss ends groups, unless the breaker holds. TorchFT's default of 60 s killed both replicas in a test",
    )
    quorum_retries: int = setting(
        1000,
        "retries are timeout/(retries+1) apart, here 1.8 s; with 0 retries one lost connection is fatal",
    )


@dataclass(frozen=True, kw_only=True)
class BudgetSpec:
    """Uses of each rung within a window; past it the ladder climbs to the next rung."""

    restart: int = setting(3, "for each group: after three restarts in the window, a fourth cures nothing")
    replace: int = setting(4, "for the run: more lost nodes in the window suggest a cause other than the nodes")
    reallocate: int = setting(3, "for the run: allocations are expensive, and after the third a person should look")
    window_s: float = setting(3600.0, "one hour: a rarer failure is worth its restarts")


@dataclass(frozen=True, kw_only=True)
class FirstRungSpec:
    """The rung at which the ladder begins for a kind of failure; from there on the budgets make it climb."""

    crash: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "a process ended and its node lives: a restart in place is the cheapest remedy"
    )
    oom: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "its node lives; if it runs out of the same memory again, another node is tried"
    )
    error: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "a process ended and its node lives: a restart in place is the cheapest remedy"
    )
    peers_gone: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart",
        "it found no peer to heal from, or its heals failed: after a restart it tries again, or resumes from the newest checkpoint",
    )
    start_timeout: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "it never committed a step: another start is the cheapest thing to try"
    )
    stalled: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "its node lives, and it has been silent for longer than a hiccup lasts"
    )
    hang: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "restart", "its node lives: restarting its processes is the cheapest way to end a hang"
    )
    numerics: Literal["restart", "replace", "reallocate", "stop"] = setting(
        "replace", "its numbers were not finite while the others' were: its hardware is suspect"
    )
    gpu: Literal["replace", "reallocate", "stop"] = setting(
        "replace", "its GPU needs a reset or a repair before it can be used again"
    )
    node_lost: Literal["replace", "reallocate", "stop"] = setting(
        "replace", "its node is gone, so nothing can be started there"
    )
    straggler: Literal["ride_through", "restart", "replace"] = setting(
        "ride_through",
        "a slow group has not failed, so it is only reported; another value acts once it was slow for straggler_for_s, never beyond replace",
    )
    allocation_lost: Literal["reallocate", "stop"] = setting("reallocate", "the engine took its allocation away")


@dataclass(frozen=True, kw_only=True)
class HangSpec:
    """The time after which a step hangs: `factor` times what it usually takes on that rank, within these bounds."""

    factor: float = setting(10.0, "noise of a neighbour made steps five times as slow, and never ten times")
    at_least_s: float = setting(
        30.0, "at least twice join_timeout and process_group_timeout, for which survivors of a lost peer wait"
    )
    at_most_s: float = setting(
        1800.0,
        "bound of steps whose usual time is not learned yet, since a large model's first steps, checkpoint and evaluation are slow; also of each compile",
    )
    stopped_s: float = setting(
        1.5,
        "a process that the kernel shows as stopped (SIGSTOP, a debugger) is ended after this. A stop of a second is tolerated, and the other groups wait less than two; 0: never, so only a step's bound applies",
    )


@dataclass(frozen=True, kw_only=True)
class BreakerSpec:
    """If many groups, nodes or checks fail at once, no node is given up, ended groups restart, and a person looks."""

    share: float = setting(
        0.2,
        "above 0, at most 1: when a fifth of the nodes or groups fail at once, a shared switch or store is the likely cause",
    )
    at_least: int = setting(5, "among fewer nodes or groups, a share proves nothing")
    window_s: float = setting(
        60.0, "a failed switch cuts off its nodes within seconds, and their leases expire seconds later"
    )


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """The supervisor's decisions: budgets, rungs and timeouts."""

    mode: Literal["act", "observe"] = setting(
        "act", "observe: decide and record, but do nothing; for a first week beside your present tools"
    )
    observe: tuple[str, ...] = setting(
        (),
        "kinds of failure, as `supervisor incidents` names them, that are only observed in every mode. What follows from them is only observed too: if error is listed, a repeated error does not halt the run",
    )
    standby: Literal["built", "warm", "none"] = setting(
        "built",
        "how far the next start of a rank is prepared on its node. built: its process is forked, and its model built, while the rank trains, if twice the memory of the ranks there is free, and on spares; on a GPU and in a script of your own as warm. warm: a process that has imported everything forks it. none: a new process",
    )
    at_breakpoint: Literal["go_on", "wait"] = setting(
        "go_on",
        "go_on: the other groups train on while a person has a rank of one in the debugger. wait: they stop after their step until it goes on",
    )
    budget: BudgetSpec = setting(BudgetSpec, "see [policy.budget]")
    first_rung: FirstRungSpec = setting(FirstRungSpec, "see [policy.first_rung]")
    kind_budget: dict[str, int] = setting(
        dict,
        "crash = 2: at most two crashes of a group within budget.window_s start at their first rung, and later ones start a rung higher; by default only rungs have budgets",
    )
    hang: HangSpec = setting(HangSpec, "see [policy.hang]")
    breaker: BreakerSpec = setting(BreakerSpec, "see [policy.breaker]")
    backoff_first_s: float = setting(1.0, "pause before the second restart in a row; the first is immediate")
    backoff_max_s: float = setting(60.0, "a minute keeps a restart loop cheap without adding much to a real recovery")
    kind_backoff_s: dict[str, float] = setting(
        dict, "oom = 30.0: replaces backoff_first_s for one kind; by default all kinds have the same pause"
    )
    healthy_after_s: float = setting(
        120.0,
        "a group that ran this long after an incident has no backoff at its next restart; a command that reports no steps has recovered only then",
    )
    silent_timeout_s: float = setting(
        30.0, "a stopped process or a network hiccup often comes back; after this, waiting costs more than a restart"
    )
    straggler_factor: float = setting(
        1.5,
        "a group whose own work takes 1.5 times as long as the others' slows all of them down",
    )
    straggler_for_s: float = setting(
        600.0,
        "how long a group is slow before anything is done: noise of a neighbour ends in minutes (see first_rung.straggler)",
    )
    loss_spike_factor: float = setting(
        10.0,
        "reports a committed loss that exceeds recent ones by this many times their usual spread (median absolute deviation); a normal distribution exceeds 10 once in 10^11 steps",
    )
    start_timeout_s: float = setting(
        300.0,
        "from start to first commit: large models load and compile for minutes. A stop kills what has not ended after this time and a few steps",
    )
    node_lease_s: int = setting(
        5, "the node of an agent that is silent for longer counts as lost; agents renew it about every 1.7 s"
    )
    allocation_timeout_s: float = setting(
        600.0, "longest wait for a pending allocation before the run goes on without it"
    )
    cut_off_stop_s: float = setting(
        1800.0,
        "a node that reaches neither etcd nor the lighthouse for this long stops its trainers, whose quorum has timed out by then; 0: never",
    )
    term_grace_s: float = setting(5.0, "from TERM to KILL: time for a trainer to end its step and close its sockets")
    webhook_file: str = setting(
        "",
        "file on the supervisors' machines, for their user alone, with one URL. Rungs 3 and 4, suspended groups, an open breaker and hangs in which no process is ended are posted to it. A failed post is retried for a minute. It is a file because the URL is a secret; empty: no webhook",
    )


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The environment of the ranks and hooks (docs/ENVIRONMENT.md). Names that Everstep sets itself are refused."""

    set: dict[str, str] = setting(
        dict, 'NAME = "value"; no secrets: the run file lies in etcd, journals and backups. By default none is set'
    )
    files: dict[str, str] = setting(
        dict,
        'NAME = "/path/on/the/node": a secret. Each start reads the value on the node, from a file that only its owner can read',
    )
    pass_: tuple[str, ...] = setting(
        (),
        'names of the agent\'s own environment that reach the ranks; "WANDB_*" is a prefix. Empty: all do. A list keeps out all others but those of the system, the scheduler and the GPUs',
    )
    unset: tuple[str, ...] = setting((), "names of the agent's own environment that do not reach the ranks")
    directory: str = setting(
        "",
        "working directory of the ranks, absolute, on every node; empty: the agent's own, and for trainer.command the run file's folder",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """The network between the ranks of a run (docs/ENVIRONMENT.md). A node finds its own address in it at each start."""

    interface: str = setting(
        "",
        'name of the interface at which ranks meet and exchange gradients, on every node, as "ib0"; empty: that of each node\'s --address',
    )
    address: str = setting(
        "",
        'network of that interface instead, as "10.1.0.0/16" or "fd00::/64", where its name differs from node to node',
    )


KEYS = {"pass_": "pass"}
"""Keys of the run file that cannot be a field's name, by field."""


@dataclass(frozen=True, kw_only=True)
class HooksSpec:
    """Commands that a node runs around its ranks, in their environment (docs/ENVIRONMENT.md). Empty lists run nothing."""

    before: tuple[str, ...] = setting(
        (),
        'before the node\'s first rank of the run, as ["/shared/me/stage-data.sh"]; if it fails, the start has failed',
    )
    after: tuple[str, ...] = setting(
        (),
        "after the node's last rank of the run; a failure is only reported. At a node's end it has 10 s; a lost node runs none",
    )
    timeout_s: float = setting(
        60.0,
        "longest run of each; then it is killed and has failed. Below policy.start_timeout_s, which goes on meanwhile",
    )


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One pretraining run."""

    name: str = setting(..., "names the run everywhere: etcd keys, folders, metrics; letters, digits and dashes")
    chaos: Literal["forbidden", "allowed"] = setting(
        "forbidden", "allowed: `supervisor chaos run` may break it on purpose; the default protects runs that matter"
    )
    titan: TitanSpec = setting(TitanSpec, "see [titan]")
    trainer: TrainerSpec = setting(TrainerSpec, "see [trainer]")
    groups: GroupsSpec = setting(GroupsSpec, "see [groups]")
    allocation: AllocationSpec = setting(AllocationSpec, "see [allocation]")
    hold: HoldSpec = setting(HoldSpec, "see [hold]")
    torchft: TorchFTSpec = setting(TorchFTSpec, "see [torchft]")
    policy: PolicySpec = setting(PolicySpec, "see [policy]")
    network: NetworkSpec = setting(NetworkSpec, "see [network]")
    env: EnvSpec = setting(EnvSpec, "see [env]")
    hooks: HooksSpec = setting(HooksSpec, "see [hooks]")

    @property
    def is_pool(self) -> bool:
        """True for a pool: it has no groups, which no run file may say, and only holds nodes for runs."""
        return self.groups.count == 0


def only_scales(before: RunSpec, after: RunSpec) -> bool:
    """Returns true if two specs differ in the numbers of groups, nodes and spares, and in the policy, alone: no group must
    start again."""
    groups = replace(after.groups, count=before.groups.count)
    allocation = replace(after.allocation, nodes=before.allocation.nodes, spares=before.allocation.spares)
    return replace(after, groups=groups, allocation=allocation, policy=before.policy) == before
