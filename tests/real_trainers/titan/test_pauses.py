"""Evaluation, compile and the last checkpoint: the activity that a rank reports, and the cause of their seconds."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.core.goodput.causes import Cause, of_lines
from supervisor.core.model.spec import TitanSpec
from supervisor.wire import activity
from supervisor.wire.records import CheckpointMark
from titan_actor import mends
from titan_actor.activity import ActivityFile
from titan_actor.control import NEVER, Wishes
from titan_actor.ledger import Ledger
from titan_actor.seconds import Seconds


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Silences the warnings of TorchTitan's imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()
        yield


class Validator:
    """Notes the activity in the rank's file while it evaluates."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.seen: list[tuple[int, str]] = []

    def should_validate(self, step: int) -> bool:
        return step % self.every == 0

    def validate(self, model_parts: list[Any], step: int) -> None:
        found = activity.read(self.folder)
        assert found is not None
        self.seen.append((step, found[1]))


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    """A trainer between two steps, without its group, its quorum and its checkpoints."""
    from titan_actor.checkpoint import Purge
    from titan_actor.replica import ReplicaTrainer

    made: Any = ReplicaTrainer.__new__(ReplicaTrainer)
    made.at = 0
    made.ft_manager = SimpleNamespace(manager=SimpleNamespace(current_step=lambda: made.at))
    made.launch = SimpleNamespace(titan=SimpleNamespace(checkpoint_interval_steps=0, digest_interval_steps=0))
    made.config = SimpleNamespace(
        validator=SimpleNamespace(enable=True), checkpoint=SimpleNamespace(last_save_in_hf=False)
    )
    made.report = SimpleNamespace(phase=lambda phase: None)
    made.cursor = SimpleNamespace(live=lambda step: None)
    made.activity, made.ledger = ActivityFile(tmp_path), Ledger(tmp_path / "steps.jsonl", time.time())
    made.validator, made.model_parts = Validator(tmp_path, every=10), []
    made._committed = True
    made._purge, made.checkpoints = Purge(), SimpleNamespace(complete=None)
    return made


def between(trainer: Any, step: int, stop_at: int = NEVER) -> None:
    trainer.at = step
    trainer._between(Wishes(stop_at=stop_at))


def test_the_recipes_validator_is_called_as_torchtitan_does_and_says_so_meanwhile(trainer: Any, tmp_path: Path) -> None:
    for step in range(1, 31):
        between(trainer, step)
    assert trainer.validator.seen == [(10, "evaluate"), (20, "evaluate"), (30, "evaluate")]
    now = activity.read(tmp_path)
    assert now is not None
    assert now[1] == "other"
    told = [json.loads(row) for row in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in told] == [("evaluated", 10), ("evaluated", 20), ("evaluated", 30)]
    assert {i.cause for i in of_lines(told)} == {Cause.EVALUATE}


def test_it_is_left_out_where_nothing_was_committed_or_the_group_is_to_end(trainer: Any) -> None:
    between(trainer, 10, stop_at=500)
    trainer._committed = False
    between(trainer, 20)
    trainer._committed, trainer.config.validator.enable = True, False
    between(trainer, 30)
    assert trainer.validator.seen == []


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone, which TorchTitan's meshes need."""
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_torchtitans_own_validator_evaluates_there(trainer: Any) -> None:
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as dist_utils

    from titan_actor import config as configs

    overrides = {"validator.freq": 3, "validator.steps": 2}
    config = configs.from_spec(TitanSpec(recipe="llama3-debug-small", overrides=overrides))
    config.validator.enable, config.validator.dataloader.dataset = True, config.dataloader.dataset
    dims = ParallelDims.from_config(config.parallelism, 1)
    config.model_spec.model.update_from_config(config=config)
    model = config.model_spec.model.build()
    model.init_states(buffer_device=None)
    losses: list[tuple[int, float]] = []
    log = SimpleNamespace(
        ntokens_since_last_log=0, log_validation=lambda loss, step: losses.append((step, round(loss)))
    )
    trainer.config, trainer.model_parts = config, [model]
    trainer.validator = config.validator.build(
        parallelism=config.parallelism,
        dp_world_size=2,
        dp_rank=0,
        tokenizer=config.tokenizer.build(tokenizer_path=config.hf_assets_path),
        parallel_dims=dims,
        loss_fn=config.loss.build(compile_config=config.compile),
        validation_context=dist_utils.get_spmd_context(parallel_dims=dims),
        metrics_processor=log,
        seq_len=config.training.seq_len,
        local_batch_size=config.training.local_batch_size,
    )
    for step in range(2, 7):
        between(trainer, step)
    assert losses == [(3, 8), (6, 8)], "e^8 is near the 2000 tokens of the debug model: it has learned nothing"
    assert model.training, "the next step trains"


# --- the last checkpoint ---


