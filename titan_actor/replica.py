"""One rank of a replica group: whichever trainer a TorchTitan config builds, with our quorum, heal, checkpoints, records
and commands."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.tensor import DTensor
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.distributed import utils as dist_utils
from torchtitan.experiments.torchft.manager import TorchFTManager
from torchtitan.trainer import Trainer

from supervisor.wire.checkpoints import listed
from supervisor.wire.records import CheckpointMark
from titan_actor import (
    address,
    admission,
    any_group,
    between_groups,
    kept_state,
    mends,
    peers,
    rehearsal,
    rendezvous,
    shares,
    torchft_names,
    wandb_run,
)
from titan_actor.checkpoint import Checkpoints, Purge, purge
from titan_actor.compiling import Compiling
from titan_actor.control import NEVER, Agreement, Wishes
from titan_actor.cursor import Cursor, Reader
from titan_actor.fit import too_many_tokens
from titan_actor.heal import HealState
from titan_actor.lift import starts_from_weights
from titan_actor.meeting import await_store
from titan_actor.mfu import mfu
from titan_actor.process import RankProcess
from titan_actor.quorum import Quorum
from titan_actor.samples import names
from titan_actor.shares import NoData
from titan_actor.spike import Spikes
from titan_actor.tokens.fits import unfit
from titan_actor.tokens.format import TokensError
from titan_actor.tokens.loader import TokenLoader
from titan_actor.tokens.place import SharedPlace

log = logging.getLogger(__name__)

STORE_TIMEOUT_S = 300.0
"""Seconds for the ranks of a group to reach its store, as torch's TCPStore has by default."""


class NotFinite(FloatingPointError):
    """A loss, gradient or parameter is NaN or infinite: no step is committed with it and no checkpoint holds it."""

    def __init__(self, text: str, whose: str) -> None:
        """`whose`: as Progress.numerics."""
        super().__init__(text)
        self.whose = whose


def trainer(config: Any, rank: RankProcess) -> ReplicaTrainer:
    """Builds the trainer that a config is of (TorchTitan's, or a subclass of it) as one rank of a replica group."""
    owner = type(config)._owner
    kind = ReplicaTrainer if owner is Trainer else type(f"Replica{owner.__name__}", (ReplicaTrainer, owner), {})
    made: ReplicaTrainer = kind(config, rank)
    return made


