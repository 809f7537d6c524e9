"""Decides the environment of our processes in one place: RULES states for each name what happens to it, and why.

Variables of an outer job or a login shell never reach a trainer. Users' settings for trainers (NCCL_*, CUDA_*, HF_*,
OMP_*) pass unchanged. Standard library only: the shim imports this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from supervisor.wire.enrollment import VARIABLE as ENROLL
from supervisor.wire.programs import CONTROL_PLANE, PART
from supervisor.wire.security import VARIABLE

if TYPE_CHECKING:
    from supervisor.wire.records import TrainerLaunch

LAUNCH = "SUPERVISOR_LAUNCH"
"""Environment variable of a rank that runs a user's own command: the path of its launch.json."""

HEARTBEAT = "SUPERVISOR_HEARTBEAT"
"""Environment variable of such a rank: a file that it may touch where its output does not show that it goes on."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")

NO_PROXY = ("no_proxy", "NO_PROXY")
"""Programs differ in which one they read, so both have the same value."""

PROXIES = tuple(
    name for scheme in ("http", "https", "all", "grpc") for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())
)


SECRET = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|_(?:KEY|PASS|PAT|PWD)$", re.IGNORECASE
)
"""Found in the name of a variable that holds a secret."""

SET_BY_US = {
    "SUPERVISOR_*": "names that begin like this are Everstep's own",
    "EVERSTEP_*": "names that begin like this are Everstep's own",
}
"""Further names that a run file must not set, and why: we would overwrite them, or depend on them."""

OF_THE_NETWORK = ("NCCL_*", "GLOO_*")
"""Names by which a user chooses interfaces and protocols of the ranks; they win over what Everstep finds."""

ALWAYS = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR"),
    *("SLURM_*", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPU_DEVICE_ORDINAL", "NVIDIA_*", "SUPERVISOR_*"),
)
"""Names that reach the ranks also beside a list `env.pass`: without them the interpreter does not start, or the ranks
take other GPUs than the scheduler gave."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. A trailing `*` makes a name a prefix; the first matching rule applies."""

    names: tuple[str, ...]
    does: Literal["kept", "removed", "harmful"]
    """harmful: kept, since a user may want it, and reported by the doctor."""
    why: str
    of: Literal["all", "node", "etcd"] = "all"
    """Processes to which it applies. node: the shim and all below it, trainers included."""

    def fits(self, name: str) -> bool:
        return fits(name, self.names)


RULES = (
    Rule(
        ("TORCHFT_USE_OTEL", "TORCHFT_OTEL_*", "TORCHFT_TRIGGER_FR_ON_ABORT"),
        "kept",
        "a user's choice of TorchFT's telemetry",
    ),
    Rule(
        ("TORCHFT_*", "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS"),
        "removed",
        "TorchFT prefers ports and timeouts from it; [torchft] and [groups] of the run file set them",
    ),
    Rule(
        (
            *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
            *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
            *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "NCCL_COMM_ID"),
        ),
        "removed",
        "ranks and meeting point of another job; each trainer gets its own",
    ),
    Rule(("ETCD_UNSUPPORTED_ARCH",), "kept", "etcd does not start without it on some machines", of="etcd"),
    Rule(("ETCD_*",), "removed", "etcd refuses to start where it contradicts our flags", of="etcd"),
    Rule(
        ("SUPERVISOR_ETCD", VARIABLE, ENROLL, CONTROL_PLANE, PART),
        "removed",
        "for people and the control plane; a node's processes get arguments instead",
        of="node",
    ),
    Rule(("CUDA_LAUNCH_BLOCKING",), "harmful", "every kernel waits for the one before: only for debugging"),
    Rule(
        ("TORCH_DISTRIBUTED_DEBUG",), "harmful", "DETAIL checks every collective against all ranks, and slows each down"
    ),
    Rule(("LD_PRELOAD", "PYTHONHOME"), "harmful", "other libraries than the tested ones are loaded into every process"),
    Rule(("PYTHONWARNINGS",), "harmful", "if it turns warnings into errors, TorchTitan's own warnings end a trainer"),
)


