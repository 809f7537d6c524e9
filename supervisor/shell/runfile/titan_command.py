"""Turns what users of TorchTitan have, into a run file's contents: its command line (`--module llama3 --config
llama3_8b --training.steps 1000`), or a job file of 2025 (`--job.config_file train.toml`).

Every setting that has another place here is translated with a line that says where it went. The rest become overrides,
which `titan_actor.check` holds against TorchTitan's config.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.shell.runfile.parse import RunFileError, absolute, nearest_name
from supervisor.wire.titan_names import ASSETS, OUR_KEYS, renamed

JOB_FILE = "job.config_file"
OVERRIDES = "titan.overrides."

LEFT_OUT: Mapping[str, str] = {
    "job.description": "it says nothing to the training",
    "job.print_args": "`supervisor config show` prints the config",
    "job.print_config": "`supervisor config show` prints the config",
    "job.use_for_integration_test": "it says nothing to the training",
    "checkpoint.enable": "checkpoints are always written: titan.checkpoint_interval_steps",
    "checkpoint.enable_checkpoint": "checkpoints are always written: titan.checkpoint_interval_steps",
    "checkpoint.folder": "checkpoints are in `checkpoints` in the run's folder",
    "checkpoint.async_mode": "checkpoints are always written beside the training",
    "checkpoint.model_weights_only": "a checkpoint holds all that a restart needs; weights alone: last_save_in_hf",
    "checkpoint.last_save_model_only": "a checkpoint holds all that a restart needs; weights alone: last_save_in_hf",
    "fault_tolerance.enable": "runs are always fault tolerant",
    "fault_tolerance.replica_id": "each group gets its own",
    "fault_tolerance.process_group": "groups reduce with NCCL where each rank has a GPU of its own, else with Gloo",
    "memory_estimation.disable_fake_mode": "the check has the least memory of a rank",
    **dict.fromkeys(
        (
            f"fault_tolerance.{name}"
            for name in ("sync_steps", "should_quantize", "fragment_sync_delay", "fragment_update_alpha")
        ),
        "groups average their gradients at every step",
    ),
    **dict.fromkeys(
        (
            f"{section}.{name}"
            for section in (
                "float8",
                "quantize.linear.float8",
                "quantize.grouped_mm.float8",
                "quantize.linear.mx",
                "quantize.grouped_mm.mx",
            )
            for name in (
                "fqns",
                "mxfp8_dim1_cast_kernel_choice",
                "enable_fsdp_float8_all_gather",
                "precompute_float8_dynamic_scale_for_fsdp",
                "force_recompute_fp8_weight_in_bwd",
                "recipe_name",
                "filter_fqns",
                "emulate",
            )
        ),
        "it has no effect without the converter, which a recipe gives: model_registry(..., converters=[...])",
    ),
}
"""Names without a place here -> why."""

BY_A_RECIPE: Mapping[str, str] = {
    "activation_checkpoint.selective_ac_option": "TorchTitan 0.3 selects operations, no longer layers",
    "model.converters": "float8 and others are given to model_registry(..., converters=[...])",
    "model.norm_type": "it is a part of the model's config (model_spec)",
    **dict.fromkeys(
        (
            "experimental.custom_args_module",
            "experimental.custom_import",
            "experimental.custom_model_path",
            "job.custom_config_module",
        ),
        "a module of yours is imported by the recipe that is in it",
    ),
}
"""Names that only a recipe can set: TorchTitan 0.3 has objects there."""

GONE: Mapping[str, str] = {
    "memory_estimation.enabled": "`supervisor validate` has the least memory of a rank",
    "optimizer.early_step_in_backward": "TorchTitan 0.3 steps after the backward pass",
    "parallelism.context_parallel_rotate_method": "TorchTitan 0.3 chooses it",
    "parallelism.disable_loss_parallel": "TorchTitan 0.3 has no switch for it",
    "parallelism.enable_compiled_autograd": "TorchTitan 0.3 has it no more",
    "parallelism.expert_tensor_parallel_degree": "TorchTitan 0.3 splits experts by expert_parallel_degree alone",
    "parallelism.pipeline_parallel_split_points": "TorchTitan 0.3 has parallelism.module_fqns_per_model_part in its place",
}
"""Names that TorchTitan 0.3 has no more -> why, or what is in their place. Left out where they ask for nothing."""

IDLE: Mapping[tuple[str, str], str] = {
    ("activation_checkpoint.selective_ac_option", "op"): "it is the only way of TorchTitan 0.3",
    ("activation_checkpoint.selective_ac_option", "2"): "the default of then; TorchTitan 0.3 selects operations",
    ("model.norm_type", "rmsnorm"): "the default of then, and the norm of TorchTitan 0.3's models",
    ("parallelism.expert_tensor_parallel_degree", "1"): "experts were not split further",
    ("parallelism.context_parallel_rotate_method", "allgather"): "the default of then; TorchTitan 0.3 chooses it",
}
"""Name and value of what only a recipe can set, but need not -> why."""


@dataclass
class Translated:
    """The contents of a run file, a line for each setting that went elsewhere, and a problem for each without a place."""

    body: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def from_arguments(module: str, config: str, arguments: Sequence[str], name: str = "") -> Translated:
    """Translates a command line: `--KEY VALUE` are TorchTitan's, `KEY=VALUE` the run file's. Raises RunFileError if the
    job file cannot be read."""
    found = Translated()
    settings, ours, found.problems = _split(arguments)
    job_file = settings.pop(JOB_FILE, None)
    typed = set(settings)
    folders = [Path()]
    if job_file is True:
        raise RunFileError([f"--{JOB_FILE} needs the path of a job file"])
    if job_file is not None:
        path = Path(str(job_file))
        settings = _job(path) | settings
        folders = [path.parent, Path()]
        module, config, problem = _recipe_of(settings, module, config, path)
        found.problems += problem
        name = name or path.stem
    overrides: dict[str, Any] = {}
    _betas(settings, overrides, found.lines)
    for key, value in settings.items():
        found.problems += _translate(key, value, [Path()] if key in typed else folders, found, overrides)
    if "data" in found.body.get("titan", {}) and overrides.pop("dataloader.dataset", None) is not None:
        found.lines.append("dataloader.dataset: left out; the text is that of titan.data.path")
    if module and config:
        _put(found.body, "titan.recipe", f"--module {module} --config {config}")
        name = name or config
    if overrides:
        _put(found.body, "titan.overrides", overrides)
    for key, value in ours.items():
        found.problems += [
            f"{key} = {value!r}: it is given as --{name} too" for name in settings if OUR_KEYS.get(name) == key
        ]
        if key.startswith(OVERRIDES):
            found.body.setdefault("titan", {}).setdefault("overrides", {})[key.removeprefix(OVERRIDES)] = value
        else:
            _put(found.body, key, value)
    found.body.setdefault("name", nearest_name(name))
    groups, allocation = found.body.get("groups", {}), found.body.setdefault("allocation", {})
    if "count" in groups and "nodes" not in allocation:
        allocation["nodes"] = groups["count"] * groups.get("nodes_per_group", 1)
    return found


def _split(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Returns TorchTitan's settings, the run file's, and problems."""
    titan: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    problems = []
    values: list[str] = []
    for argument in [*reversed(arguments)]:
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            section, _, leaf = key.replace("-", "_").rpartition(".")
            given = [value] if equals else values[::-1]
            if not given and leaf.startswith("no_"):
                leaf, given = leaf.removeprefix("no_"), ["false"]
            titan.setdefault(f"{section}.{leaf}" if section else leaf, _value(given))  # the last one counts
            values = []
        elif re.fullmatch(r"[a-z_]+(\.[A-Za-z0-9_]+)*=.*", argument, re.DOTALL):
            key, _, value = argument.partition("=")
            ours.setdefault(key, _value([value]))
        else:
            values.append(argument)
    if values:
        problems.append(f"{values[-1]!r} belongs to no option: TorchTitan's are --KEY VALUE, the run file's KEY=VALUE")
    return dict(reversed(titan.items())), dict(reversed(ours.items())), problems


