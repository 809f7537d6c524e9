"""`python -m titan_actor.twin`: trains the steps that a run committed again, on a CPU, without TorchFT and without
failures.

Reads a Plan as JSON on stdin. Prints a JSON line for each step: {"loss", "norm", "states"} (hashes by group, and
EVERYBODY's). Or prints {"unknown": why, "no_twin": NoTwin}, and ends.

A group's gradient is the sum over its ranks. A step's is the sum over the groups that took part, divided by their
number; one with more samples than the others weighs more. TorchFT's manager does the same; a group that heals takes part,
since it loads the others' state before its forward pass.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json

from supervisor.core.model.spec import TitanSpec
from titan_actor import address, mends
from titan_actor.samples import names

Sample = tuple[dict[str, Any], Any]
"""The model's inputs by name, and the labels."""

Batch = Sample
"""Stacked samples."""

BEGINNING = -1

EVERYBODY = -1
"""Owner of the shared state: all groups but those with a state of their own."""


EXPERTS = "expert_bias_E"
"""Name of TorchTitan's buffer by which a mixture of experts is balanced."""


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A bit that a fault flipped in a parameter of one rank, before a step's first batch."""

    rank: int
    parameter: int
    """Its place in the order of the model."""
    element: int
    """Place in the rank's own part of the parameter."""
    bit: int
    t: float
    """Unix time of the flip in seconds: no two are the same."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One committed step."""

    after: int
    """Place in the plan of the step whose state it continues, or BEGINNING. Mostly the step before."""
    parts: dict[int, list[list[list[str]]]]
    """For each group that took part, for each of its ranks, its batches: the names of their samples."""
    hashed: bool = False
    """True if the state after it must be hashed."""
    flips: dict[int, list[Flip]] = field(default_factory=dict)
    """Group -> the flips in its own copy of the state and not in the others', in the order in which they were made. A
    group that is not named has everybody's state."""
    taken: int | None = None
    """Group whose copy everybody continues from, at this step and later."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is needed to train the run again."""

    titan: TitanSpec
    groups: int
    ranks: int
    """Ranks of each group."""
    reads: int
    """Most samples that any rank has read: the search for a sample ends there."""
    steps: tuple[Step, ...]


PLAN = TypeAdapter(Plan)


class NoTwin(StrEnum):
    """Reasons why a run, or the rest of it, cannot have a twin through no one's fault. There are no others."""

    DEVICE = "device"
    """The run was not trained on CPUs."""
    PARALLELISM = "parallelism"
    """Its groups train in a way that the twin does not support: parallelism, or a learning rate scaled by the batch."""
    ELSEWHERE = "elsewhere"
    """A live run's recipe or data is not on this machine."""
    DISK_FULL = "disk_full"
    """A fault filled the disk on which its ranks note their steps."""


class Unlike(Exception):
    """The run cannot be trained again here; the text says why."""

    def __init__(self, why: str, no_twin: NoTwin = NoTwin.ELSEWHERE) -> None:
        super().__init__(why)
        self.no_twin = no_twin


class Stream:
    """One rank's data from its beginning. Read samples are kept, because a restart reads some of them again."""

    def __init__(self, loader: Any, reads: int, whose: str) -> None:
        self._batches, self._left, self._whose = iter(loader), reads, whose
        self._known: dict[str, Sample] = {}

    def batch(self, wanted: list[str]) -> Batch:
        """Returns the batch of these samples. Raises Unlike when one is not in the data."""
        import torch

        found = [self._find(name) for name in wanted]
        inputs = {key: torch.stack([sample[0][key] for sample in found]) for key in found[0][0]}
        return inputs, torch.stack([sample[1] for sample in found])

    def _find(self, name: str) -> Sample:
        while name not in self._known:
            batch = next(self._batches, None) if self._left > 0 else None
            if batch is None:
                raise Unlike(f"sample {name} of {self._whose} is not in the data")
            inputs, labels = batch
            self._left -= len(labels)
            for at, found in enumerate(names(batch)):
                self._known.setdefault(found, ({key: part[at] for key, part in inputs.items()}, labels[at]))
        return self._known[name]


