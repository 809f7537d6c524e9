"""Recipes that show upstream's faults in a trainer."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from titan_actor import recipes

LOAD_S = 12.0
"""Longer than a start that reads nothing."""

COMMITS_BEFORE = 5
"""Commits of the process before it dies or freezes."""

REST_S = 0.25
"""Pause after each step of a run that is only there to be broken: it leaves the processors to what is watched."""

TOLD = "TOLD_BY_TORCHFT"
"""Environment variable: the file for the output of TorchFT's own loggers of quorums and commits, a JSON line each."""


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        names = ("quorum_id", "step", "commit_result")
        told = {name: record.__dict__[name] for name in names if name in record.__dict__}
        with Path(os.environ[TOLD]).open("a") as file:
            file.write(json.dumps({"logger": record.name, "t": record.created, **told}) + "\n")


def _keep_what_torchft_logs() -> None:
    for name in ("torchft_quorums", "torchft_commits"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(_Keep())


def that_keeps_what_torchft_logs() -> Any:
    _keep_what_torchft_logs()
    return recipes.llama3_debug_small()


def that_rehearses_nothing() -> Any:
    """Skips the rehearsal, as if nothing were compiled."""
    from titan_actor import rehearsal

    rehearsal.needed = lambda config: False
    return recipes.llama3_debug_small()


def with_own_checkpoints() -> Any:
    """Turns TorchTitan's own checkpointer on."""
    config = recipes.llama3_debug_small()
    config.checkpoint.enable = True
    return config


def that_looks_at_heal_state() -> Any:
    """After three steps, compares the state that TorchTitan would send to a healing peer with the true one."""
    from titan_actor.replica import ReplicaTrainer

    record = ReplicaTrainer._record

    def look(self: Any) -> None:
        record(self)
        if self.manager.current_step() == 1:
            self.optimizers.init_cache_state_dict()
        if self.manager.current_step() == 3:
            true = self.optimizers.optimizers[0].param_groups[0]["lr"]
            theirs = {value for name, value in self.optimizers.state_dict().items() if name.endswith(".lr")}
            ours = {group["lr"] for group in self.heal.save()["groups"][0]}
            print(f"true {true} theirs {theirs} ours {ours}")
            assert true not in theirs
            assert ours == {true}
            print("upstream is stale, ours is live")

    ReplicaTrainer._record = look
    return recipes.llama3_debug_small()


def _that_dies_once_it_is_in_a_quorum(group: int) -> Any:
    """Fails its step first, so that the quorum in which it dies is a new one, whose members meet."""
    from titan_actor.replica import ReplicaTrainer

    attempt = ReplicaTrainer._attempt

    def attempt_or_die(self: Any, batches: Any) -> None:
        if self.launch.group == group and self._commits == COMMITS_BEFORE:
            self.manager._pg.configure = lambda *_: os._exit(1)
            self.quorum.abort()
        attempt(self, batches)

    ReplicaTrainer._attempt = attempt_or_die
    return recipes.llama3_debug_small()


def that_dies_with_the_store_of_its_quorum() -> Any:
    """Lets the first group die, which holds the store."""
    return _that_dies_once_it_is_in_a_quorum(0)


def that_dies_beside_the_store_of_its_quorum() -> Any:
    return _that_dies_once_it_is_in_a_quorum(1)


def that_freezes_group_1_before_a_collective() -> Any:
    """Stops itself in the fifth step of this process, between the quorum, which both groups are in, and its first
    collective. If group 0 began alone, it has healed by then, and its steps have other numbers."""
    from titan_actor.replica import ReplicaTrainer

    forward = ReplicaTrainer.forward_backward_step

    def freeze(self: Any, **batch: Any) -> Any:
        self.manager.wait_quorum()
        if self.launch.group == 1 and self._commits == 4 and not hasattr(self, "frozen"):
            self.frozen = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return forward(self, **batch)

    ReplicaTrainer.forward_backward_step = freeze
    if TOLD in os.environ:
        _keep_what_torchft_logs()
    return recipes.llama3_debug_small()


def that_freezes_rank_1_before_a_commit() -> Any:
    """Stops itself in this process's fifth step, when its last collective is over and the other ranks go on to the
    commit."""
    from titan_actor.replica import ReplicaTrainer

    share = ReplicaTrainer._share_and_check

    def freeze(self: Any) -> float | None:
        mean = share(self)
        at = (self.launch.group, self.launch.rank, self._commits)
        if at == (1, 1, 4) and not hasattr(self, "frozen"):
            self.frozen = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return mean

    ReplicaTrainer._share_and_check = freeze
    return recipes.llama3_debug_small()


SENDS_S = "SENDS_STATE_S"
"""Environment variable: seconds for which a group gives its state to one that heals."""
REFUSES = "REFUSES_STATE"
"""Environment variable: while this file is there, a group gives its state to none."""


def that_gives_its_state_slowly() -> Any:
    """Gives its state in small pieces, as a large model's goes over a slow link."""
    from torchft.checkpointing import http_transport

    save = http_transport._streaming_save

    def slowly(state: Any, to: Any) -> None:
        if os.path.exists(os.environ.get(REFUSES, "")):
            raise OSError("it gives nothing")
        whole = io.BytesIO()
        save(state, whole)
        data, pieces = whole.getbuffer(), 100
        for number in range(pieces):
            time.sleep(float(os.environ[SENDS_S]) / pieces)
            to.write(data[number * len(data) // pieces : (number + 1) * len(data) // pieces])

    http_transport._streaming_save = slowly
    return recipes.llama3_debug_small()


def whose_checkpoints_load_slowly() -> Any:
    """Loads as from a busy storage: a group that heals from peers is there long before one that loads a checkpoint."""
    from titan_actor.replica import ReplicaTrainer

    restore = ReplicaTrainer._restore

    def slowly(self: Any) -> None:
        if self.launch.resume == "disk" and self.launch.generation > 1:
            time.sleep(LOAD_S)
        restore(self)

    ReplicaTrainer._restore = slowly
    return recipes.llama3_debug_small()


def that_rests_between_steps() -> Any:
    """Takes a pause after each step, as GPUs give the processors."""
    from titan_actor.replica import ReplicaTrainer

    forward = ReplicaTrainer.forward_backward_step

    def calmly(self: Any, **batch: Any) -> Any:
        time.sleep(REST_S)
        return forward(self, **batch)

    ReplicaTrainer.forward_backward_step = calmly
    return recipes.llama3_debug_small()


def a_small_mixture_of_experts() -> Any:
    """TorchTitan's debug model of DeepSeek V3, cut to a dense layer and one with experts."""
    from torchtitan.models.deepseek_v3 import config_registry

    config = config_registry.deepseek_v3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    return config


def that_spoils_one_rank_of_group_1() -> Any:
    """Makes a gradient of its last rank infinite before the fifth commit of this process, as if only its part of the
    model were spoilt."""
    from titan_actor.replica import ReplicaTrainer

    share = ReplicaTrainer._share_and_check

    def spoil(self: Any) -> float | None:
        if (self.launch.group, self._commits) == (1, 4) and self.launch.rank == self.launch.world_size - 1:
            self._gradients[0] = self._gradients[0] * float("inf")
        return share(self)

    ReplicaTrainer._share_and_check = spoil
    return recipes.llama3_debug_small()


def that_spoils_one_rank_before_it_saves() -> Any:
    """Makes a parameter of the last rank infinite before a checkpoint."""
    from titan_actor.heal import HealState, local
    from titan_actor.replica import ReplicaTrainer

    finite = HealState.finite

    def spoil(self: HealState) -> bool:
        trainer: ReplicaTrainer = self._trainer
        if trainer.launch.rank == trainer.launch.world_size - 1:
            local(self._parameters[0][0].detach()).view(-1)[0] = float("inf")
        return finite(self)

    HealState.finite = spoil  # type: ignore[method-assign]
    return recipes.llama3_debug_small()


def that_asks_for_a_hopper() -> Any:
    """Asks as TorchTitan's recipes with float8 do."""
    from torchtitan.tools.utils import has_cuda_capability

    if not has_cuda_capability(9, 0):
        raise ValueError("only supported on Hopper")
    return recipes.llama3_debug_small()


WHOLE = "whole.jsonl"
"""In a rank's folder: a hash of the whole state, at each checkpoint that it saved or resumed from."""


def that_hashes_its_whole_state() -> Any:
    """Hashes all parameters and moments, unsharded, where a checkpoint is saved or loaded."""
    import hashlib

    from torch.distributed.tensor import DTensor

    from titan_actor.checkpoint import Checkpoints

    save, load = Checkpoints.save, Checkpoints.load

    def note(self: Any, event: str, step: int) -> None:
        hashed = hashlib.blake2b(digest_size=16)
        state = self._state()
        for part in ("model", "optimizer"):
            for name, value in sorted(state[part].items()):
                if name.startswith("param_groups."):  # settings, which are the run file's
                    continue
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                hashed.update(f"{name} {whole.tolist() if hasattr(whole, 'tolist') else whole}".encode())
        with (Path(self._launch.rank_dir) / WHOLE).open("a") as file:
            file.write(json.dumps({"event": event, "step": step, "value": hashed.hexdigest()}) + "\n")

    def save_and_note(self: Any, step: int) -> None:
        save(self, step)
        note(self, "saved", step)

    def load_and_note(self: Any) -> int | None:
        step = load(self)
        if step is not None:
            note(self, "loaded", step)
        return step

    Checkpoints.save, Checkpoints.load = save_and_note, load_and_note
    return recipes.llama3_debug_small()
