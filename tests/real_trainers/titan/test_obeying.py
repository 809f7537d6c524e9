"""The trainer that obeys orders is TorchTitan's with our own on top, and changes only what it claims to change."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from fault_injection.in_rank.hooks import Obeying
from supervisor.wire.address import free_port
from tests.real_trainers.titan.groups import Groups


class Base:
    """As much of the base class as ReplicaTrainer uses here."""

    in_last_round = True

    def __init__(self, folder: Path) -> None:
        import torch

        self.launch = type(
            "Launch", (), {"run_dir": folder, "rank_dir": folder, "group": 0, "generation": 1, "rank": 0}
        )()
        self.manager = type("Manager", (), {"current_step": lambda _: 4})()
        self.model_parts = [torch.nn.Linear(4, 4)]
        self.activity = type("Activity", (), {"during": lambda _, name: nullcontext()})()
        self.ledger = type("Ledger", (), {"note": lambda _, event, **more: None})()

    def forward_backward_step(self, **batch: Any) -> Any:
        return self.model_parts[0].bias.detach().clone()

    def _counted(self, batches: Any) -> Any:
        return batches


class Trainer(Obeying, Base):
    pass


REAL = """
from fault_injection.in_rank.trainer import obey
from fault_injection.in_rank.hooks import Obeying
obey()
from titan_actor import replica
made, base = replica.ReplicaTrainer, replica.ReplicaTrainer.__mro__[2]
assert base.__module__ == "titan_actor.replica", base
for method in ("forward_backward_step", "_counted", "_checkpoint"):
    assert getattr(made, method) is getattr(Obeying, method), method
    assert method in vars(base), method
"""
"""Runs in a process of its own: TorchTitan's imports warn."""


def test_it_is_the_real_trainer_with_its_steps_around_it() -> None:
    result = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("cause", [causes.PLANT_NAN, causes.FLIP_BIT])
def test_a_parameter_is_changed_before_it_is_used(tmp_path: Path, cause: str) -> None:
    trainer = Trainer(tmp_path)
    before = trainer.model_parts[0].bias.detach().clone()
    causes.order(tmp_path, 0, 1, 0, Order(cause=cause))
    used = trainer.forward_backward_step()
    different = (used != before).flatten().tolist()
    assert different == [True] + [False] * 3
    if cause == causes.PLANT_NAN:
        assert math.isnan(used.flatten()[0])
    else:
        assert abs(float(used.flatten()[0] - before.flatten()[0])) < 1e-2 * abs(float(before.flatten()[0]))


def test_a_collective_is_left_out_once_in_a_step_of_several_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a round that is not the last, Python asks for other sums than that of the gradient's norm."""
    import torch.distributed._functional_collectives as collectives

    together = collectives.all_reduce
    monkeypatch.setattr(collectives, "all_reduce", together)
    trainer = Trainer(tmp_path)
    causes.order(tmp_path, 0, 1, 0, Order(cause=causes.SKIP_COLLECTIVE))
    trainer.in_last_round = False
    trainer.forward_backward_step()
    assert collectives.all_reduce is together
    trainer.in_last_round = True
    trainer.forward_backward_step()
    assert collectives.all_reduce is not together
    left_out = object()
    assert collectives.all_reduce(left_out) is left_out
    assert collectives.all_reduce is together, "the next sum is made"


SHARDED = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from fault_injection.in_rank import causes
from fault_injection.in_rank.causes import Order
from tests.real_trainers.titan.test_obeying import Trainer
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
folder = Path(sys.argv[1])
trainer = Trainer(folder)
linear, mesh = trainer.model_parts[0], init_device_mesh("cpu", (1,))
linear.bias = torch.nn.Parameter(distribute_tensor(linear.bias.detach(), mesh, [Replicate()]))
before = linear.bias.to_local().detach().clone()
causes.order(folder, 0, 1, 0, Order(cause=sys.argv[2]))
trainer.forward_backward_step()
assert (linear.bias.to_local() != before).tolist() == [True, False, False, False]
dist.destroy_process_group()
"""
"""Runs in a process of its own: it makes a process group."""


@pytest.mark.parametrize("cause", [causes.PLANT_NAN, causes.FLIP_BIT])
def test_of_a_parameter_that_is_distributed_it_changes_its_own_part(tmp_path: Path, cause: str) -> None:
    command = [sys.executable, "-c", SHARDED, str(tmp_path), cause]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
@pytest.mark.trainers
@pytest.mark.timeout(300)
def test_a_rank_that_leaves_out_a_collective_takes_its_group_with_it(groups: Groups) -> None:
    """Its next collective meets the one that it left out: Gloo ends it for that, and its peer is left without it."""
    port = free_port()
    ranks = [groups.start_obeying(0, rank=n, world_size=2, master_port=port) for n in (0, 1)]
    for rank in ranks:
        rank.reached(4, commits=3)
    ranks[1].order(causes.SKIP_COLLECTIVE)
    assert ranks[1].exit_code() == -signal.SIGABRT
    assert "collective mismatch" in ranks[1].log()
    assert ranks[0].exit_code() == 1
    assert "Connection" in ranks[0].log()
    last = [line["step"] for line in ranks[0].lines("step") if line["committed"]][-1]
    assert ranks[1].lines("step")[-1]["step"] == last, "neither commits the step"