class Model:
    """The whole model, and the computation of a group's part of a step."""

    def __init__(self, titan: TitanSpec) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        self.trainer = _built(_config(titan, whole=True), 0, 1)
        self.parameters = [p for part in self.trainer.model_parts for p in part.parameters()]
        if any(name.endswith(EXPERTS) for part in self.trainer.model_parts for name, _ in part.named_buffers()):
            raise Unlike("its experts are balanced over all groups: the twin does not do that", NoTwin.PARALLELISM)

    def part(self, ranks: list[list[Batch]]) -> tuple[list[float], list[Any]]:
        """Computes a group's part in a step: the loss of each rank, and the gradient of all of them together."""
        from torchtitan.components.loss import IGNORE_INDEX

        for parameter in self.parameters:
            parameter.grad = None
        valid = sum((labels != IGNORE_INDEX).sum() for _, labels in itertools.chain(*ranks))
        losses = []
        for batches in ranks:
            step = self.trainer.forward_backward_step
            told = [step(input_dict=i, labels=labels, global_valid_tokens=valid) for i, labels in batches]
            losses.append(float(sum(loss.detach() for loss in told)))
        return losses, [_local(p.grad) for p in self.parameters]


class Others:
    """Models in processes of their own, because threads of one would wait for each other's Python. Parameters and
    gradients are in shared memory."""

    def __init__(self, titan: TitanSpec, count: int, parameters: Sequence[Any]) -> None:
        import torch.multiprocessing as processes

        self._parameters = _shared(parameters)
        self._gradients = [_shared(parameters) for _ in range(count)]
        pairs = [processes.Pipe() for _ in range(count)]
        self._ways: list[Connection] = [ours for ours, _ in pairs]
        theirs = [way for _, way in pairs]
        self._processes = processes.spawn(
            _serve, (titan, theirs, self._parameters, self._gradients), count, join=False, daemon=True
        )
        for way in theirs:
            way.close()

    def begin(self, parameters: Sequence[Any], groups: Sequence[list[list[Batch]]]) -> None:
        """Has one model each compute these groups' parts with these parameters."""
        if groups:
            _copy(parameters, self._parameters)
        for way, ranks in zip(self._ways, groups, strict=False):
            # by value: a tensor that is passed on keeps a file open
            way.send_bytes(pickle.dumps(ranks))

    def parts(self, count: int) -> Iterator[tuple[list[float], list[Any]]]:
        """Yields the first `count` results, as `Model.part` does. The next `begin` reuses the gradients' memory."""
        for way, gradients in zip(self._ways[:count], self._gradients, strict=False):
            yield way.recv(), gradients

    def close(self) -> None:
        """Ends the processes."""
        for way in self._ways:
            way.close()
        self._processes.join()


def _serve(index: int, titan: TitanSpec, ways: list[Connection], parameters: list[Any], gradients: list[Any]) -> None:
    _begin()
    model, way, into = Model(titan), ways[index], gradients[index]
    for other in ways:
        if other is not way:
            other.close()
    while True:
        try:
            ranks = pickle.loads(way.recv_bytes())
        except EOFError:
            return
        _copy(parameters, model.parameters)
        losses, made = model.part(ranks)
        _copy(made, into)
        way.send(losses)


