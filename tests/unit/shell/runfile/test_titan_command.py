"""TorchTitan's command line and its older job files, as a run file's contents."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli import app
from supervisor.shell.inspect import client
from supervisor.shell.runfile import parse
from supervisor.shell.runfile.titan_command import from_arguments

JOB = """
[job]
dump_folder = "./outputs"
description = "Llama 3 debug training"
[profiling]
enable_profiling = true
[metrics]
log_freq = 1
[model]
name = "llama3"
flavor = "debugmodel"
tokenizer_path = "./tokenizer"
converters = []
[optimizer]
name = "AdamW"
lr = 8e-4
beta1 = 0.9
beta2 = 0.95
[training]
batch_size = 8
seq_len = 2048
steps = 10
dataset = "c4_test"
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[checkpoint]
enable_checkpoint = false
interval = 10
model_weights_only = false
[float8]
enable_fsdp_float8_all_gather = false
precompute_float8_dynamic_scale_for_fsdp = false
filter_fqns = ["output"]
"""


def test_a_command_line_of_torchtitan() -> None:
    given = (
        "--training.steps 1000 --optimizer.lr 3e-4 --compile.enable --metrics.no-enable-wandb --training.seq-len=512"
    )
    made = from_arguments(
        "llama3", "llama3_8b", [*given.split(), "groups.count=4", "--compile.components", "model", "loss"]
    )
    assert made.body == {
        "name": "llama3-8b",
        "titan": {
            "recipe": "--module llama3 --config llama3_8b",
            "steps": 1000,
            "overrides": {
                "optimizer.lr": 3e-4,
                "compile.enable": True,
                "metrics.enable_wandb": False,
                "training.seq_len": 512,
                "compile.components": ["model", "loss"],
            },
        },
        "groups": {"count": 4},
        "allocation": {"nodes": 4},
    }
    assert parse.parse(made.body).titan.steps == 1000
    assert made.lines == ["training.steps = 1000: titan.steps"]


def test_the_nodes_of_a_command_line_are_those_of_all_groups() -> None:
    given = ["groups.count=2", "groups.nodes_per_group=2", "groups.ranks_per_group=2"]
    made = from_arguments("llama3", "llama3_8b", given)
    assert made.body["allocation"] == {"nodes": 4}
    assert parse.parse(made.body).groups.slots == 1


def test_an_older_job_file_with_the_five_arguments_of_the_tutorials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Config file, tokenizer, steps, data and dump folder, as they are typed there."""
    here = tmp_path / "here"
    (here / "text").mkdir(parents=True)
    monkeypatch.chdir(here)
    (tmp_path / "train.toml").write_text(JOB)
    (tmp_path / "tokenizer").mkdir()
    given = ["--job.config_file", f"{tmp_path}/train.toml", "--training.steps", "50", "--training.dataset_path", "text"]
    made = from_arguments("", "", [*given, "--job.dump_folder", "out"])
    titan = made.body["titan"]
    assert made.body["name"] == "train"
    assert titan["recipe"] == "--module llama3 --config llama3_debugmodel"
    assert titan["steps"] == 50
    assert titan["checkpoint_interval_steps"] == 10
    assert titan["data"] == {"source": "folder", "path": f"{here}/text"}
    assert titan["overrides"] == {
        "optimizer.betas": [0.9, 0.95],
        "profiler.enable_profiling": True,
        "activation_checkpoint": "selective",
        "metrics.log_freq": 1,
        "optimizer.param_groups.0.optimizer_name": "AdamW",
        "optimizer.lr": 8e-4,
        "training.local_batch_size": 8,
        "training.seq_len": 2048,
        "parallelism.data_parallel_shard_degree": -1,
        "hf_assets_path": f"{tmp_path}/tokenizer",
        "dump_folder": f"{here}/out",
    }
    told = {line.partition(" = ")[0].partition(":")[0] for line in made.lines}
    assert {"job.dump_folder", "training.batch_size", "training.dataset_path", "dataloader.dataset"} <= told