def _value(given: Sequence[str]) -> Any:
    """Returns the value of an option: nothing is true, several are a list; numbers and lists as in TOML."""
    if not given:
        return True
    if len(given) > 1:
        return [_value([one]) for one in given]
    (text,) = given
    lowered = {"True": "true", "False": "false"}.get(text, text)
    try:
        return tomllib.loads(f"value = {lowered}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _job(path: Path) -> dict[str, Any]:
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFileError([f"cannot read the job file {path}: {error.strerror}"]) from error
    except ValueError as error:
        raise RunFileError([f"{path} is not valid TOML: {error}"]) from error
    return dict(_flat(body))


def _flat(body: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in body.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _recipe_of(settings: dict[str, Any], module: str, config: str, path: Path) -> tuple[str, str, list[str]]:
    """Returns module and config of a job file's model and flavor, which it takes out of the settings."""
    model, flavor = settings.pop("model.name", ""), settings.pop("model.flavor", "")
    if module and config:
        return module, config, []
    if not model or not flavor:
        return "", "", [f"{path}: model.name and model.flavor are missing: give --module and --config"]
    return str(model), f"{model}_{re.sub('[-.]', '_', str(flavor).lower())}", []


def _betas(settings: dict[str, Any], overrides: dict[str, Any], lines: list[str]) -> None:
    if {"optimizer.beta1", "optimizer.beta2"} <= settings.keys():
        overrides["optimizer.betas"] = [settings.pop("optimizer.beta1"), settings.pop("optimizer.beta2")]
        lines.append("optimizer.beta1, optimizer.beta2: optimizer.betas")


def _translate(
    key: str, value: Any, folders: Sequence[Path], found: Translated, overrides: dict[str, Any]
) -> Iterator[str]:
    """Puts one setting in its place; yields a problem if it has none."""
    if why := IDLE.get((key, str(value))):
        found.lines.append(f"{key} = {value!r}: left out; {why}")
    elif key in LEFT_OUT:
        found.lines.append(f"{key} = {value!r}: left out; {LEFT_OUT[key]}")
    elif (key in BY_A_RECIPE or renamed(key) in GONE) and not value:
        found.lines.append(f"{key} = {value!r}: left out; it asks for nothing")
    elif why := GONE.get(renamed(key)):
        yield f"{key} = {value!r}: {why}: remove it"
    elif key in BY_A_RECIPE:
        yield f"{key} = {value!r}: {BY_A_RECIPE[key]}: set it in a function of your own, and name that as MODULE:FUNCTION"
    elif key in OUR_KEYS:
        _put(found.body, OUR_KEYS[key], value)
        found.lines.append(f"{key} = {value!r}: {OUR_KEYS[key]}")
    elif key in ("training.dataset_path", "dataloader.dataset_path") and value:
        _put(found.body, "titan.data", {"source": "folder", "path": str(_found(value, folders))})
        found.lines.append(f"{key} = {value!r}: titan.data.path")
    else:
        _override(key, value, folders, found.lines, overrides)


def _override(key: str, value: Any, folders: Sequence[Path], lines: list[str], overrides: dict[str, Any]) -> None:
    new = renamed(key)
    if new == "hf_assets_path":
        folder = _found(value, folders)
        # the tokenizer was a file once; the check knows what takes the place of TorchTitan's, by the name as it is
        if folder.exists() or not str(value).startswith(ASSETS):
            value = str(folder.parent if folder.is_file() else folder)
    elif new == "dump_folder" and isinstance(value, str) and value and "://" not in value:
        value = absolute(key, Path(), value)  # as TorchTitan takes it, in a job file too
        lines.append(
            f"{key} = {value!r}: titan.overrides.{new}; profiles, TensorBoard and W&B go to NAME/group-N there, checkpoints "
            "to the run's folder, HOME/NAME (`--home`, `--name`)"
        )
    overrides[new] = value
    if new != key and new != "dump_folder":
        lines.append(f"{key} = {value!r}: titan.overrides.{new}")


def _found(value: Any, folders: Sequence[Path]) -> Path:
    """Returns the path as seen from the first of these folders in which it exists, or else from the first."""
    paths = [(folder / str(value)).resolve() for folder in folders]
    return next((path for path in paths if path.exists()), paths[0])


def _put(body: dict[str, Any], key: str, value: Any) -> None:
    *path, leaf = key.split(".")
    for name in path:
        body = body.setdefault(name, {})
    body[leaf] = value