class Twin:
    """The model, its optimizer and its schedule. The first model steps. Each further processor has one more model, so
    that groups' parts are computed side by side. Each part runs in one thread, as in the run, so that its sums come out
    the same."""

    def __init__(self, plan: Plan) -> None:
        import torch
        from torchtitan.components.optimizer.utils import init_optim_state

        from titan_actor.checkpoint import load_initial
        from titan_actor.heal import HealState
        from titan_actor.lift import starts_from_weights

        self._plan = plan
        # fails here before anything is started for a run that can have no twin
        given = starts_from_weights(_config(plan.titan))
        shards = _drawn(plan.titan, plan.ranks) if plan.ranks > 1 and not given else []
        self._model = Model(plan.titan)
        self._trainer, self._parameters = self._model.trainer, self._model.parameters
        self._beside = min(plan.groups, os.cpu_count() or 1) - 1
        if shards:
            _copy([torch.cat(parts) for parts in zip(*shards, strict=True)], self._parameters)
        if given:
            load_initial(self._trainer)
        for optimizer in self._trainer.optimizers.optimizers:
            init_optim_state(optimizer)  # as TorchFT's container does: Adam's count of steps begins at one
        self._state = HealState(self._trainer)
        self._streams: dict[tuple[int, int], Stream] = {}
        self._own: dict[int, Any] = {}
        """State of each group that has one of its own."""
        self._made: dict[int, list[Flip]] = {}
        """Flips made in each of these states."""

    def losses(self) -> Iterator[dict[str, Any]]:
        """Yields loss, norm and states of each step of the plan, in order. Raises Unlike where it cannot go on."""
        steps = self._plan.steps
        back = {step.after for before, step in enumerate(steps, BEGINNING) if step.after != before}
        kept = {BEGINNING: self._keep()} if BEGINNING in back else {}
        with closing(Others(self._plan.titan, self._beside, self._parameters)) as others:
            for at, step in enumerate(steps):
                if step.after != at - 1:
                    self._own.clear()
                    self._state.load(copy.deepcopy(kept[step.after]))
                self._flip(step)
                loss, norm = self._train(step, others)
                if at in back:
                    kept[at] = self._keep()
                yield {"loss": loss, "norm": norm, "states": self._digests() if step.hashed else {}}
                self._trainer.gc_handler.run(at + 1)

    def _train(self, step: Step, others: Others) -> tuple[float, float]:
        """Trains one step; returns the groups' mean loss before it, and the norm of the gradient."""
        import torch

        losses, total = [], None
        for weight, (of_ranks, gradients) in zip(_weights(step), self._parts(step, others), strict=True):
            losses.append(torch.tensor(of_ranks) * weight)
            if weight != 1.0:
                gradients = [gradient * weight for gradient in gradients]
            total = gradients if total is None else [a.add_(b) for a, b in zip(total, gradients, strict=True)]
        assert total is not None
        mean = [gradient / len(losses) for gradient in total]
        for group in self._own:
            with self._with_own(group):
                self._step(mean)
        norm = self._step(mean)
        # in the run's order: over the groups for each rank, then over the ranks
        return float((torch.stack(losses).sum(0) / len(losses)).sum()), norm

    def _step(self, gradients: Sequence[Any]) -> float:
        """Makes the optimizer's step; returns the norm of the gradient."""
        from torchtitan.distributed import utils as dist_utils

        _copy(gradients, [p.grad for p in self._parameters])
        norm = dist_utils.clip_grad_norm_(self._parameters, self._trainer.config.training.max_norm, foreach=True)
        self._trainer.optimizers.step()
        self._trainer.lr_schedulers.step()
        return float(norm)

    def _flip(self, step: Step) -> None:
        """Gives each group with flipped bits its own state, and takes it from groups that have healed since."""
        for group in list(self._own):
            if step.flips.get(group, [])[: len(self._made[group])] != self._made[group]:
                del self._own[group]
        for group, flips in step.flips.items():
            if group not in self._own:
                self._own[group], self._made[group] = self._keep(), []
            with self._with_own(group):
                for flip in flips[len(self._made[group]) :]:
                    self._flip_bit(flip)
            self._made[group] = flips
        if step.taken is not None:
            self._state.load(self._own[step.taken])
            self._own.clear()

    def _digests(self) -> dict[int, str]:
        """Returns the hash of everybody's state, and of each group's own."""
        found = {EVERYBODY: self._state.digest()}
        for group in self._own:
            with self._with_own(group):
                found[group] = self._state.digest()
        return found

    def _flip_bit(self, flip: Flip) -> None:
        import torch

        whole = _local(self._parameters[flip.parameter]).detach()
        rows = -(-len(whole) // self._plan.ranks)  # FSDP shards the first dimension; the last rank has the rest
        at = flip.rank * rows * (whole.numel() // len(whole)) + flip.element
        whole.view(-1).view(torch.int32)[at] ^= 1 << flip.bit

    @contextmanager
    def _with_own(self, group: int) -> Iterator[None]:
        """Puts the group's own state in the place of everybody's."""
        everybodys = self._keep()
        self._state.load(self._own[group])
        yield
        self._own[group] = self._keep()
        self._state.load(everybodys)

    def _parts(self, step: Step, others: Others) -> Iterator[tuple[list[float], list[Any]]]:
        read = [
            [[self._stream(group, rank).batch(names) for names in batches] for rank, batches in enumerate(ranks)]
            for group, ranks in sorted(step.parts.items())
        ]
        if self._own:
            yield from self._one_by_one(dict(zip(sorted(step.parts), read, strict=True)))
            return
        while read:
            first, beside, read = read[0], read[1 : 1 + self._beside], read[1 + self._beside :]
            others.begin(self._parameters, beside)
            yield self._model.part(first)
            yield from others.parts(len(beside))

    def _one_by_one(self, groups: dict[int, list[list[Batch]]]) -> Iterator[tuple[list[float], list[Any]]]:
        for group, ranks in groups.items():
            if group in self._own:
                with self._with_own(group):
                    made = self._model.part(ranks)
            else:
                made = self._model.part(ranks)
            yield made

    def _stream(self, group: int, rank: int) -> Stream:
        if (group, rank) not in self._streams:
            plan, config = self._plan, self._trainer.config
            ranks, number, reads = plan.ranks * plan.groups, plan.ranks * group + rank, plan.reads
            if plan.titan.data.source == "tokens":
                # any rank may have drawn any sample
                ranks, number, reads = 1, 0, reads * ranks
            loader = config.dataloader.build(
                dp_world_size=ranks,
                dp_rank=number,
                tokenizer=self._trainer.tokenizer,
                seq_len=config.training.seq_len,
                local_batch_size=config.training.local_batch_size,
            )
            self._streams[group, rank] = Stream(loader, reads, f"group {group} rank {rank}")
        return self._streams[group, rank]

    def _keep(self) -> Any:
        self._state.snapshot()
        return copy.deepcopy(self._state.save())


def _weights(step: Step) -> list[float]:
    """Returns the weight of each group that took part, in their order: its share of the samples, times their number."""
    sizes = [sum(len(batch) for batches in ranks for batch in batches) for _, ranks in sorted(step.parts.items())]
    return [len(sizes) * size / sum(sizes) for size in sizes]


def _local(value: Any) -> Any:
    from titan_actor.heal import local

    return local(value)


def _shared(like: Sequence[Any]) -> list[Any]:
    """Returns tensors of the same number and size, in memory shared with other processes."""
    import torch

    return [torch.zeros_like(_local(value), requires_grad=False).share_memory_() for value in like]


def _copy(values: Sequence[Any], into: Sequence[Any]) -> None:
    import torch

    with torch.no_grad():
        for value, target in zip(values, into, strict=True):
            _local(target).copy_(_local(value))


def _config(titan: TitanSpec, ranks: int = 1, whole: bool = False) -> Any:
    """Returns the config of a rank of the run, or of a trainer that holds the model whole. Raises Unlike when that
    cannot be made here."""
    from titan_actor import config

    try:
        made = config.from_spec(titan, ranks)
    except config.ConfigError as error:
        raise Unlike(str(error)) from error
    if titan.shrunk_lr == "scaled":
        raise Unlike("its learning rate follows its batch: the twin does not do that", NoTwin.PARALLELISM)
    for name in (
        "tensor_parallel",
        "context_parallel",
        "pipeline_parallel",
        "expert_parallel",
        "data_parallel_replicate",
    ):
        if getattr(made.parallelism, f"{name}_degree") > 1:
            raise Unlike(f"parallelism.{name}_degree is above 1: the twin supports only FSDP", NoTwin.PARALLELISM)
    made.dump_folder = tempfile.gettempdir()
    # TorchTitan prefers what is in its own folder to the weights that a run begins with
    made.checkpoint.folder = "no-checkpoints-of-a-twin"
    if whole:
        made.parallelism.data_parallel_shard_degree = -1
    return made


def _built(config: Any, rank: int, world_size: int) -> Any:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)})
    trainer = type(config)._owner(config)
    mends.apply_to("built", trainer)
    return trainer