def does_at_the_end(trainer: Any, folder: Path, saved: int) -> list[tuple[str, str]]:
    """Actions on checkpoints when the last step, 100, is made, and the rank's reported activity at each. `saved`: the
    newest step of which a checkpoint was begun; that of the last step is still being written."""
    done: list[tuple[str, str]] = []

    def note(what: str) -> None:
        now = activity.read(folder)
        assert now is not None
        done.append((what, now[1]))

    trainer.at, trainer._commits = 100, 100
    trainer.agreement = SimpleNamespace(any=lambda flag: flag)
    trainer.control = SimpleNamespace(in_haste=False)
    trainer.heal = SimpleNamespace(finite=lambda: True)
    trainer.cursor = SimpleNamespace(at=lambda step: None)
    progress = SimpleNamespace(phase="step", digest=SimpleNamespace(step=100))
    trainer.report = SimpleNamespace(update=lambda **told: None, progress=progress)
    trainer.checkpoints = SimpleNamespace(
        saved_step=saved, busy=saved == 100, save=lambda step: note("copy"), wait=lambda: note("wait")
    )
    trainer._finish(Wishes(writer=True))
    return done


def test_the_last_checkpoint_is_copied_as_any_and_waited_for_as_none(trainer: Any, tmp_path: Path) -> None:
    """A copy takes a second, a slow store a quarter of an hour: the time of one is no measure of the other."""
    assert does_at_the_end(trainer, tmp_path, saved=90) == [("wait", "save"), ("copy", "checkpoint"), ("wait", "save")]


def test_so_is_one_that_is_still_being_written_when_the_last_step_is_made(trainer: Any, tmp_path: Path) -> None:
    assert does_at_the_end(trainer, tmp_path, saved=100) == [("wait", "save")]


# --- compile ---


@pytest.fixture
def compiling(tmp_path: Path) -> Iterator[tuple[ActivityFile, Seconds]]:
    import torch._dynamo

    from titan_actor.compiling import Compiling

    torch._dynamo.reset()
    doing, seconds = ActivityFile(tmp_path), Seconds()
    Compiling(doing, seconds)
    yield doing, seconds
    torch._dynamo.reset()


def test_what_torch_compiles_is_said_also_when_it_compiles_again_for_another_shape(
    compiling: tuple[ActivityFile, Seconds], tmp_path: Path
) -> None:
    import torch

    doing, seconds = compiling
    seen = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        seen.append(activity.read(tmp_path))
        return graph.forward

    model = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    with doing.during("compute"):
        for size in (2, 2, 3, 3):
            model(torch.ones(size))
            now = activity.read(tmp_path)
            assert now is not None
            assert now[1] == "compute"
    assert [found and found[1] for found in seen] == ["compile", "compile"]
    assert seconds.total()["compile"] > 0.0
    (line,) = [part for part in of_lines([_step(seconds)]) if part.cause == Cause.COMPILE]
    assert line.seconds == pytest.approx(seconds.total()["compile"])


def test_a_compile_that_fails_is_over_too(compiling: tuple[ActivityFile, Seconds], tmp_path: Path) -> None:
    import torch

    doing, _ = compiling

    def backend(graph: Any, inputs: list[Any]) -> Any:
        raise RuntimeError("no such instruction")

    model = torch.compile(lambda x: x + 1, backend=backend)
    with doing.during("compute"):
        with pytest.raises(RuntimeError, match="no such instruction"):
            model(torch.ones(2))
        now = activity.read(tmp_path)
        assert now is not None
        assert now[1] == "compute"


def _step(seconds: Seconds) -> dict[str, Any]:
    parts = seconds.total()
    return {"event": "step", "start": 0.0, "t": sum(parts.values()), "committed": True, "seconds": parts}


@pytest.mark.parametrize("rank", [0, 1])
def test_once_a_checkpoint_is_written_no_rank_says_any_more_that_one_failed(trainer: Any, rank: int) -> None:
    """Each rank of the group reports its own part of the write; rank 0 reports which checkpoint it was."""
    told: dict[str, Any] = {}
    trainer.launch, trainer.report = SimpleNamespace(rank=rank), SimpleNamespace(update=told.update)
    why = "checkpoint of step 3 failed: No space left on device"
    trainer._on_checkpoint(None, why, time.time())
    assert told == {"error": why}
    mark = CheckpointMark(step=6, path="step-6", group=0, generation=1)
    trainer._on_checkpoint(mark, "", time.time())
    assert told == ({"error": "", "checkpoint": mark} if rank == 0 else {"error": ""})


# --- waits for the group's other ranks ---


def test_a_wait_in_a_collective_counts_once_and_not_in_a_part() -> None:
    seconds, began = Seconds(), time.perf_counter()
    with seconds.for_peers(), seconds.for_peers():
        time.sleep(0.02)
    seconds.begin()
    assert 0.02 <= seconds.take_waited() <= time.perf_counter() - began
    with seconds.part("commit"), seconds.for_peers():
        time.sleep(0.01)
    assert seconds.take_waited() == 0.0
    assert seconds.total()["commit"] >= 0.01
