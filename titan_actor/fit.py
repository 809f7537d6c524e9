"""Checks that a config fits the run, before a node is asked for: its ranks, groups, tokenizer and data."""

from __future__ import annotations

import copy
import difflib
import importlib.util
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from supervisor.core.model.spec import DataSpec, GroupsSpec, TitanSpec
from titan_actor import data, shares
from titan_actor.problem import Problem
from titan_actor.tokens.fits import other_ends, unfit


class NotOnCpu(ValueError):
    """The config trains on GPUs alone. Checked where it trains: a machine that checks a run file may have none."""


def refuse_on_cpu(config: Any) -> None:
    """Raises NotOnCpu with the reason and what to do."""
    from torchtitan.models.common.attention import VarlenAttention
    from torchtitan.models.common.token_dispatcher import (
        DeepEPTokenDispatcher,
        HybridEPTokenDispatcher,
        MinimalAsyncEPTokenDispatcher,
    )

    if config.compile.enable_async_tensor_parallel and config.parallelism.tensor_parallel_degree > 1:
        raise NotOnCpu("compile.enable_async_tensor_parallel needs GPUs, and this node has none: set it to false")
    if config.profiler.enable_memory_snapshot:
        raise NotOnCpu("profiler.enable_memory_snapshot needs GPUs, and this node has none: set it to false")
    name = config.model_spec.name
    if name == "gpt_oss":
        # its sinks rescale by the log-sum-exp of flex attention, which torch has for GPUs alone
        raise NotOnCpu("both kinds of attention of gpt_oss need GPUs, and this node has none: take another model")
    if any(config.model_spec.model.traverse(VarlenAttention.Config)):
        raise NotOnCpu(
            f"the varlen attention of {name} needs GPUs, and this node has none: take a recipe with flex attention"
        )
    degree = config.parallelism.expert_parallel_degree
    for kind in (DeepEPTokenDispatcher, HybridEPTokenDispatcher, MinimalAsyncEPTokenDispatcher):
        if degree > 1 and any(config.model_spec.model.traverse(kind.Config)):
            raise NotOnCpu(
                f"parallelism.expert_parallel_degree is {degree}, and this recipe's experts exchange tokens by "
                f"{kind.__name__.removesuffix('TokenDispatcher')}, which needs GPUs, and this node has none: set it to 1, or take a "
                "recipe whose experts use the standard backend"
            )


def problems(config: Any, titan: TitanSpec, groups: GroupsSpec, files: Collection[str] = ()) -> list[Problem]:
    """Returns every way in which the config does not fit. `files`: names of secrets that the ranks have."""
    found = [
        *_ranges(config, titan, files),
        *_degrees(config.parallelism, groups.ranks_per_group),
        *_backend(config.model_spec, groups.ranks_per_group),
        *_sequence(config),
        *_pipeline(config),
    ]
    if not found:
        found += _batch(config, groups)
        found += filter(None, (_too_few_rounds(config, titan, groups),))
        found += filter(None, (empty_share(config, titan.data, groups.count, groups.ranks_per_group),))
    if not found:
        found += _model(config)
    return [*found, *filter(None, (tokenizer_problem(config),))]


def _has_wandb_key(files: Collection[str]) -> bool:
    if "WANDB_API_KEY" in files or os.environ.get("WANDB_API_KEY"):
        return True
    return os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun") or (Path.home() / ".netrc").exists()


def _ranges(config: Any, titan: TitanSpec, files: Collection[str]) -> Iterator[Problem]:
    """Looks at numbers and names that TorchTitan takes unchecked."""
    from torch._dynamo import list_backends

    for key, least in LEAST.items():
        owner = config
        for name in key.split("."):
            owner = getattr(owner, name, least)
        if isinstance(owner, int) and owner < least:
            yield Problem(f"titan.overrides.{key}", owner, f"must be at least {least}")
    total = config.lr_scheduler.total_steps
    if total is not None and total < titan.steps:
        message = f"ends before titan.steps = {titan.steps}, and the learning rate would go on below zero: leave it out"
        yield Problem("titan.overrides.lr_scheduler.total_steps", total, message)
    for name in config.compile.components:
        if name not in ("model", "loss"):
            yield Problem("titan.overrides.compile.components", name, "TorchTitan compiles 'model' and 'loss' alone")
    backends = list_backends(exclude_tags=())
    if config.compile.backend not in backends:
        (near,) = difflib.get_close_matches(config.compile.backend, backends, n=1) or ("",)
        told = f"torch has no such backend here: {', '.join(list_backends())}, and some for debugging"
        yield Problem("titan.overrides.compile.backend", config.compile.backend, told, near)
    if config.metrics.enable_wandb and importlib.util.find_spec("wandb") is None:
        yield Problem("titan.overrides.metrics.enable_wandb", True, "the package wandb is not installed here")
    elif config.metrics.enable_wandb and not _has_wandb_key(files):
        message = (
            "there is no key of W&B, and training would go on without it: name its file as WANDB_API_KEY in [env.files], "
            'or set WANDB_MODE = "offline" in [env.set]'
        )
        yield Problem("titan.overrides.metrics.enable_wandb", True, message)


