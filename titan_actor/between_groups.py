"""Connects TorchTitan's trainer with the other groups: TorchFT's manager, each group's share of the data, the sum of
the gradients, and an optimizer that asks for the quorum.

TorchTitan has a trainer of its own for TorchFT, but its constructor is a copy of an older one: chunked losses,
overrides of modules and some checks are missing there. So the trainer is the one that the config is of, and three of
its components are built through here.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import ReduceOp
from torch.distributed.fsdp import FSDPModule
from torchtitan.experiments.torchft.manager import TorchFTManager
from torchtitan.experiments.torchft.optimizer import TorchFTOptimizersContainer

from supervisor.wire.gpus import SHARED
from supervisor.wire.records import TrainerLaunch
from titan_actor import mends, torchft_names
from titan_actor.experts import Experts


def backend() -> str:
    """Returns the backend of the process group between groups. NCCL refuses two ranks on one device."""
    return "nccl" if mends.on_gpu() and SHARED not in os.environ else "gloo"


def manager(launch: TrainerLaunch) -> TorchFTManager:
    """Returns what TorchTitan has around TorchFT's manager of this rank, which `torchft_names.make` makes: it calls the
    lighthouse from then on. Rank 0's serves the group's others."""
    with torchft_names.later():
        return TorchFTManager(
            TorchFTManager.Config(
                enable=True,
                process_group=backend(),
                process_group_timeout_ms=launch.torchft.process_group_timeout_ms,
                replica_id=launch.group,
                group_size=launch.groups,
                min_replica_size=launch.min_groups,
            )
        )


def data_of_now(config: Any) -> Any:
    """Builds the data loader again, which `split` had built for another group."""
    loads = config.dataloader
    return loads.build(**loads.options)


def split(config: Any, trainer: Any) -> None:
    """Has the config's data loader and validator take this group's share, and its optimizer the sum over the groups.
    `trainer.ft_manager` is read when they are built."""
    config.dataloader = _Shared(config.dataloader, trainer)
    config.validator = _Shared(config.validator, trainer)
    config.optimizer = _Summed(config.optimizer, trainer)


class _Component:
    """A component's config, whose `build` does more."""

    def __init__(self, config: Any, trainer: Any) -> None:
        self._config, self._trainer = config, trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class _Shared(_Component):
    options: dict[str, Any]
    """Options of its newest build."""

    def build(self, **options: Any) -> Any:
        self.options = dict(options)
        # a place in the data is kept for every step, not only for TorchTitan's own checkpoints
        options.pop("snapshot_every_n_steps", None)
        size, rank = self._trainer.ft_manager.get_dp_info(options["dp_world_size"], options["dp_rank"])
        return self._config.build(**{**options, "dp_world_size": size, "dp_rank": rank})


class _Summed(_Component):
    def build(self, *, model_parts: list[Any]) -> Any:
        ft_manager = self._trainer.ft_manager
        _average(model_parts, ft_manager.replicate_pg, self._trainer)
        self._trainer.experts = experts = Experts(model_parts)
        return _Optimizers(self._config, model_parts=model_parts, ft_manager=ft_manager, experts=experts)


class _Optimizers(TorchFTOptimizersContainer):
    """Runs hooks before a step in committed steps only. TorchFT calls `step` to ask for the commit, and once more to
    make it."""

    def __init__(self, config: Any, *, experts: Experts, **options: Any) -> None:
        self._experts = experts
        super().__init__(config, **options)

    def register_step_pre_hook(self, hook: Any) -> Any:
        def when_committed(*args: Any) -> Any:
            if self._use_ft_optimizer:
                return None
            self._experts.put_back()
            return hook(*args)

        return super().register_step_pre_hook(when_committed)


class _Average:
    """Averages a gradient over the groups, in the last round of a step: groups may have unequal numbers of rounds."""

    def __init__(self, groups: Any, trainer: Any) -> None:
        self._groups, self._trainer = groups, trainer
        self._before: Any = None
        """Sum of the step's earlier rounds."""

    def __call__(self, gradient: Any) -> None:
        """Takes a round's gradient, summed over the group's ranks. FSDP adds what this leaves in it to those before."""
        if self._before is not None:
            gradient.add_(self._before)
        if not self._trainer.in_last_round:
            self._before = gradient.clone()
            gradient.zero_()
            return
        self._before = None
        if (weight := self._trainer.cursor.weight) != 1.0:
            gradient.mul_(weight)
        dist.all_reduce(gradient, group=self._groups, op=ReduceOp.AVG)


def _average(model_parts: list[Any], groups: Any, trainer: Any) -> None:
    """Has FSDP average each gradient over the groups once it has summed it over its own ranks.

    Each rank averages with the ranks of its number in the other groups, which hold the same part of the model. So such
    a hook serves parameters on different meshes too (experts), for which FSDP's own setter refuses it.
    """
    for part in model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                for parameters in module._get_fsdp_state()._fsdp_param_groups:
                    parameters._all_reduce_hook = _Average(groups, trainer)