class ReplicaTrainer(Trainer):
    """Builds on construction; `admit` reports built, `train` runs to the end, `close` releases everything."""

    ft_manager: TorchFTManager

    def __init__(self, config: Any, rank: RankProcess) -> None:
        self.rank, self.launch = rank, rank.launch
        self._store: Any = None
        self._attempts = 0
        self._commits = 0
        self._committed = False
        self._behind = True
        """True if the others may have gone on without this group: its attempt before was not committed, or there was none."""
        self._stepping = "step"
        self._loss: Any = None
        self._groups_loss = 0.0
        """Loss of the newest step, summed over this group's ranks, before averaging over the groups."""
        self._gradients: list[Any] = []
        """Norms of each part of this rank's own gradient in the step in progress, before averaging over the groups."""
        self._mean_loss: float | None = None
        self._gradient_norm: float | None = None
        self._spikes = Spikes()
        self._lr = 0.0
        self._taken = (0, 0)
        self._round = 0
        """Round of the step in progress; 0 outside of one."""
        between_groups.split(config, self)
        if rank.waits and (why := any_group.why_none(config, rank)):
            raise RuntimeError(f"no standby: {why}")
        if config.metrics.enable_wandb:
            wandb_run.name(self.launch)
        super().__init__(config)
        self._refuse_without_data()
        mends.apply_to("built", self)
        self.agreement = Agreement(self.launch.rank, self.launch.world_size)
        if why := too_many_tokens(self.tokenizer, self.model_config):
            raise ValueError(why)
        self._begin()

    def _begin(self) -> None:
        """Begins this generation: a hot standby has built all above, and waits here."""
        rank, standby, built_for = self.rank, self.rank.waits, self.launch.group
        rank.begin()
        self.launch, self.report, self.ledger, self.control = rank.launch, rank.report, rank.ledger, rank.control
        self.activity, self.seconds, launch = rank.activity, rank.seconds, rank.launch
        self.compiling = Compiling(self.activity, self.seconds)
        if standby:
            if launch.group != built_for:
                any_group.become(self, launch.group)
                self._refuse_without_data()
            address.meet(launch)
            self._share_store()
            rendezvous.meet()
            self._make_manager()
        self.quorum = Quorum(self.manager, rank)
        self._watch()
        self.cursor = self._place()
        self.quorum.all_take_part, self.quorum.waits_if_behind = self.cursor.waits, True
        self.heal = HealState(self, self.cursor)
        self.manager.register_state_dict_fn("supervisor", self._load_peer, self.heal.save)
        self.checkpoints = Checkpoints(launch, self, self.agreement, self._on_checkpoint)
        self._purge = Purge()
        self.ledger.event("constructed", device=self.device.type, groups=launch.groups, titan=asdict(launch.titan))
        self._restore()

    @property
    def manager(self) -> Any:
        """TorchFT's manager."""
        return self.ft_manager.manager

    @property
    def replica_id(self) -> str:
        """This group's id in the quorum: torchtitan_ft_<group>:<uuid>."""
        return torchft_names.replica_id(self.manager)

    def init_distributed(self) -> Any:
        """Makes process groups and manager at the node's address; the store is rank 0's. A standby's ranks meet, and its
        manager comes, with `_begin`."""
        launch = self.launch
        if self.rank.waits:
            rendezvous.later(launch.rank, launch.world_size)
        else:
            self._share_store()
        dims = super().init_distributed()
        self.ft_manager = between_groups.manager(launch)
        # TorchTitan's pair heals stale state (findings, 6): it must not be registered beside ours
        self.manager.set_state_dict_fns = lambda *pair: None
        if not self.rank.waits:
            self._make_manager()
        return dims

    def _share_store(self) -> None:
        place = (self.launch.master_address, self.launch.master_port)
        if self.launch.rank == 0:
            self._store = address.serve_store(*place, STORE_TIMEOUT_S)
        else:
            await_store(*place, STORE_TIMEOUT_S)

    def _make_manager(self) -> None:
        with torchft_names.named(peers.before(self.launch)):
            torchft_names.make(self.manager)
        torchft_names.join_anew(self.manager)

    def _refuse_without_data(self) -> None:
        """Raises NoData before the quorum, in which the others would wait for a group that never ends a step."""
        loader, groups = self.dataloader, self.launch.groups
        if isinstance(loader, TokenLoader):
            samples = loader.dp_world_size * self.config.training.local_batch_size * self.gradient_accumulation_steps
            if why := unfit(str(loader.store.folder), self.config.hf_assets_path, loader.seq_len, samples):
                raise NoData(why)
            return
        workers = max(1, self.config.dataloader.num_workers)
        degree = loader.dp_world_size // groups
        shares.refuse(self.launch.titan.data, ranks=(loader.dp_rank,), groups=groups, degree=degree, workers=workers)

    def _place(self) -> Cursor | SharedPlace:
        launch, reader = self.launch, self._reader()
        if isinstance(self.dataloader, TokenLoader):
            return SharedPlace(self, keeps=launch.rank == reader)
        data, loads = launch.titan.data, self.config.dataloader
        own = (getattr(loads, "dataset", ""), getattr(loads, "dataset_path", "")) if data.source == "recipe" else ()
        about = Reader(
            launch.run_dir,
            launch.group,
            launch.rank,
            reads_for=reader,
            source=" ".join(filter(None, (data.source, data.path, *own))),
            batches=self.gradient_accumulation_steps,
            lost_place=data.lost_place,
        )
        return Cursor(about, self.dataloader)

    def _reader(self) -> int:
        """Returns the first rank of the group that reads the same data: TorchTitan numbers ranks by stage, then by
        share of the data, then by context and tensor parallelism."""
        share = self.dataloader.dp_rank % (self.dataloader.dp_world_size // self.launch.groups)
        return int(share * self.parallel_dims.cp * self.parallel_dims.tp)

    def _too_little(self) -> str:
        where = self.launch.titan.data.path or self.launch.titan.data.source
        return (
            f"the data of group {self.launch.group} in {where} ends before its first step: add documents, lower the batch or the "
            "sequence length, or leave dataloader.infinite as it is (true)"
        )

    def admit(self) -> None:
        """Reports to the gate that all ranks are built, and waits until it lets this generation in."""
        if rehearsal.needed(self.config):
            rehearsal.rehearse(self)
            self.ledger.event("rehearsed")
        dist.barrier()
        step = self.manager.current_step()
        admission.admit(self.rank, self.replica_id, step=step)

    def train(self) -> None:
        """Trains until all steps are committed or the group is drained. Raises PeersGone before the first commit, or after
        several failed heals."""
        batches = self._counted(self.batch_generator(self.dataloader))
        wishes = Wishes(writer=self.launch.writer)
        step = self.manager.current_step()
        with self.config.profiler.build(global_step=step, base_folder=self.config.dump_folder) as profiler:
            while self.manager.current_step() < min(self.launch.titan.steps, wishes.stop_at):
                self._attempt(batches)
                wishes = self.agreement.on(self.control.take())
                self._between(wishes)
                wishes = self.rank.wait(self.agreement, wishes)
                profiler.step()
        self._finish(wishes)

    def close(self) -> None:
        """Leaves the quorum and releases sockets, threads and groups."""
        super().close()
        self.manager.shutdown(wait=False)
        dist.destroy_process_group()

    # --- one step ---

    def _attempt(self, batches: Iterator[Any]) -> None:
        self._attempts += 1
        self._behind = not self._committed
        self.seconds.begin()
        self._committed, self._mean_loss, self._gradient_norm, self._loss, self._taken = False, None, None, None, (0, 0)
        self._gradients, self._round = [], 0
        self.step = self.manager.current_step() + 1
        self.heal.snapshot()
        self.gc_handler.run(self._attempts)
        try:
            with self.activity.during("compute"):
                self.train_step(batches)
        except DataloaderExhaustedError as end:
            if self.step == 1:
                raise NoData(self._too_little()) from end
            log.warning("the data is at its end: ending the run")
            self.control.drain(None)
        self._record()
        if self._attempts == 1:
            # lazy set-up is over
            timeout_s = max(self.config.comm.train_timeout_seconds, self.launch.collective_timeout_s)
            dist_utils.set_pg_timeouts(timeout=timedelta(seconds=timeout_s), parallel_dims=self.parallel_dims)

    def forward_backward_step(self, **batch: Any) -> Any:
        """Runs TorchTitan's step, and keeps the loss for averaging over the replicas."""
        self._round += 1
        loss = super().forward_backward_step(**batch)
        own = loss.detach()
        if isinstance(own, DTensor):
            own = own.full_tensor()
        self._loss = own.clone() if self._loss is None else self._loss + own
        return loss

    @property
    def in_last_round(self) -> bool:
        """True in the pass after which the gradients are averaged over the groups, and outside of a step."""
        return self._round in (0, self.gradient_accumulation_steps)

    def _record(self) -> None:
        manager, healed = self.manager, self.quorum.take_healed()
        tokens, samples = self._taken
        participants = manager.num_participants()
        both = {"step": manager.current_step(), "participants": participants, "quorum_id": self.quorum.id}
        took = self.ledger.step(
            self.seconds.total(),
            committed=self._committed,
            participating_rank=manager.participating_rank(),
            loss=self._mean_loss,
            gradient_norm=self._gradient_norm,
            lr=self._lr,
            tokens=tokens,
            samples=samples,
            healed=healed,
            **both,
        )
        now = self.report.progress
        tokens_per_s = tokens / took if self._committed and took > 0 else now.tokens_per_s
        devices = self.parallel_dims.non_data_parallel_size
        self.report.attempt(
            took,
            self.seconds,
            committed=self._committed,
            loss=self._mean_loss,
            healed=healed,
            phase=self._stepping,
            spike=self._spikes.newest,
            tokens_per_s=tokens_per_s,
            seconds=self.ledger.seconds if self.launch.rank == 0 else {},
            gradient_norm=self._gradient_norm if self._gradient_norm is not None else now.gradient_norm,
            mfu=mfu(self.device.type, tokens_per_s, self.metrics_processor, devices),
            **both,
        )

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.seconds.part("data"), self.activity.during("data"):
                batch = next(batches)
            if self.cursor.keeps:
                self.ledger.note("batch", samples=names(batch), **self.cursor.about())
            labels = batch[1]
            self._taken = (self._taken[0] + labels.numel(), self._taken[1] + labels.shape[0])
            yield batch

    # --- between two steps ---

    def _between(self, wishes: Wishes) -> None:
        step, titan = self.manager.current_step(), self.launch.titan
        if wishes.stop_at < NEVER:
            self._stepping = "draining"
            self.report.phase(self._stepping)
        if not self._committed:
            return
        if (newest := self._purge.committed(self.checkpoints.complete)) is not None and self.launch.rank == 0:
            threading.Thread(target=self._remove_old, args=(newest,), name="purge", daemon=True).start()
        self.cursor.live(step)
        due = titan.checkpoint_interval_steps > 0 and step % titan.checkpoint_interval_steps == 0
        if due:
            self.cursor.at(step)
        if titan.digest_interval_steps and step % titan.digest_interval_steps == 0:
            self._digest()
        if wishes.writer and due:
            self._checkpoint(step)
        # a group that ends soon has no time for it
        if self.config.validator.enable and wishes.stop_at == NEVER and self.validator.should_validate(step):
            with self.evaluating(step):
                self.validator.validate(self.model_parts, step)

    @contextmanager
    def evaluating(self, step: int) -> Iterator[None]:
        """Marks an evaluation between two steps, of any kind. It may last ten times as long as the longest before, and
        the first time `policy.hang.at_most_s`. TorchTitan's validator needs no call; a recipe's own evaluation does."""
        with self.activity.during("evaluate"):
            yield
        self.ledger.event("evaluated", step=step)

    def _checkpoint(self, step: int, last: bool = False) -> None:
        # all ranks must decide alike, and one of them may have ended its part already
        busy = self.agreement.any(self.checkpoints.busy)
        if busy and not last:
            log.warning("the checkpoint of step %d is skipped: the one before is still being written", step)
            return
        with self.activity.during("save"):
            self.checkpoints.wait()
        before = self.report.progress.phase
        self.report.update(phase="checkpoint")
        self.cursor.at(step)
        self._refuse_spoilt(step)
        with self.activity.during("checkpoint"):
            self.checkpoints.save(step)
            self.ledger.event("checkpoint_start", step=step)
        if last:
            self._written(step)
        self.report.update(phase=before)

    def _refuse_spoilt(self, step: int) -> None:
        """Raises NotFinite if parameters are not: the gradient that made them so had a finite loss, and only the loss
        after the next start would show it."""
        if self.agreement.any(not self.heal.finite()):
            raise NotFinite(f"parameters are not finite at step {step}", "parameters")

    def _written(self, step: int) -> None:
        """Waits until the checkpoint is on disk. That takes longer than any copy between two steps did."""
        with self.activity.during("save"):
            self.checkpoints.wait()
        self.ledger.event("checkpoint_wait", step=step)

    def _digest(self) -> None:
        self.rank.digest(self.manager.current_step(), self.heal.digest())

    def _finish(self, wishes: Wishes) -> None:
        step = self.manager.current_step()
        hasty = self.agreement.any(self.control.in_haste)
        if wishes.keep and not hasty and self._commits and self._keep(wishes.keep, step):
            self.ledger.event("kept", step=step)
            if self.checkpoints.busy:  # the one before, which is the last resort now
                self._written(step)
        elif wishes.writer and not hasty and self._commits and self.checkpoints.saved_step != step:
            self._checkpoint(step, last=True)
        elif self.checkpoints.busy and not hasty:
            self._written(step)
        self.cursor.at(step)
        if self.report.progress.digest is None or self.report.progress.digest.step != step:
            self._digest()
        if wishes.writer and self.config.checkpoint.last_save_in_hf and step >= self.launch.titan.steps:
            self.checkpointer.folder = f"{self.launch.run_dir}/export"
            self.checkpointer.save(step, last_step=True)
            self.ledger.event("exported", folder=self.checkpointer.folder)

    def _keep(self, number: int, step: int) -> bool:
        """Keeps the state in memory; returns false if one of the group's ranks could not."""
        self._refuse_spoilt(step)
        self.heal.snapshot()
        state = {**self.heal.save(), "manager": self.manager.state_dict(), "settings": self.checkpoints.settings}
        return not self.agreement.any(not kept_state.keep(number, self.launch, step, state))

    # --- what TorchFT calls ---

    def _watch(self) -> None:
        """Wraps the manager's calls once more, for what TorchTitan's trainer alone does at them."""
        manager = self.manager
        manager.start_quorum = self._starting(manager.start_quorum)
        manager.should_commit = self._committing(manager.should_commit)
        manager.allreduce = self._looking(manager.allreduce)
        self.lr_schedulers.step = self._on_commit_only(self.lr_schedulers.step)
        self.metrics_processor.log = self._logging(self.metrics_processor.log)

    def _starting(self, start: Callable[..., None]) -> Callable[..., None]:
        """Waits for the quorum before the step of a group that may be behind, and loads a peer's state before its forward
        pass: its gradient counts in the very step in which it heals, and that is divided by all groups.
        """

        def start_quorum(*args: Any, **kwargs: Any) -> None:
            self.quorum.waited = self._behind or self.cursor.waits
            start(*args, **kwargs)
            if self.quorum.waited:
                self.manager.wait_quorum()
                torchft_names.load_now(self.manager, begins=lambda: self.report.phase("healing"))
                self.report.phase(self._stepping)
            if (rounds := self.cursor.begin()) is not None:
                self.gradient_accumulation_steps = rounds
            if self.report.progress.rounds != self.gradient_accumulation_steps:
                self.report.update(rounds=self.gradient_accumulation_steps)

        return start_quorum

    def _committing(self, commit: Callable[..., bool]) -> Callable[..., bool]:
        def should_commit(*args: Any, **kwargs: Any) -> bool:
            loss = self._share_and_check()
            self._committed = commit(*args, **kwargs)
            if self._committed and (factor := self.cursor.lr_factor) != 1.0:
                self._scale_lr(factor)
            self._lr = float(self.optimizers.optimizers[0].param_groups[0]["lr"])
            if self._committed:
                self._commits += 1
                if self._commits == 1:
                    kept_state.drop()
                self.cursor.advance()
                self._mean_loss = loss
                if loss is not None:
                    self._spikes.note(self.manager.current_step(), loss, float(self._loss))
            return self._committed

        return should_commit

    def _scale_lr(self, factor: float) -> None:
        """Scales the learning rate of the step that is being made; the schedule sets the next one's."""
        for optimizer in self.optimizers.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= factor

    def _looking(self, allreduce: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the gradient's norm before averaging over the groups, which hides whose was not finite."""

        def average(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_floating_point(tensor):
                # a single pass over it, and nothing waits for the result before the commit
                self._gradients.append(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32))
            return allreduce(tensor, *args, **kwargs)

        return average

    def _share_and_check(self) -> float | None:
        """Returns the mean loss of the participants, and notes this group's. TorchTitan's own is local at one rank a
        group and a sum at more.

        Raises before the commit, while all replicas' weights are still good: NotFinite if the loss or a gradient is not
        finite, NoData if the groups do not train on one stream of a token store, TokensError if their steps of it are not of
        one size. All see the same values, and end alike.
        """
        if self._loss is None:
            return None
        self._loss = loss = self._of_last_stage(self._loss.reshape(()).float())
        self.experts.share(self.manager)
        norms = torch.stack(self._gradients) if self._gradients else torch.zeros(1, device=loss.device)
        spoilt = (~torch.isfinite(norms)).any().float()
        # a healing replica adds zeros to all; a lost peer fails this step's commit like any other collective
        one, signs = torch.ones((), device=loss.device), torch.tensor(self.cursor.signs, device=loss.device).float()
        every = torch.stack((loss * self.cursor.weight, one, spoilt, *signs))
        self.manager.allreduce(every, reduce_op=ReduceOp.SUM).wait()
        takes_part = torchft_names.place(self.manager)[1] is not None
        apart = ((every[3:] - every[1] * signs).abs() > 0.5).float() * takes_part
        failed = torch.full_like(one, self.manager.errored() is not None)
        found = torch.stack((every[0] / every[1].clamp(min=1.0), loss, every[2], spoilt, *apart, failed))
        if not self._counts_loss():
            found[:2] = 0.0
        if self.launch.world_size > 1:
            # over all ranks, because each holds other gradients
            dist.all_reduce(found)
        mean, self._groups_loss, anybodys, groups, other_stream, other_size, any_failed = found.tolist()
        if not any_failed:  # values from a failed collective mean nothing, and its step is not committed
            step = self.manager.current_step() + 1
            if other_stream:
                raise NoData(f"the groups do not train on one stream at step {step}: {self.cursor.described()}")
            if other_size:
                raise TokensError(
                    f"the groups do not make step {step} of one size, here of {self.cursor.signs[1]} rounds: their number has changed "
                    "while they started from a checkpoint, and all start again"
                )
            if not math.isfinite(mean):
                whose = self._whose(math.isfinite(float(loss)), math.isfinite(self._groups_loss))
                raise NotFinite(f"loss is {mean} at step {step}", whose)
            if anybodys:
                raise NotFinite(f"gradient is not finite at step {step}", self._whose(not float(spoilt), not groups))
        return float(mean)

    def _whose(self, own_is_finite: bool, groups_is_finite: bool) -> str:
        """Returns whose number it was, as Progress.numerics. A part of the parameters that one rank has not finite makes
        the numbers of all ranks of its group so: then it is that rank's own."""
        if groups_is_finite:  # all ranks of the group know that alike, and so look alike
            return "peers"
        spoilt = not self.heal.finite()
        own = spoilt if self.agreement.any(spoilt) else not own_is_finite
        return "own" if own else "group"

    def _of_last_stage(self, loss: Any) -> Any:
        """Returns the loss that the last stage of this rank's pipeline has: TorchTitan gives the others -1."""
        if self.parallel_dims.pp_enabled:
            loss = loss if self.pp_has_last_stage else torch.zeros_like(loss)
            dist.all_reduce(loss, group=self.parallel_dims.get_mesh("pp").get_group())
        return loss

    def _counts_loss(self) -> bool:
        """Returns true on one of the ranks that have the same loss: those of tensor parallelism and of a pipeline."""
        dims = self.parallel_dims
        first = not dims.tp_enabled or dims.get_mesh("tp").get_local_rank() == 0
        return first and (not dims.pp_enabled or self.pp_has_last_stage)

    def _on_commit_only(self, step: Callable[[], None]) -> Callable[[], None]:
        def lr_step() -> None:
            if self._committed:
                step()

        return lr_step

    def _logging(self, write: Callable[..., None]) -> Callable[..., None]:
        def log_metrics(step: int, mean: float, most: float, norm: float, **more: Any) -> None:
            self._gradient_norm = float(norm)
            write(step, mean if self._mean_loss is None else self._mean_loss, most, norm, **more)

        return log_metrics

    def _load_peer(self, state: dict[str, Any]) -> None:
        self.heal.load(state)
        self.experts.forget()

    # --- start and checkpoint results ---

    def _restore(self) -> None:
        if self.launch.resume == "disk":
            step = self._load_kept()
            from_memory = step is not None
            if step is None:
                step = self.checkpoints.load()
            place = self.cursor.load(step) if step is not None else ""
            if step is not None:
                self.ledger.event("resumed", step=step, data=place, from_memory=from_memory)
            elif starts_from_weights(self.config):
                self.ledger.event("initial_weights", path=self.checkpoints.load_initial())
        else:
            place = self.cursor.load(None)
            self.ledger.note("resuming", data=place)

    def _load_kept(self) -> int | None:
        """Loads what all ranks of the group have kept, if that is newer than the checkpoint; returns its step."""
        kept, mark = kept_state.take(self.launch), self.launch.checkpoint
        newer = kept is not None and (mark is None or kept.step > mark.step) and self.heal.fits(kept.state)
        lacks = self.agreement.any(not newer)  # all ranks ask, also those that lack it
        if kept is None or lacks:
            return None
        place = kept.state.pop("data", {})
        self.heal.load(kept.state)
        self.cursor.resume(place, "the state in memory")
        self.manager.load_state_dict(kept.state["manager"])
        self.checkpoints.hold_settings(kept.state["settings"])
        return kept.step

    def _on_checkpoint(self, mark: CheckpointMark | None, error: str, started: float) -> None:
        """Notes and reports a checkpoint's end. Called in the writing thread."""
        complete = mark is not None
        self.ledger.note(
            "checkpoint_end", start=started, complete=complete, error=error, path=mark.path if mark else ""
        )
        if mark is None:
            self.report.update(error=error)
        else:
            written = {"checkpoint": mark} if self.launch.rank == 0 else {}
            self.report.update(error="", **written)

    def _remove_old(self, newest: CheckpointMark) -> None:
        """Purges in a thread of its own: many files on a shared disk take long."""
        launch = self.launch
        gone = purge(launch.run_dir, newest, launch.titan.checkpoints_kept)
        if gone:
            complete = [step for step, _, mark in listed(launch.run_dir) if mark is not None]
            self.cursor.purge(before_step=min(complete, default=newest.step))
            self.ledger.note("purged", paths=[str(folder) for folder in gone])