def test_what_an_older_job_file_sets_to_what_it_is_anyway_is_left_out_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "qwen3.toml").write_text(
        """
        model = { name = "qwen3", flavor = "0.6B", norm_type = "rmsnorm", hf_assets_path = "./tests/assets/tokenizer" }
        activation_checkpoint = { mode = "selective", selective_ac_option = "2" }
        parallelism = { enable_async_tensor_parallel = false }
        validation = { enabled = false }
        [quantize.linear.float8]
        filter_fqns = ["output"]
        """
    )
    made = from_arguments("", "", ["--job.config_file", f"{tmp_path}/qwen3.toml"])
    assert made.problems == []
    assert made.body["titan"] == {
        "recipe": "--module qwen3 --config qwen3_0_6b",
        "overrides": {
            "hf_assets_path": "./tests/assets/tokenizer",
            "activation_checkpoint": "selective",
            "compile.enable_async_tensor_parallel": False,
            "validator.enable": False,
        },
    }
    left_out = [line.partition(" = ")[0] for line in made.lines if ": left out; " in line]
    assert left_out == [
        "model.norm_type",
        "activation_checkpoint.selective_ac_option",
        "quantize.linear.float8.filter_fqns",
    ]


def test_a_job_file_of_a_model_with_experts_is_translated(tmp_path: Path) -> None:
    """It has the keys of the newest job files before configs were functions (TorchTitan's debug_model.toml of deepseek_v3)."""
    (tmp_path / "old.toml").write_text(
        """
        model = { name = "deepseek_v3", flavor = "debugmodel", hf_assets_path = "./tests/assets/tokenizer" }
        optimizer = { name = "AdamW", lr = 8e-4, early_step_in_backward = false }
        activation_checkpoint = { mode = "selective", per_op_sac_force_recompute_mm_shapes_by_fqns = ["moe.router.gate"] }
        fault_tolerance = { process_group = "gloo", process_group_timeout_ms = 20000, sync_steps = 10 }
        experimental = { custom_import = "", custom_args_module = "" }
        memory_estimation = { enabled = false, disable_fake_mode = false }
        [parallelism]
        expert_parallel_degree = 2
        expert_tensor_parallel_degree = 1
        context_parallel_rotate_method = "allgather"
        pipeline_parallel_split_points = []
        [quantize.grouped_mm.float8]
        fqns = ["experts"]
        """
    )
    made = from_arguments("", "", ["--job.config_file", f"{tmp_path}/old.toml"])
    assert made.problems == []
    assert made.body["titan"]["overrides"] == {
        "hf_assets_path": "./tests/assets/tokenizer",
        "optimizer.param_groups.0.optimizer_name": "AdamW",
        "optimizer.lr": 8e-4,
        "activation_checkpoint": "selective",
        "activation_checkpoint.force_recompute_mm_shapes_by_fqns": ["moe.router.gate"],
        "parallelism.expert_parallel_degree": 2,
    }
    assert made.body["torchft"] == {"process_group_timeout_ms": 20000}
    assert sum(": left out; " in line for line in made.lines) == 11


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("parallelism.expert_tensor_parallel_degree", "2", "by expert_parallel_degree alone: remove it"),
        ("experimental.pipeline_parallel_split_points", "['layers.2']", "module_fqns_per_model_part in its place"),
        ("experimental.custom_import", "mine", "imported by the recipe that is in it: set it in a function"),
    ],
)
def test_an_older_setting_that_asks_for_what_is_gone_is_a_problem(option: str, value: str, words: str) -> None:
    (problem,) = from_arguments("llama3", "llama3_8b", [f"--{option}", value]).problems
    assert words in problem


@pytest.mark.parametrize(
    ("module", "arguments", "names"),
    [
        ("llama3", ["1000"], "1000"),
        ("llama3", ["--activation_checkpoint.selective_ac_option", "4"], "selective_ac_option"),
        ("llama3", ["--training.steps", "5", "titan.steps=9"], "training.steps"),
    ],
)
def test_what_has_no_place_is_named(module: str, arguments: list[str], names: str) -> None:
    (problem,) = from_arguments(module, "llama3_8b", arguments).problems
    assert names in problem


def test_a_job_file_that_is_not_there_is_named() -> None:
    with pytest.raises(parse.RunFileError, match=r"/nowhere/train\.toml"):
        from_arguments("", "", ["--job.config_file", "/nowhere/train.toml"])