def decided(of: Mapping[str, str], near: Iterable[str] = ()) -> dict[str, str]:
    """Returns the environment of one of our processes, derived from `of`. `near`: the node's own addresses, which are
    reached without a proxy, like loopback."""
    return _without(_direct(of, near), "all")


def of_node(of: Mapping[str, str], near: Iterable[str] = ()) -> dict[str, str]:
    """Returns what `decided` returns, for the shim and all below it."""
    return _without(decided(of, near), "node")


def of_rank(
    of: Mapping[str, str],
    given: Mapping[str, str],
    passed: Sequence[str] = (),
    unset: Sequence[str] = (),
    near: Iterable[str] = (),
) -> dict[str, str]:
    """Returns the environment of a run's ranks, from that of the shim. `given`, `passed` and `unset` are as [env] has
    them; an empty `passed` passes all."""
    kept = {n: v for n, v in of.items() if (not passed or fits(n, (*ALWAYS, *passed))) and not fits(n, unset)}
    return of_node({**kept, **given}, near)


def refused(name: str) -> str:
    """Returns why a run file must not set a variable; empty if it may."""
    if why := next((why for ours, why in SET_BY_US.items() if fits(name, [ours])), ""):
        return why
    rule = _rule(name, "all") or _rule(name, "node")
    return rule.why if rule is not None and rule.does == "removed" else ""


def fits(name: str, names: Iterable[str]) -> bool:
    """Returns true if a name is in the list, where a trailing `*` makes an entry a prefix."""
    return any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in names)


def of_etcd(of: Mapping[str, str], near: Iterable[str] = ()) -> dict[str, str]:
    """Returns what `decided` returns, for an etcd server."""
    return _without(decided(of, near), "etcd")


def found(of: Mapping[str, str], does: str) -> list[tuple[list[str], Rule]]:
    """Returns names that a rule for every process removes, or calls harmful, each with its rule."""
    rows = [([name for name in sorted(of) if _rule(name, "all") is rule], rule) for rule in RULES if rule.does == does]
    return [(names, rule) for names, rule in rows if names]


def proxies(of: Mapping[str, str]) -> list[str]:
    """Returns the names of the proxies that are set."""
    return [name for name in PROXIES if of.get(name)]


def meeting_point(launch: TrainerLaunch) -> dict[str, str]:
    """Returns the variables by which torch.distributed and TorchFT find a rank's group and its way to the lighthouse."""
    torchft = launch.torchft
    return {
        "RANK": str(launch.rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(launch.local_rank),
        "LOCAL_WORLD_SIZE": str(launch.local_world_size),
        "MASTER_ADDR": launch.master_address,
        "MASTER_PORT": str(launch.master_port),
        "TORCHFT_LIGHTHOUSE": f"http://{launch.lighthouse}",
        # TorchFT reads whole seconds
        "TORCHFT_QUORUM_TIMEOUT_SEC": str(-(-torchft.quorum_timeout_ms // 1000)),
        "TORCHFT_QUORUM_RETRIES": str(torchft.quorum_retries),
    }


def of_process(pid: int) -> dict[str, str]:
    """Returns the variables with which a process was started. Raises OSError if it has ended, or is another user's."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        entries = os.fsdecode(file.read()).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _rule(name: str, whose: str) -> Rule | None:
    return next((rule for rule in RULES if rule.of == whose and rule.fits(name)), None)


def _without(of: Mapping[str, str], whose: str) -> dict[str, str]:
    removed = {name for name in of if (rule := _rule(name, whose)) is not None and rule.does == "removed"}
    return {name: value for name, value in of.items() if name not in removed}


def _direct(of: Mapping[str, str], near: Iterable[str]) -> dict[str, str]:
    if not proxies(of):
        return dict(of)
    named = [host.strip() for name in NO_PROXY for host in of.get(name, "").split(",")]
    hosts = [*LOOPBACK, *near]
    # urllib compares with the brackets, others without
    hosts += [f"[{host}]" for host in hosts if ":" in host]
    everyone = ",".join(dict.fromkeys(filter(None, (*named, *hosts))))
    return {**of, **dict.fromkeys(NO_PROXY, everyone)}
