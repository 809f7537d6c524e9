"""Makes TorchFT's Manager for a script of the user's own: mended, with the run file's timeouts, and watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from titan_actor import address, gloo, mends, peers
from titan_actor.meeting import Meeting

if TYPE_CHECKING:
    from everstep_trainer import Rank


def manager(rank: Rank, state_dict: Callable[[], Any], load: Callable[[Any], None], options: dict[str, Any]) -> Any:
    """Returns the Manager; see Rank.manager."""
    mends.apply_torchft()
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo

    launch, torchft = rank.launch, rank.launch.torchft
    timeout = timedelta(milliseconds=torchft.process_group_timeout_ms)
    # a group of several ranks has made its own store at this address by init_process_group
    serves = launch.rank == 0 and not dist.is_initialized()
    store = address.serve_store(launch.master_address, launch.master_port, timeout_s=300) if serves else None
    values: dict[str, Any] = {
        "pg": options.pop("pg", None) or ProcessGroupGloo(timeout=timeout),
        "min_replica_size": launch.min_groups,
        # a quorum beside the forward pass reads the state while hooks change it
        "use_async_quorum": False,
        "timeout": timeout,
        "quorum_timeout": timedelta(milliseconds=torchft.quorum_timeout_ms),
        "quorum_retries": torchft.quorum_retries,
        "rank": launch.rank,
        "world_size": launch.world_size,
        "store_addr": launch.master_address,
        "store_port": launch.master_port,
        "lighthouse_addr": f"http://{launch.lighthouse}",
        "replica_id": f"{launch.run}_{launch.group}",
        "hostname": launch.node_address,
    }
    made = Manager(load_state_dict=load, state_dict=state_dict, **{**values, **options})
    made.supervisor_store = store  # lives as long as the manager
    _watch(rank, made)
    return made


def _watch(rank: Rank, made: Any) -> None:
    """Wraps the manager's calls, so that the node's agent sees for what this rank waits."""
    from torchft.manager import _ManagedWork

    launch, saved_before = rank.launch, peers.saved(rank.launch.run_dir)
    meeting = Meeting(made, launch.torchft.process_group_timeout_ms / 1000)
    made._pg.supervisor_listening = gloo.servers_of(made, launch.lighthouse, launch.master_port)
    made.supervisor_healed = False
    patience = timedelta(milliseconds=launch.torchft.quorum_timeout_ms)
    start, commit, apply, wait = (
        made.start_quorum,
        made.should_commit,
        made._apply_pending_state_dict,
        _ManagedWork.wait,
    )

    def abort() -> None:
        meeting.abort()
        made._pg.abort()

    def start_quorum(*args: Any, **kwargs: Any) -> None:
        first = rank.reported.commits == 0
        if first:
            rank.phase("quorum")
        with rank.during("quorum"):
            start(*args, **kwargs)
            made.wait_quorum()
        if first and made.errored() is None:
            peers.refuse_behind(launch, int(made.current_step()), saved_before)

    def apply_state() -> None:
        with rank.during("heal"):
            apply()
        made.supervisor_healed = True

    def should_commit(*args: Any, **kwargs: Any) -> bool:
        # TorchFT waits as long as for one collective, and raises: a rank whose neighbour hangs would fail in its place
        with rank.during("commit"):
            return bool(commit(*args, **{"timeout": patience, **kwargs}))

    def wait_for_peers(work: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            with rank.during("collective"):
                return wait(work, *args, **kwargs)
        finally:
            rank.waited_s += time.perf_counter() - began

    made.supervisor_abort, made.start_quorum, made.should_commit = abort, start_quorum, should_commit
    made._apply_pending_state_dict, _ManagedWork.wait = apply_state, wait_for_peers