def _drawn(titan: TitanSpec, world_size: int) -> list[list[Any]]:
    """Returns the parameters that each rank of a group begins with. Each rank draws its own shard and they exchange
    some, so each is again a process of its own."""
    import torch
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_draw, (titan, world_size, folder), world_size)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


def _draw(rank: int, titan: TitanSpec, world_size: int, folder: str) -> None:
    _begin()
    import torch
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", rank=rank, world_size=world_size, store=store)
    trainer = _built(_config(titan, world_size), rank, world_size)
    torch.save([_local(p).detach() for part in trainer.model_parts for p in part.parameters()], f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _begin() -> None:
    mends.apply()
    address.use("127.0.0.1")
    import torch

    torch.set_num_threads(1)  # as each rank of the run has: sums then have the same order


def main() -> int:
    """Reads stdin, prints, and returns the exit code."""
    # torchtitan's imports print warnings; stdout is for the answer alone
    answer = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    plan = PLAN.validate_json(sys.stdin.buffer.read())
    _begin()
    try:
        for line in Twin(plan).losses():
            answer.write(to_json(line) + b"\n")
    except Unlike as error:
        answer.write(to_json({"unknown": str(error), "no_twin": error.no_twin}) + b"\n")
    except FileNotFoundError as error:  # the recipe's data or tokenizer is missing
        answer.write(to_json({"unknown": str(error), "no_twin": NoTwin.ELSEWHERE}) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
