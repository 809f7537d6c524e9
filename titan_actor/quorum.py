"""A rank's TorchFT manager, watched: its node's agent sees what this rank waits for, and its records what it costs.

Shared by TorchTitan's trainer and a script of the user's own (everstep_trainer), for which the manager is made here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

from supervisor.wire.records import TrainerLaunch
from supervisor.wire.version import misfit
from titan_actor import address, gloo, mends, peers, torchft_names
from titan_actor.heals import Heals
from titan_actor.meeting import Meeting
from titan_actor.process import RankProcess

log = logging.getLogger(__name__)


def manager(launch: TrainerLaunch, state_dict: Callable[[], Any], load: Callable[[Any], None], **options: Any) -> Any:
    """Makes TorchFT's manager for a script without TorchTitan: mended, at the node's address, with the run file's
    timeouts. `options` go to torchft.Manager; `pg` is a ProcessGroupGloo unless given. Raises RuntimeError for another
    version of TorchFT, and what TorchFT raises."""
    if why := misfit("torchft"):
        raise RuntimeError(f"node {launch.node}: {why}")
    mends.apply_torchft()
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo

    timeout = timedelta(milliseconds=launch.torchft.process_group_timeout_ms)
    # a group of several ranks has made its own store at this address by init_process_group
    serves = launch.rank == 0 and not dist.is_initialized()
    store = address.serve_store(launch.master_address, launch.master_port, timeout_s=300) if serves else None
    values: dict[str, Any] = {
        "pg": options.pop("pg", None) or ProcessGroupGloo(timeout=timeout),
        "min_replica_size": launch.min_groups,
        # a quorum beside the forward pass reads the state while hooks change it
        "use_async_quorum": False,
        "timeout": timeout,
        "quorum_timeout": timedelta(milliseconds=launch.torchft.quorum_timeout_ms),
        "quorum_retries": launch.torchft.quorum_retries,
        "rank": launch.rank,
        "world_size": launch.world_size,
        "store_addr": launch.master_address,
        "store_port": launch.master_port,
        "lighthouse_addr": f"http://{launch.lighthouse}",
        "replica_id": f"{launch.run}_{launch.group}",
        "hostname": launch.node_address,
    }
    with torchft_names.named(peers.before(launch)):
        made = Manager(load_state_dict=load, state_dict=state_dict, **{**values, **options})
    torchft_names.join_anew(made)
    made.supervisor_store = store  # lives as long as the manager
    return made


class Quorum:
    """One rank's part in the quorum. Wraps the manager's calls on the instance, because TorchFT calls itself through it
    too."""

    def __init__(self, manager: Any, rank: RankProcess) -> None:
        self._manager, self._launch, self._report, self._ledger = manager, rank.launch, rank.report, rank.ledger
        self._activity, self._seconds, self._saved_before = rank.activity, rank.seconds, rank.saved_before
        launch, seconds = rank.launch, rank.seconds
        self.id = -1
        """Number of the newest quorum."""
        self.all_take_part = False
        """True if all groups wait for each quorum before their step: those that heal in one count in its step too."""
        self.waits_if_behind = False
        """True if a group that may be behind waits for the quorum: it counts too where all groups of the quorum do so."""
        self.waited = True
        """False while the step goes on without having waited for its quorum."""
        self._healed = False
        self._new = False
        """True between the question for a quorum and its first use."""
        self._patient = False
        """True while collectives may take as long as a heal."""
        self._waits, self._fetches = False, False
        """True while the main thread waits for a quorum, and while its thread fetches a peer's state."""
        self._meeting = Meeting(manager, launch.torchft.process_group_timeout_ms / 1000)
        self._groups = torchft_names.process_group(manager)
        self._groups.supervisor_listening = gloo.servers_of(manager, launch.lighthouse, launch.master_port)
        manager.start_quorum = self._starting(manager.start_quorum)
        manager.wait_quorum = self._waiting(manager.wait_quorum)
        manager.should_commit = self._committing(manager.should_commit)
        torchft_names.wrap_waits(self._waiting_for_peers)
        import torch.distributed as dist

        work: Any = dist.Work
        work.wait = self._waiting_for_ranks(work.wait)
        self._heals = Heals(rank.report)
        self._heals.count()
        torchft_names.wrap_transfers(
            manager, lambda call: self._fetching(self._heals.watching(seconds.transfer(call))), seconds.transfer
        )
        torchft_names.limit_heals(manager, timedelta(seconds=launch.torchft.heal_timeout_s))
        torchft_names.notice_heal(manager, partial(seconds.part, "heal"), self._on_healed)

    def abort(self, lost: Collection[int] = ()) -> None:
        """Frees this rank of a lost group: the running collective, or the wait for a new quorum's groups, fails, and
        its step is not committed. From any thread. Does nothing if `lost` has groups, and none of them is in its newest
        quorum: its collective is with others, and may take longer than a silence."""
        members = torchft_names.groups(self._manager)
        if lost and self._launch.group in members and members.isdisjoint(lost):
            return
        self._meeting.abort()
        self._groups.abort()

    def take_healed(self) -> bool:
        """Returns true if a peer's state was loaded since the last call."""
        healed, self._healed = self._healed, False
        return healed

    def _starting(self, start: Callable[..., None]) -> Callable[..., None]:
        def start_quorum(*args: Any, **kwargs: Any) -> None:
            self._heals.refuse_another()
            first = self._report.progress.commits == 0
            self._new = True
            if self._patient:
                self._limit(timedelta(milliseconds=self._launch.torchft.process_group_timeout_ms), patient=False)
            if first:
                self._report.phase("quorum")
            with self._seconds.waiting(), self._activity.during("quorum"):
                start(*args, **kwargs)
                if first:
                    self._manager.wait_quorum()
            if first and self._manager.errored() is None:
                peers.refuse_behind(self._launch, int(self._manager.current_step()), self._saved_before)

        return start_quorum

    def _waiting(self, wait: Callable[[], None]) -> Callable[[], None]:
        def wait_quorum() -> None:
            if not torchft_names.is_pending(self._manager):
                wait()
            else:
                before = self._report.progress.phase
                self._report.phase("quorum")
                self._waits = True
                try:
                    with self._seconds.waiting(), self._activity.during("heal" if self._fetches else "quorum"):
                        wait()
                finally:
                    self._waits = False
                self._report.phase(before)
            if self._new:
                self._new = False
                self._wait_for_heals()
            heals = torchft_names.heals(self._manager) and torchft_names.all_count(self._manager)
            if self.all_take_part or (heals and self.waits_if_behind):
                torchft_names.all_take_part(self._manager, self.waited)
            if self.id != torchft_names.quorum_id(self._manager):
                self._on_quorum()

        return wait_quorum

    def _fetching(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        """Shows a heal as what it is while the main thread waits for it: it may take longer than a step."""

        def received(*args: Any, **kwargs: Any) -> Any:
            self._fetches = True
            try:
                with self._activity.during("heal") if self._waits else nullcontext():
                    return receive(*args, **kwargs)
            finally:
                self._fetches = False

        return received

    def _wait_for_heals(self) -> None:
        """Lets the step's collectives take as long as a heal, if a group heals in it: who gave up would go on without it,
        and its state would be old before it was there. One that cannot heal frees those who wait for it."""
        if not torchft_names.heals(self._manager):
            return
        if self._manager.errored() is None:
            self._limit(timedelta(seconds=self._launch.torchft.heal_timeout_s), patient=True)
        else:
            self._groups.abort()

    def _limit(self, limit: timedelta, *, patient: bool) -> None:
        torchft_names.limit_collectives(self._manager, limit)
        self._patient = patient

    def _committing(self, commit: Callable[..., bool]) -> Callable[..., bool]:
        # TorchFT waits as long as for one collective, and raises: a rank whose neighbour hangs would fail in its place
        patience = timedelta(milliseconds=self._launch.torchft.quorum_timeout_ms)

        def should_commit(*args: Any, **kwargs: Any) -> bool:
            with self._seconds.part("commit"), self._activity.during("commit"):
                committed = bool(commit(*args, **{"timeout": patience, **kwargs}))
            if committed:
                self._heals.none_needed()
            elif self._manager.errored() is not None:
                # the others may wait in a collective for this rank, which comes to no other of this quorum
                self._groups.abort()
            return committed

        return should_commit

    def _waiting_for_peers(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def wait_for_peers(work: Any, *args: Any, **kwargs: Any) -> Any:
            with self._activity.during("collective"), self._seconds.for_peers():
                return wait(work, *args, **kwargs)

        return wait_for_peers

    def _waiting_for_ranks(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Counts the waits for the ranks of this group, so that the one for which the others wait stands out. Those on
        processors alone: a GPU waits beside this thread."""

        def wait_for_ranks(work: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return wait(work, *args, **kwargs)
            with self._seconds.for_peers():
                return wait(work, *args, **kwargs)

        return wait_for_ranks

    def _on_quorum(self) -> None:
        self.id = torchft_names.quorum_id(self._manager)
        participants, rank = torchft_names.place(self._manager)
        step = self._manager.current_step()
        self._ledger.note("quorum", quorum_id=self.id, participants=participants, participating_rank=rank, step=step)

    def _on_healed(self) -> None:
        self._healed = True
        length, source, size = self._seconds.last_transfer_s, self._heals.source, self._heals.bytes
        about = {"step": self._manager.current_step(), "transfer_s": length, "source": source, "bytes": size}
        self._ledger.note("heal", start=time.time() - length, **about)
        rate = size / 1e6 / max(length, 1e-3)
        log.info("took %.1f MB of state from %s in %.2f s (%.0f MB/s)", size / 1e6, source, length, rate)
