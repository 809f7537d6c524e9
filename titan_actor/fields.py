"""Says of each field of TorchTitan's config what becomes of it: honoured, set by a key of the run file, or refused.

The table is complete for the versions of TorchTitan that are tested: `tests/real_trainers/titan/test_fields.py` walks every config of
its registries and every field that their types declare, and fails for one without a row. docs/TITAN.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Standing = Literal["honoured", "ours", "refused"]


@dataclass(frozen=True)
class Row:
    """The fate of all fields of one name. `unless`: the value with which a refused field does nothing, or that one of ours
    has anyway."""

    standing: Standing
    note: str = ""
    unless: Any = None
    always: bool = False
    """True if `config show` has the note, also where the recipe set the field."""


def _honoured(*names: str, note: str = "") -> dict[str, Row]:
    return dict.fromkeys(names, Row("honoured", note))


def _ours(note: str, *names: str) -> dict[str, Row]:
    return dict.fromkeys(names, Row("ours", note))


_OWN_CHECKPOINTS = (
    "the supervisor writes and keeps checkpoints: titan.checkpoint_interval_steps, titan.checkpoints_kept"
)
_IMAGES = [
    "build_mrope_positions", "dataset_subset", "generate_timesteps", "image_mean", "image_std", "img_size", "max_images_per_batch", "max_patches",
    "max_patches_per_side", "max_pixels", "min_pixels", "packing_buffer_size", "patch_order", "patch_size", "prompt_dropout_prob", "resize_fn",
    "spatial_merge_size", "temporal_patch_size", "video_dir", "video_fps", "video_max_frames", "video_min_frames",
]  # fmt: skip
_DATA = [
    "dataset",
    "dataset_path",
    "infinite",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
]

TABLE: Mapping[str, Mapping[str, Row]] = {
    "": {
        **_honoured("model_spec.*", "tokenizer.*", "loss.*", note="the recipe's own objects, which are built unchanged"),
        **_honoured("activation_checkpoint", note="none, full or selective; or any object of a recipe's"),
        **_honoured("hf_assets_path", note="relative paths are taken from the run file's folder"),
        **_honoured("dump_folder", note="a folder of the group in the run's own, or in NAME below an absolute path given here"),
        **_ours("[groups] and [torchft]", "fault_tolerance.*"),
        **_honoured("encoder.*", "inference.*", note="of flux, whose own trainer reads them"),
    },
    "activation_checkpoint": _honoured(
        "debug", "determinism_check", "force_recompute_mm_shapes_by_fqns", "memory_budget", "preserve_rng_state",
        "visualize_memory_budget_pareto",
    ),
    "checkpoint": {
        **_honoured(
            "initial_load_path", "initial_load_in_hf", "initial_load_in_hf_quantized",
            note="loaded at the start of a run that has no checkpoint of its own",
        ),
        **_honoured("last_save_in_hf", "export_dtype", note="written once, at the end, to `export` in the run's folder"),
        "initial_load_model_only": Row("refused", "an optimizer of another run is not taken over", unless=True),
        "create_seed_checkpoint": Row("refused", "it needs one process: make it with TorchTitan's own trainer", unless=False),
        "exclude_from_loading": Row("refused", "a checkpoint of the run is loaded whole", unless=[]),
        "load_step": Row("refused", "a run goes on from its newest complete checkpoint", unless=-1),
        **_ours(
            _OWN_CHECKPOINTS, "enable", "folder", "interval", "keep_latest_k", "async_mode", "last_save_model_only",
            "enable_first_step_checkpoint", "load_only", "enable_ft_dataloader_checkpoints",
        ),
    },
    "comm": {
        **_honoured("init_timeout_seconds"),
        "train_timeout_seconds": Row(
            "honoured", "at least a day, where the supervisor ends what hangs (policy.hang): a person may have a rank of the group in the debugger", always=True,
        ),
        **_honoured(
            "trace_buf_size", "save_traces_folder", "save_traces_file_prefix",
            note="NCCL writes these traces when a collective times out; without GPUs the folder stays empty",
        ),
        "mode": Row("refused", "ranks train with real collectives", unless="default"),
    },
    "compile": _honoured("enable", "enable_async_tensor_parallel", "components", "backend"),
    "dataloader": _honoured(
        *_DATA, *_IMAGES, "load_dataset_kwargs.*", "sample_processor", note="each group reads a share of its own; [titan.data] sets the text, if it is given",
    ),
    "validator.dataloader": _honoured(*_DATA, "generate_timesteps", "img_size", "prompt_dropout_prob", note="each group validates on a share of its own"),
    "debug": {
        **_honoured(
            "batch_invariant", "detect_anomaly", "deterministic", "deterministic_warn_only",
            "moe_force_load_balance", "print_config", "save_config_file", "spmd_typechecking",
        ),
        **_ours("titan.seed", "seed"),
        "enable_structured_logging": Row(
            "ours", "not written: steps.jsonl of each rank has the seconds of each step's parts", unless=False
        ),
    },
    "lr_scheduler": _honoured(
        "decay_ratio", "decay_type", "min_lr_factor", "total_steps", "warmup_steps", note="advances on committed steps alone",
    ),
    "metrics": {
        **_honoured("disable_color_printing", "log_freq", "enable_tensorboard", "save_tb_folder"),
        **_honoured("enable_wandb", note="one run for each group, which its restarts go on with; an id of yours in WANDB_RUN_ID gets -group-N"),
        **_honoured("save_for_all_ranks"),
    },
    "optimizer": _honoured("implementation", "optimizer_factory_kwargs_by_name.*"),
    "optimizer.param_groups": _honoured(
        "optimizer_kwargs.*", "optimizer_name", "pattern",
        note="optimizer.NAME sets NAME in every group, optimizer.param_groups.0.optimizer_kwargs.NAME in one",
    ),
    "override": _honoured("imports"),
    "parallelism": {
        **_honoured(
            "context_parallel_degree", "context_parallel_load_balancer", "context_parallel_ptrr_mask_key",
            "data_parallel_replicate_degree", "data_parallel_shard_degree", "enable_fsdp_symm_mem",
            "enable_sequence_parallel", "expert_parallel_degree", "fsdp_reshard_after_forward", "module_fqns_per_model_part",
            "pipeline_parallel_degree", "pipeline_parallel_first_stage_less_layers",
            "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_layers_per_stage",
            "pipeline_parallel_microbatch_size", "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv",
            "tensor_parallel_degree", note="inside a group",
        ),
        "spmd_backend": Row(
            "honoured", "in groups of several ranks spmd_types becomes partial_dtensor: it fails there (titan_actor/mends.py)"
        ),
    },
    "profiler": _honoured(
        "enable_memory_snapshot", "enable_profiling", "memory_snapshot_freq", "memory_snapshot_max_entries", "profile_freq",
        "profiler_active", "profiler_repeat", "profiler_skip_first", "profiler_skip_first_wait", "profiler_warmup",
        "save_memory_snapshot_folder", "save_traces_folder", "trace_post_processor.*",
    ),
    "training": {
        **_honoured(
            "dtype", "enable_cpu_offload", "gc_debug", "gc_freq", "local_batch_size", "max_norm", "mixed_precision_param",
            "mixed_precision_reduce", "seq_len",
        ),
        **_honoured("global_batch_size", note="of all groups together"),
        **_ours("titan.steps", "steps"),
        "disable_cuda_graphs": Row(
            "ours", "always true: a captured step would hold the all-reduce between groups (titan_actor/mends.py)", unless=True,
        ),
    },
    "validator": {
        **_honoured("enable", "freq", "steps", note="each group validates on a share of its own"),
        **_honoured("all_timesteps", "sampling.*", "save_img_count", "save_img_folder", note="of flux"),
    },
}  # fmt: skip
"""Section -> name of a field in it -> what becomes of it; `NAME.*`: of it and all below it. Under "" the fields that are
in no section. Items of a list are not numbered."""


def standing(path: str) -> Row | None:
    """Returns the row of a field, given as its path from the top of the config; None: it has none."""
    *section, name = parts = [part for part in path.split(".") if not part.isdecimal()]
    if row := TABLE.get(".".join(section), {}).get(name):
        return row
    rows = (TABLE.get(".".join(parts[:at]), {}).get(f"{part}.*") for at, part in enumerate(parts))
    return next(filter(None, rows), None)