LEAST = {
    "training.local_batch_size": 1,
    "training.seq_len": 1,
    "dataloader.num_workers": 0,
    "lr_scheduler.warmup_steps": 0,
    "metrics.log_freq": 1,
}
"""Least values of numbers."""


def _model(config: Any) -> Iterator[Problem]:
    """Asks the model's own config about the rest, as TorchTitan's trainer does before it builds the model; it has applied
    the overrides of `override.imports` by then."""
    from torchtitan.config.override import apply_overrides

    config = copy.deepcopy(config)
    try:
        apply_overrides(config.override, config)
    except Exception as error:  # noqa: BLE001  (it imports a module of the user's)
        lacks = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        own = [each if isinstance(each, str) else each[0] for each in config.override.imports]
        # the nodes may have what such a module imports in turn
        if lacks is None or any(f"{each}.".startswith(f"{lacks}.") for each in own):
            yield Problem(
                "titan.overrides.override.imports", config.override.imports, f"{type(error).__name__}: {error}"
            )
            return
    try:
        config.model_spec.model.update_from_config(config=config)
    except (NotImplementedError, ValueError) as error:
        yield Problem("titan.recipe", config.model_spec.name, str(error))


def data_parallel(parallelism: Any, ranks: int) -> int:
    """Returns how many ranks of a group read data of their own."""
    apart = (
        parallelism.tensor_parallel_degree * parallelism.pipeline_parallel_degree * parallelism.context_parallel_degree
    )
    return max(1, ranks // apart)


def _degrees(parallelism: Any, ranks: int) -> Iterator[Problem]:
    names = ("data_parallel_replicate", "tensor_parallel", "pipeline_parallel", "context_parallel")
    degrees = {f"{name}_degree": getattr(parallelism, f"{name}_degree") for name in names}
    shard = parallelism.data_parallel_shard_degree
    low = {name: degree for name, degree in degrees.items() if degree < 1}
    for name, degree in low.items():
        yield Problem(f"titan.overrides.parallelism.{name}", degree, f"{degree} is below 1")
    if low:
        return
    product = 1
    for degree in degrees.values():
        product *= degree
    told = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "no other degree"
    if shard == -1:
        if ranks % product:
            message = f"{ranks} is no multiple of {product} ({told})"
            yield Problem("groups.ranks_per_group", ranks, message)
            return
        shard = ranks // product
    elif product * shard != ranks:
        message = (
            f"data_parallel_shard_degree {shard} x {told} = {product * shard} ranks, and groups.ranks_per_group = {ranks}: "
            "let it be -1 for what is left"
        )
        yield Problem("titan.overrides.parallelism.data_parallel_shard_degree", shard, message)
        return
    experts = parallelism.expert_parallel_degree
    dense = shard * parallelism.context_parallel_degree * parallelism.tensor_parallel_degree
    if dense % experts:
        message = f"{experts} does not divide the {dense} ranks of data, context and tensor parallelism that it borrows"
        yield Problem("titan.overrides.parallelism.expert_parallel_degree", experts, message)


def _backend(model_spec: Any, ranks: int) -> Iterator[Problem]:
    """Looks for models that take spmd_types alone, which titan_actor/mends.py takes from groups of several ranks."""
    from torchtitan.models.common.dist_gemm import AllGatherFusedQKVLinear

    alone = model_spec.name == "muse_glimmer" or any(model_spec.model.traverse(AllGatherFusedQKVLinear.Config))
    if alone and ranks > 1:
        message = (
            "it takes parallelism.spmd_backend 'spmd_types' alone, which fails at several ranks with torch 2.13: set "
            "groups.ranks_per_group = 1, or take another config"
        )
        yield Problem("titan.recipe", model_spec.name, message)


def _sequence(config: Any) -> Iterator[Problem]:
    parts, length = config.parallelism, config.training.seq_len
    context = parts.context_parallel_degree
    divisor = (parts.tensor_parallel_degree if parts.enable_sequence_parallel else 1) * (
        2 * context if context > 1 else 1
    )
    if divisor > 0 and length % divisor:
        message = f"{length} is no multiple of {divisor}, as its tensor and context parallelism need"
        yield Problem("titan.overrides.training.seq_len", length, message)
    elif context > 1:
        yield from _context(config, context, length)


def _context(config: Any, degree: int, length: int) -> Iterator[Problem]:
    from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE
    from torchtitan.models.common.attention import FlexAttention, VarlenAttention

    model, block = config.model_spec.model, _DEFAULT_SPARSE_BLOCK_SIZE
    if any(model.traverse(VarlenAttention.Config)):
        message = (
            f"TorchTitan has no context parallelism for the varlen attention of {config.model_spec.name}: set it to 1"
        )
        yield Problem("titan.overrides.parallelism.context_parallel_degree", degree, message)
    elif any(model.traverse(FlexAttention.Config)) and length % (degree * block):
        message = (
            f"{length} is no multiple of {degree * block}: each of {degree} ranks takes whole blocks of {block} tokens "
            "of flex attention's mask; take a multiple"
        )
        yield Problem("titan.overrides.training.seq_len", length, message)


def _pipeline(config: Any) -> Iterator[Problem]:
    parallelism, spec = config.parallelism, config.model_spec
    degree, key = parallelism.pipeline_parallel_degree, "titan.overrides.parallelism.pipeline_parallel_degree"
    if degree <= 1:
        return
    if not spec.pipelining_fn:
        yield Problem(key, degree, f"TorchTitan cannot split {spec.name} into stages: set it to 1")
        return
    from torchtitan.distributed import pipeline_parallel

    try:
        parts = pipeline_parallel._get_pipeline_metadata(SimpleNamespace(pp=degree), parallelism, spec.model)
        if parallelism.module_fqns_per_model_part is None:
            pipeline_parallel._generate_llm_fqn_per_model_part(*parts)
    except ValueError as error:
        yield Problem(key, degree, str(error))


def _batch(config: Any, groups: GroupsSpec) -> Iterator[Problem]:
    whole, local = config.training.global_batch_size, config.training.local_batch_size
    degree = data_parallel(config.parallelism, groups.ranks_per_group)
    once = local * degree * groups.count
    if whole > 0 and whole % once:
        message = (
            f"{whole} is no multiple of {once}: local_batch_size {local} x {degree} data-parallel ranks of a group x "
            f"{groups.count} groups"
        )
        yield Problem("titan.overrides.training.global_batch_size", whole, message)


def tokenizer_problem(config: Any) -> Problem | None:
    """Returns a problem if the tokenizer gives tokens that the model has no row for, or cannot write conversations that
    the data are made of."""
    import jinja2
    from torchtitan.hf_datasets.text_datasets import ChatDataLoader, InterleavedChatDataLoader

    message = ""
    try:
        tokenizer = config.tokenizer.build(tokenizer_path=config.hf_assets_path)
        if isinstance(config.dataloader, ChatDataLoader.Config | InterleavedChatDataLoader.Config):
            tokenizer.apply_chat_template([{"role": "user", "content": "1 + 1?"}], add_generation_prompt=True)
    except (OSError, jinja2.TemplateError) as error:
        message = str(error)
    except TypeError as error:  # transformers, on a vocabulary of another kind
        message = f"the tokenizer cannot be built: {error}"
    except ValueError:  # it has no template
        message = "conversations need a chat template: put the model's chat_template.jinja beside tokenizer_config.json"
    else:
        message = too_many_tokens(tokenizer, config.model_spec.model)
    return Problem("titan.overrides.hf_assets_path", config.hf_assets_path, message) if message else None


def too_many_tokens(tokenizer: Any, model: Any) -> str:
    """Returns a sentence if a tokenizer gives tokens that a model's config has no row for; else empty, as for a model of
    images."""
    rows = getattr(model, "vocab_size", None)
    if rows is None or (size := tokenizer.get_vocab_size()) <= rows:
        return ""
    return f"the tokenizer has {size} tokens, the model {rows} rows"


def _too_few_rounds(config: Any, titan: TitanSpec, groups: GroupsSpec) -> Problem | None:
    """Returns a problem if no step could be as large as planned, even with all groups."""
    training = config.training
    round_of_all = groups.count * data_parallel(config.parallelism, groups.ranks_per_group) * training.local_batch_size
    rounds, most = max(1, training.global_batch_size // round_of_all), titan.max_accumulation
    if not 0 < most < rounds:
        return None
    why = f"a step of all groups has {rounds} rounds in each: give at least that, or 0 for no limit"
    return Problem("titan.max_accumulation", most, why)


def empty_share(config: Any, spec: DataSpec, groups: int, ranks_per_group: int) -> Problem | None:
    """Returns a problem if a group would get no document, or no readable one, as far as the folder here shows; or if a
    token store does not fit."""
    degree = data_parallel(config.parallelism, ranks_per_group)
    if spec.source == "tokens":
        training = config.training
        samples = max(training.global_batch_size, groups * degree * training.local_batch_size)
        store, tokenizer = spec.path, config.hf_assets_path
        why = unfit(store, tokenizer, training.seq_len, samples) or other_ends(store, tokenizer)
        return Problem("titan.data.path", spec.path, why) if why else None
    try:
        workers = max(1, config.dataloader.num_workers)
        shares.refuse(spec, ranks=range(groups * degree), groups=groups, degree=degree, workers=workers)
    except (data.DataError, OSError) as error:
        return Problem("titan.data.path", spec.path, str(error))
    return None