def test_what_a_job_file_translates_and_all_that_is_refused_is_shown_at_once(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(JOB.replace('selective_ac_option = "op"', 'selective_ac_option = "4"'))
    told = CliRunner().invoke(app, ["validate", "--job.config_file", f"{tmp_path}/old.toml", "groups.cuont=4"])
    assert told.exit_code == 2
    for found in (
        "training.steps = 10: titan.steps",
        "job.dump_folder = ",
        "selective_ac_option = '4': ",
        "groups.cuont",
    ):
        assert found in told.stderr


def test_what_torchtitan_refuses_is_shown_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "check_titan", lambda spec, tree=None: (["training.seq_lne: no such field"], []))
    given = ["--module", "llama3", "--config", "llama3_8b", "--model.norm_type", "x", "--training.seq_lne", "7"]
    told = CliRunner().invoke(app, ["validate", *given])
    assert told.exit_code == 2
    assert "model.norm_type = 'x': " in told.stderr
    assert "training.seq_lne: no such field" in told.stderr


def test_relative_paths_are_those_of_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "run.toml").write_text(
        'name = "r"\n[titan.overrides]\nhf_assets_path = "words"\n"dataloader.dataset_path" = "allenai/c4"\n'
        'validator.dataloader.dataset_path = "words"\ndump_folder = "out"\n'
    )
    assert parse.load(tmp_path / "run.toml").titan.overrides == {
        "hf_assets_path": str(tmp_path / "words"),
        "dataloader.dataset_path": "allenai/c4",
        "validator": {"dataloader": {"dataset_path": str(tmp_path / "words")}},
        "dump_folder": str(tmp_path / "out"),
    }
    (tmp_path / "run.toml").write_text(
        'name = "r"\n[titan.overrides]\nhf_assets_path = "none"\n"checkpoint.initial_load_path" = "none/step-5"\n'
    )
    assert parse.load(tmp_path / "run.toml").titan.overrides == {
        "hf_assets_path": str(tmp_path / "none"),
        "checkpoint.initial_load_path": str(tmp_path / "none" / "step-5"),
    }, "also where nothing is, so that it says where it was looked for"
    (tmp_path / "run.toml").write_text('name = "r"\n[titan.overrides]\nhf_assets_path = "./tests/assets/tokenizer"\n')
    assert parse.load(tmp_path / "run.toml").titan.overrides == {"hf_assets_path": "./tests/assets/tokenizer"}


@pytest.mark.parametrize("key", ["dump_folder", "job.dump_folder"])
def test_a_dump_folder_is_that_of_where_the_command_is_typed_and_the_line_says_what_goes_there(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = from_arguments("llama3", "llama3_8b", [f"--{key}", "out"])
    assert made.body["titan"]["overrides"] == {"dump_folder": f"{tmp_path}/out"}
    (line,) = made.lines
    assert line.startswith(f"{key} = '{tmp_path}/out': titan.overrides.dump_folder; ")
    assert "checkpoints to the run's folder" in line


def test_the_last_of_a_repeated_option_counts_and_two_ways_to_say_one_thing_do_not() -> None:
    given = ["--training.steps", "1000", "groups.count=2", "--training.steps", "5", "groups.count=4"]
    made = from_arguments("llama3", "llama3_8b", given)
    assert made.body["titan"]["steps"] == 5
    assert made.body["groups"]["count"] == 4


def test_an_override_may_be_given_by_its_key_in_the_run_file() -> None:
    made = from_arguments("llama3", "llama3_8b", ["titan.overrides.training.seq_len=7"])
    assert made.body["titan"]["overrides"] == {"training.seq_len": 7}


@pytest.mark.parametrize("value", ["a\0b", "loop/out"])
def test_a_folder_that_cannot_be_one_is_refused_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(parse.RunFileError, match=r"job\.dump_folder"):
        from_arguments("", "", ["--job.dump_folder", value])
    for titan in ({"overrides": {"dump_folder": value}}, {"data": {"source": "folder", "path": value}}):
        with pytest.raises(parse.RunFileError, match=r"titan\.(overrides\.dump_folder|data\.path)"):
            parse.parse({"name": "r", "titan": titan}, tmp_path)
