"""Overrides are checked against the config's fields and types; a typo stops the start."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.core.model.spec import DataSpec, GroupsSpec, RunSpec, SlurmSpec, TitanSpec
from supervisor.wire.gpus import SHARED
from supervisor.wire.records import RunRecord, TrainerLaunch, encode
from titan_actor import mends

RECIPE = "llama3-debug-small"


@pytest.fixture(scope="module", autouse=True)
def _upstream() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()
        import torchtitan.experiments.torchft.llama3.config_registry  # noqa: F401


def built(**fields: Any) -> Any:
    from titan_actor import config

    return config.from_spec(TitanSpec(**{"recipe": RECIPE, **fields}))


def problems(**fields: Any) -> list[Any]:
    from titan_actor import config

    with pytest.raises(config.ConfigError) as raised:
        built(**fields)
    return raised.value.problems


def test_right_overrides_are_set() -> None:
    config = built(
        overrides={
            "training.seq_len": 32,
            "training.max_norm": 2,
            "lr_scheduler.decay_type": "cosine",
            "lr_scheduler.decay_ratio": None,
            "comm.train_timeout_seconds": 90,
            "parallelism.fsdp_reshard_after_forward": "never",
        }
    )
    assert config.training.seq_len == 32
    assert config.training.max_norm == 2
    assert config.lr_scheduler.decay_type == "cosine"
    assert config.lr_scheduler.decay_ratio is None
    assert config.comm.train_timeout_seconds == 90


def test_the_spec_sets_steps_seed_and_data() -> None:
    config = built(steps=77, seed=5)
    assert (config.training.steps, config.debug.seed, config.dataloader.dataset) == (77, 5, "python-stdlib")


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("training.seqlen", 64, "titan.overrides.training.seq_len"),
        ("trainng.seq_len", 64, "titan.overrides.training.seq_len"),
        ("seq_len", 64, "titan.overrides.training.seq_len"),
        ("lr_scheduler.warmup", 2, "titan.overrides.lr_scheduler.warmup_steps"),
        ("training.seq_len.more", 2, "titan.overrides.training.seq_len"),
        ("training.dataset", "c4", "titan.overrides.dataloader.dataset"),
        ("training.stps", 4, "titan.steps"),
        ("optimizer.learning_rate", 0.1, "titan.overrides.optimizer.lr"),
        ("profiling.enable_profiling", True, "titan.overrides.profiler.enable_profiling"),
        ("zzzz", 1, ""),
    ],
)
def test_unknown_key_names_the_nearest(key: str, value: object, nearest: str) -> None:
    [problem] = problems(overrides={key: value})
    assert problem.key == f"titan.overrides.{key}"
    assert problem.value == value
    assert key in problem.message
    assert repr(value) in problem.message
    assert problem.nearest == nearest


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("training.seq_len", "64", "expected int, not str"),
        ("training.seq_len", 64.0, "expected int, not float"),
        ("training.seq_len", True, "expected int, not bool"),
        ("training.max_norm", "1.0", "expected float or int"),
        ("lr_scheduler.min_lr_factor", False, "expected float, not bool"),
        ("lr_scheduler.decay_type", "exponential", "expected one of 'linear', 'sqrt', 'cosine'"),
        ("lr_scheduler.total_steps", "ten", "expected int or nothing"),
        ("compile.enable", 1, "expected bool, not int"),
        ("training", 3, "expected TrainingConfig, not int"),
    ],
)
def test_wrong_type_names_what_is_expected(key: str, value: object, expected: str) -> None:
    [problem] = problems(overrides={key: value})
    assert expected in problem.message


@pytest.mark.parametrize("key", ["training.steps", "debug.seed", "checkpoint.enable", "fault_tolerance.group_size"])
def test_what_the_run_file_sets_elsewhere_is_no_override(key: str) -> None:
    [problem] = problems(overrides={key: 1})
    assert "is not an override: set " in problem.message


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        overrides={"training.seqlen": 1, "compile.enable": "yes"}, data=DataSpec(source="folder", path="/none")
    )
    assert [problem.key for problem in found] == [
        "titan.overrides.training.seqlen",
        "titan.overrides.compile.enable",
        "titan.data.path",
    ]


def test_the_recipes_own_checks_run_after_the_overrides() -> None:
    [problem] = problems(overrides={"parallelism.pipeline_parallel_microbatch_size": 0})
    assert "greater than 0" in problem.message


@pytest.mark.parametrize(
    ("recipe", "nearest"),
    [
        ("llama3-debg", "llama3-debug"),
        ("no.such:thing", ""),
        ("json:dumps", ""),
        ("json:nothing", ""),
        ("--module llama3", ""),
        ("--module llama3 --config none", ""),
        ("--module llama3 --config x --steps 5", ""),
    ],
)
def test_bad_recipe(recipe: str, nearest: str) -> None:
    [problem] = problems(recipe=recipe)
    assert problem.key == "titan.recipe"
    assert problem.nearest == nearest


@pytest.mark.parametrize(
    ("recipe", "words", "nearest"),
    [
        ("mine:make", "no module 'mine' is installed or in env.directory: set env.directory to", ""),
        ("titan_actor.mine:make", "no module 'titan_actor.mine' is installed or", ""),
        ("broken_recipe:make", "cannot be loaded: ModuleNotFoundError: No module named 'of_another'", ""),
        ("titan_actor.recipes:llama3_debgu", "has no function 'llama3_debgu'", "titan_actor.recipes:llama3_debug"),
    ],
)
def test_a_recipe_that_is_not_there_says_what_to_do(
    recipe: str, words: str, nearest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_recipe.py").write_text("import of_another\n")
    monkeypatch.syspath_prepend(tmp_path)
    [problem] = problems(recipe=recipe)
    assert words in problem.message
    assert problem.nearest == nearest


def test_recipe_of_a_module() -> None:
    config = built(recipe="titan_actor.recipes:llama3_debug")
    assert len(config.model_spec.model.layers) == 6


def test_recipe_of_torchtitans_command_line() -> None:
    from torchtitan.models.llama3 import config_registry

    from titan_actor import recipes

    pair = "--module llama3 --config llama3_debugmodel"
    made, theirs = recipes.load(pair), config_registry.llama3_debugmodel()
    assert type(made) is type(theirs)
    assert made.model_spec.name == theirs.model_spec.name
    assert built(recipe=pair, data=DataSpec(source="python-stdlib")).dataloader.dataset != theirs.dataloader.dataset


def test_tokenizer_larger_than_the_model() -> None:
    from titan_actor import fit

    made = built()
    assert fit.tokenizer_problem(made) is None
    made.model_spec.model.vocab_size = 100
    problem = fit.tokenizer_problem(made)
    assert problem is not None
    assert "2048 tokens" in problem.message


def check(spec: TitanSpec) -> tuple[int, list[dict[str, Any]]]:
    record = RunRecord(spec=RunSpec(name="r", titan=spec), run_dir="/tmp/r", launched_unix_s=0.0)
    run = subprocess.run(
        [sys.executable, "-m", "titan_actor.check"], input=encode(record), capture_output=True, check=False
    )
    return run.returncode, json.loads(run.stdout)["problems"]


def test_check_program(tmp_path: Path) -> None:
    code, found = check(
        TitanSpec(overrides={"training.seqlen": 64}, data=DataSpec(source="folder", path=str(tmp_path)))
    )
    assert code == 1
    assert [(problem["key"], problem["value"], problem["nearest"]) for problem in found] == [
        ("titan.overrides.training.seqlen", 64, "titan.overrides.training.seq_len"),
        ("titan.data.path", str(tmp_path), ""),
    ]
    assert all(problem["message"] for problem in found)


def test_check_of_the_default_finds_nothing() -> None:
    from titan_actor import check

    assert check.problems(TitanSpec(), GroupsSpec()) == []


def test_check_refuses_a_folder_that_leaves_a_group_without_data(tmp_path: Path) -> None:
    from titan_actor import check

    (tmp_path / "a.txt").write_text("one document")
    spec = TitanSpec(recipe=RECIPE, data=DataSpec(source="folder", path=str(tmp_path)))
    (problem,) = check.problems(spec, GroupsSpec(count=2))
    assert problem["key"] == "titan.data.path"
    assert "group 1 gets no document" in str(problem["message"])
    assert check.problems(spec, GroupsSpec(count=1)) == []
    tensor_parallel = TitanSpec(**{**vars(spec), "overrides": {"parallelism.tensor_parallel_degree": 2}})
    assert check.problems(tensor_parallel, GroupsSpec(count=1, ranks_per_group=2)) == []
    assert check.problems(spec, GroupsSpec(count=1, ranks_per_group=2)) != []


def test_what_asks_for_a_new_gpu_is_refused_only_where_it_would_train() -> None:
    from titan_actor import check

    spec = TitanSpec(recipe="tests.real_trainers.titan.recipes:that_asks_for_a_hopper")
    (problem,) = check.looked_at(spec, GroupsSpec())[0]
    assert "Hopper" in str(problem["message"])
    assert check.looked_at(spec, GroupsSpec(), slurm=SlurmSpec())[0] == []
    assert check.looked_at(spec, GroupsSpec())[0] != [], "this machine is asked again"


def test_check_program_refuses_what_is_no_run() -> None:
    run = subprocess.run([sys.executable, "-m", "titan_actor.check"], input=b"{}", capture_output=True, check=False)
    assert run.returncode == 2
    assert b"is not a RunRecord" in run.stderr


@pytest.mark.parametrize(("shared", "expected"), [(False, "nccl"), (True, "gloo")])
def test_groups_that_share_a_gpu_sum_up_with_gloo(shared: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from titan_actor import between_groups

    monkeypatch.setattr(mends, "on_gpu", lambda: True)
    monkeypatch.delenv(SHARED, raising=False)
    if shared:
        monkeypatch.setenv(SHARED, "1")
    assert between_groups.backend() == expected


@pytest.mark.parametrize(
    ("overrides", "ranks", "key", "words"),
    [
        ({"parallelism.tensor_parallel_degree": 2}, 3, "groups.ranks_per_group", "3 is no multiple of 2"),
        (
            {"parallelism.data_parallel_shard_degree": 4, "parallelism.tensor_parallel_degree": 2},
            4,
            "titan.overrides.parallelism.data_parallel_shard_degree",
            "= 8 ranks, and groups.ranks_per_group = 4",
        ),
        ({"parallelism.tensor_parallel_degree": 0}, 1, "titan.overrides.parallelism.tensor_parallel_degree", "below 1"),
        (
            {"parallelism.expert_parallel_degree": 3},
            4,
            "titan.overrides.parallelism.expert_parallel_degree",
            "3 does not divide the 4 ranks",
        ),
        (
            {"parallelism.context_parallel_degree": 2, "training.seq_len": 66},
            2,
            "titan.overrides.training.seq_len",
            "66 is no multiple of 4",
        ),
        (
            {"parallelism.context_parallel_degree": 2, "training.seq_len": 128},
            2,
            "titan.overrides.training.seq_len",
            "128 is no multiple of 256: each of 2 ranks takes whole blocks of 128 tokens",
        ),
        (
            {"parallelism.pipeline_parallel_degree": 8},
            8,
            "titan.overrides.parallelism.pipeline_parallel_degree",
            "stages",
        ),
        (
            {"training.global_batch_size": 6},
            2,
            "titan.overrides.training.global_batch_size",
            "6 is no multiple of 8: local_batch_size 2 x 2 data-parallel ranks of a group x 2 groups",
        ),
    ],
)
def test_a_shape_that_does_not_fit_the_groups(overrides: dict[str, Any], ranks: int, key: str, words: str) -> None:
    from titan_actor import check

    spec = TitanSpec(recipe=RECIPE, overrides=overrides)
    (problem,) = check.problems(spec, GroupsSpec(count=2, ranks_per_group=ranks))
    assert problem["key"] == key
    assert words in str(problem["message"])


def test_what_trains_on_gpus_alone_is_refused_on_a_cpu() -> None:
    from titan_actor import fit

    registry = "torchtitan.models.deepseek_v3.config_registry"
    fields: dict[str, Any] = {
        "data": DataSpec(source="python-stdlib"),
        "overrides": {"parallelism.expert_parallel_degree": 2},
    }
    fit.refuse_on_cpu(built(recipe=f"{registry}:deepseek_v3_debugmodel", **fields))
    for backend, name in (("hybridep", "HybridEP"), ("minimal_async_ep", "MinimalAsyncEP")):
        made = built(recipe=f"{registry}:deepseek_v3_debugmodel_{backend}", **fields)
        with pytest.raises(fit.NotOnCpu, match=f"exchange tokens by {name}, which needs GPUs, .*: set it to 1"):
            fit.refuse_on_cpu(made)
    with pytest.raises(fit.NotOnCpu, match="enable_async_tensor_parallel"):
        fit.refuse_on_cpu(
            built(
                overrides={
                    "parallelism.tensor_parallel_degree": 2,
                    "compile.enable": True,
                    "compile.enable_async_tensor_parallel": True,
                }
            )
        )


def launched(**fields: Any) -> Any:
    """Returns the config of a rank of group 0."""
    from titan_actor import config

    launch = TrainerLaunch(
        run="r", group=0, generation=1, rank=0, world_size=1, groups=2, min_groups=1, node="n", node_address="127.0.0.1",
        master_port=1, lighthouse="127.0.0.1:1", run_dir="/runs/r", rank_dir="",
        titan=TitanSpec(**{"recipe": RECIPE, **fields}),
    )  # fmt: skip
    return config.for_launch(launch)


def test_a_global_batch_is_that_of_all_groups() -> None:
    assert launched(overrides={"training.global_batch_size": 8}).training.global_batch_size == 4


def test_a_dump_folder_is_where_titans_own_files_go() -> None:
    assert launched().dump_folder == "/runs/r/titan/group-0"
    assert launched(overrides={"dump_folder": "/out"}).dump_folder == "/out/r/group-0"
    (problem,) = problems(overrides={"dump_folder": "s3://bucket/out"})
    assert (problem.key, problem.value) == ("titan.overrides.dump_folder", "s3://bucket/out")


@pytest.mark.parametrize(
    ("folder", "becomes"),
    [("./outputs", "/runs/r/titan/group-0"), ("/out", "/out/r/group-0"), ("mine", "/runs/r/titan/group-0")],
)
def test_a_recipes_dump_folder_is_honoured_or_changed_with_a_line(
    folder: str, becomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from titan_actor import config, recipes

    monkeypatch.setitem(
        recipes.SHIPPED, RECIPE, lambda: dataclasses.replace(recipes.llama3_debug_small(), dump_folder=folder)
    )
    changed = [change.before for change in config.resolved(TitanSpec(recipe=RECIPE))[1] if change.key == "dump_folder"]
    assert changed == (["mine"] if folder == "mine" else [])
    assert launched().dump_folder == becomes


def test_a_dump_folder_that_cannot_be_made_is_refused_where_it_would_be_written(tmp_path: Path) -> None:
    from titan_actor import check

    (tmp_path / "file").touch()
    spec = TitanSpec(recipe=RECIPE, overrides={"dump_folder": f"{tmp_path}/file/out"})
    (problem,) = check.looked_at(spec, GroupsSpec(), here=True)[0]
    assert problem["key"] == "titan.overrides.dump_folder"
    assert f"{tmp_path}/file is no folder" in str(problem["message"])
    assert check.looked_at(spec, GroupsSpec())[0] == [], "the nodes may have it"
    spec = TitanSpec(recipe=RECIPE, overrides={"dump_folder": f"{tmp_path}/not/yet"})
    assert check.looked_at(spec, GroupsSpec(), here=True)[0] == []


MOE = "torchtitan.models.qwen3.config_registry:qwen3_debugmodel_moe_param_groups"


def test_the_learning_rate_of_all_parameter_groups_and_of_one() -> None:
    config = built(
        recipe=MOE,
        data=DataSpec(source="python-stdlib"),
        overrides={
            "optimizer.lr": 3e-4,
            "optimizer.betas": [0.8, 0.9],
            "optimizer.param_groups.1.optimizer_kwargs.lr": 5e-5,
            "optimizer.implementation": "foreach",
        },
    )
    groups = config.optimizer.param_groups
    assert [group.optimizer_kwargs["lr"] for group in groups] == [3e-4, 5e-5, 3e-4]
    assert [group.optimizer_kwargs["betas"] for group in groups] == [(0.8, 0.9)] * 3
    assert config.optimizer.implementation == "foreach"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("optimizer.lr", "fast", "expected float, not str"),
        ("optimizer.learning_rate", 1e-4, "no such field"),
        ("optimizer.param_groups.7.optimizer_kwargs.lr", 1e-4, "no such field"),
        ("optimizer.param_groups.0.optimizer_kwargs.lrr", 1e-4, "no such field"),
    ],
)
def test_an_optimizer_setting_that_does_not_exist(key: str, value: object, words: str) -> None:
    (problem,) = problems(recipe=MOE, data=DataSpec(source="python-stdlib"), overrides={key: value})
    assert words in problem.message
    if key.endswith(("7.optimizer_kwargs.lr", "lrr")):
        assert re.fullmatch(r"titan\.overrides\.optimizer\.param_groups\.[0-2]\.optimizer_kwargs\.lr", problem.nearest)


KWARGS = "optimizer.param_groups.0.optimizer_kwargs"


def test_a_table_of_an_optimizers_arguments_keeps_the_recipes_others() -> None:
    def kwargs(**overrides: Any) -> dict[str, Any]:
        made = built(recipe=MOE, data=DataSpec(source="python-stdlib"), overrides=overrides)
        return made.optimizer.param_groups[0].optimizer_kwargs

    table = {"lr": 1e-5, "betas": [0.8, 0.9], "amsgrad": True, "fused": False}
    assert kwargs(**{KWARGS: table}) == {**kwargs(), **table, "betas": (0.8, 0.9)}


@pytest.mark.parametrize(
    ("value", "key", "words", "nearest"),
    [
        ({"lrr": 1e-5}, f"{KWARGS}.lrr", "no such field", f"titan.overrides.{KWARGS}.lr"),
        ({"lr": "fast"}, f"{KWARGS}.lr", "expected float, not str", ""),
        ({"fused": "no"}, f"{KWARGS}.fused", "expected bool or nothing, not str", ""),
        (3, KWARGS, "not int", ""),
    ],
)
def test_a_table_of_an_optimizers_arguments_is_checked(value: object, key: str, words: str, nearest: str) -> None:
    (problem,) = problems(recipe=MOE, data=DataSpec(source="python-stdlib"), overrides={KWARGS: value})
    assert (problem.key, problem.nearest) == (f"titan.overrides.{key}", nearest)
    assert words in problem.message


@pytest.mark.parametrize("order", [1, -1])
def test_one_groups_setting_counts_wherever_it_stands(order: int) -> None:
    given = {"optimizer.lr": 3e-4, "optimizer.param_groups.1.optimizer_kwargs.lr": 5e-5}
    overrides = dict([*given.items()][::order])
    made = built(recipe=MOE, data=DataSpec(source="python-stdlib"), overrides=overrides)
    assert [group.optimizer_kwargs["lr"] for group in made.optimizer.param_groups] == [3e-4, 5e-5, 3e-4]


def overrides_of(text: str) -> dict[str, Any]:
    return tomllib.loads(f"[titan.overrides]\n{text}")["titan"]["overrides"]


def test_keys_without_quotes_and_tables_are_the_fields_below_them() -> None:
    text = """
        optimizer.lr = 3e-4
        optimizer.param_groups.1.optimizer_kwargs = { lr = 5e-5 }
        "metrics.log_freq" = 7
        [titan.overrides.training]
        seq_len = 32
        [titan.overrides.validator]
        """
    made = built(recipe=MOE, data=DataSpec(source="python-stdlib"), overrides=overrides_of(text))
    assert [group.optimizer_kwargs["lr"] for group in made.optimizer.param_groups] == [3e-4, 5e-5, 3e-4]
    assert (made.training.seq_len, made.metrics.log_freq) == (32, 7)


@pytest.mark.parametrize(
    ("text", "key", "words", "nearest"),
    [
        ("training.seqlen = 64", "training.seqlen", "no such field", "titan.overrides.training.seq_len"),
        ("trainng.seq_len = 64", "trainng.seq_len", "no such field", "titan.overrides.training.seq_len"),
        ("training.seq_len.more = 64", "training.seq_len", "expected int, not dict", ""),
        ("checkpoint.interval = 5", "checkpoint.interval", "set titan.checkpoint_interval_steps", ""),
        ("trainng = {}", "trainng", "no such field", ""),
        ('"training.seq_len" = 64\ntraining.seq_len = 32', "training.seq_len", "given twice, also as 64", ""),
    ],
)
def test_a_table_is_checked_field_by_field(text: str, key: str, words: str, nearest: str) -> None:
    (problem,) = problems(overrides=overrides_of(text))
    assert problem.key == f"titan.overrides.{key}"
    assert words in problem.message
    assert problem.nearest == nearest


def test_a_data_set_that_is_not_in_the_wheel_is_refused_before_a_start() -> None:
    (problem,) = problems(recipe=MOE)
    assert problem.key == "titan.data.source"
    assert "'c4_test' is tests/assets/c4_test of TorchTitan's repository" in problem.message


def test_data_of_the_network_is_refused_before_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    stock = "torchtitan.models.llama3.config_registry:llama3_8b"
    (problem,) = problems(recipe=stock)
    assert (problem.key, problem.value) == ("titan.data.source", "recipe")
    assert "allenai/c4" in problem.message
    (problem,) = problems(recipe=stock, data=DataSpec(source="python-stdlib"), overrides={"validator.enable": True})
    assert problem.key == "titan.overrides.validator.dataloader"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    built(recipe=stock)


def interleaved() -> Any:
    """A recipe with two sources of text."""
    from torchtitan.hf_datasets.text_datasets import HFDataSource, InterleavedHuggingFaceTextDataLoader

    from titan_actor import recipes

    config = recipes.llama3_debug_small()
    sources = [HFDataSource(dataset="c4_test", dataset_path=os.environ["MINE"]), HFDataSource(dataset="c4")]
    config.dataloader = InterleavedHuggingFaceTextDataLoader.Config(sources=sources)
    return config


def test_each_source_of_an_interleaved_loader_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("MINE", str(tmp_path / "gone"))
    recipe = f"{__name__}:interleaved"
    (problem,) = problems(recipe=recipe, data=DataSpec(source="recipe"))
    assert "'c4_test' is" in problem.message
    assert "which is not here: set its dataset_path to yours in a recipe of your own" in problem.message
    monkeypatch.setenv("MINE", str(tmp_path))
    (problem,) = problems(recipe=recipe, data=DataSpec(source="recipe"))
    assert "'c4' is allenai/c4 of the Hugging Face hub, and ranks use no network" in problem.message
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert len(built(recipe=recipe, data=DataSpec(source="recipe")).dataloader.sources) == 2


def test_conversations_that_no_rank_can_read_are_refused_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from titan_actor import fit

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    chats, kwargs = "torchtitan.models.llama3.config_registry:sft_debugmodel", "dataloader.load_dataset_kwargs"
    missing = "tests/assets/sft_test/data.json"
    (problem,) = problems(recipe=chats)
    assert (problem.key, problem.value) == (f"titan.overrides.{kwargs}.data_files", missing)
    assert f"the data file {missing} is not here: set it to yours" in problem.message
    (problem,) = problems(recipe="torchtitan.models.qwen3.config_registry:sft_qwen3_8b_math")
    assert problem.key == "titan.overrides.dataloader.dataset_path"
    assert "'openai/gsm8k' is of the Hugging Face hub, and ranks use no network" in problem.message
    mine = tmp_path / "chats.json"
    mine.write_text('[{"question": "1 + 1?", "answer": "2"}]')
    made = built(recipe=chats, overrides={f"{kwargs}.data_files": str(mine)})
    without_template = fit.tokenizer_problem(made)
    assert without_template is not None
    assert "put the model's chat_template.jinja beside" in without_template.message


def test_a_tokenizer_beside_the_recipe_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "of_a_user.py").write_text(
        "from titan_actor.recipes import llama3_debug_small\n"
        "def mine():\n    made = llama3_debug_small()\n    made.hf_assets_path = 'words'\n    return made\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert built(recipe="of_a_user:mine").hf_assets_path == str(tmp_path / "words")


def test_activation_checkpoints_are_named() -> None:
    assert built(overrides={"activation_checkpoint": "none"}).activation_checkpoint is None
    assert (
        type(built(overrides={"activation_checkpoint": "full"}).activation_checkpoint).__qualname__ == "FullAC.Config"
    )
    (problem,) = problems(overrides={"activation_checkpoint": "some"})
    assert "none, full, selective" in problem.message


def test_a_model_larger_than_the_memory_here_is_refused() -> None:
    """Llama 3 70B: 70.55 B parameters, in float32 with gradients and AdamW's two states."""
    from titan_actor import check, config, memory

    overrides = {"hf_assets_path": str(Path("titan_actor/assets/tokenizer").resolve())}
    spec = TitanSpec(
        recipe="torchtitan.models.llama3.config_registry:llama3_70b",
        overrides={**overrides, "validator.enable": False},
        data=DataSpec(source="python-stdlib"),
    )
    made = config.from_spec(spec)
    assert memory.least_bytes(made, 1) == pytest.approx(70.55e9 * 16, rel=0.001)
    assert memory.least_bytes(made, 8) == memory.least_bytes(made, 1) // 8
    made.parallelism.data_parallel_replicate_degree = 2
    assert memory.least_bytes(made, 8) == memory.least_bytes(made, 1) // 4
    groups = GroupsSpec(count=2, ranks_per_group=8)
    assert check.looked_at(spec, groups)[0] == []
    (found,) = check.looked_at(spec, groups, here=True)[0]
    assert found["key"] == "groups.ranks_per_group"
    assert "at least" in str(found["message"])


@pytest.mark.parametrize(
    ("slurm", "says"),
    [
        ({"gres": "gpu:8"}, "131.4 GiB"),
        ({"flags": ("--mem=0",)}, "131.4 GiB"),
        ({"gres": "gpu:h100:8"}, "94 GiB"),
        ({"gres": "gpu:nvidia_a100_40gb:8"}, "40 GiB"),
        ({"flags": ("--gpus-per-node=a100:8",)}, "80 GiB"),
        ({"flags": ("--mem=900G",)}, "for all 8 ranks"),
        ({"gres": "gpu:h200:8"}, ""),
        ({"flags": ("--mem=1100G",)}, ""),
    ],
)
def test_a_model_is_compared_with_what_the_run_file_asks_slurm_for(slurm: dict[str, Any], says: str) -> None:
    from titan_actor import config, memory

    made = config.from_spec(TitanSpec(recipe=RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "least_bytes", lambda config, ranks: int(70.55e9) * 16 // ranks)  # Llama 3 70B
        problem, note = memory.in_slurm(made, GroupsSpec(ranks_per_group=8), SlurmSpec(**slurm))
        over_two = GroupsSpec(ranks_per_group=8, nodes_per_group=2)
        half = memory.in_slurm(made, over_two, SlurmSpec(flags=("--mem=600G",)))
    assert half == ("", ""), "each of two nodes has four of the ranks"
    assert says in problem + note
    assert bool(problem) == (says not in ("131.4 GiB", ""))
    assert bool(note) == (says == "131.4 GiB")


def test_a_small_models_least_memory_is_given_in_mib() -> None:
    from titan_actor import config, memory

    made = config.from_spec(TitanSpec(recipe=RECIPE))
    assert re.search(r"at least [1-9]\d+ MiB", memory.in_slurm(made, GroupsSpec(), SlurmSpec())[1])


def test_the_default_steps_take_the_place_of_a_recipes_with_a_line() -> None:
    from titan_actor import config

    def told(**spec: Any) -> list[tuple[Any, Any]]:
        _, changes = config.resolved(TitanSpec(data=DataSpec(source="python-stdlib"), **spec))
        return [(change.before, change.after) for change in changes if change.key == "training.steps"]

    stock = "torchtitan.models.llama3.config_registry:llama3_debugmodel"
    ((own, steps),) = told(recipe=stock)
    assert (own, steps) == (10, TitanSpec().steps)
    assert told(recipe=stock, steps=own) == told(recipe=stock, steps=50) == told() == []


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is installed here")
@pytest.mark.parametrize("name", ["float8", "float8_emulate_lora", "nvfp4"])
def test_a_converter_whose_package_is_not_here_is_refused_by_the_check(name: str) -> None:
    (problem,) = problems(recipe=f"torchtitan.models.llama3.config_registry:llama3_debugmodel_{name}")
    assert problem.key == "titan.recipe"
    assert "needs torchao, which is not installed: pip install torchao, on" in problem.message


@pytest.mark.parametrize(
    ("module", "config", "needs", "package"),
    [
        ("flux", "flux_debugmodel", "transformers", "transformers"),
        ("kimi_k2_7", "kimi_k2_7_debugmodel", "torchvision", "torchvision"),
        ("muse_glimmer", "muse_glimmer_debugmodel_mm", "torchvision", "torchvision"),
        ("qwen3_5", "qwen3_5_debugmodel", "fla", "flash-linear-attention"),
        ("llama3", "llama3_debugmodel_float8", "torchao", "torchao"),
    ],
)
def test_a_package_that_a_config_needs_is_named_in_both_forms(
    module: str, config: str, needs: str, package: str
) -> None:
    if importlib.util.find_spec(needs) is not None:
        pytest.skip(f"{needs} is installed here")
    for recipe in (f"torchtitan.models.{module}.config_registry:{config}", f"--module {module} --config {config}"):
        (problem,) = problems(recipe=recipe)
        assert f"needs {needs}, which is not installed: pip install {package}, on this machine" in problem.message


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("llama3.config_registry:llama3_debugmodel_varlen_attn", "needs GPUs"),
        ("gpt_oss.config_registry:gpt_oss_debugmodel", "need GPUs"),
        ("gpt_oss.config_registry:gpt_oss_debugmodel_flex", "need GPUs"),
        ("deepseek_v3.config_registry:deepseek_v3_debugmodel_hybridep", "expert_parallel_degree > 1"),
    ],
)
def test_a_stock_config_that_cannot_train_here_is_refused_by_the_check(recipe: str, reason: str) -> None:
    from titan_actor import check

    spec = TitanSpec(
        recipe=f"torchtitan.models.{recipe}",
        data=DataSpec(source="python-stdlib"),
        overrides={"validator.enable": False},
    )
    (problem,) = check.looked_at(spec, GroupsSpec(), here=not mends.on_gpu())[0]
    assert problem["key"] == "titan.recipe"
    assert reason in str(problem["message"])


def test_semi_synchronous_training_is_refused_unless_it_is_switched_off() -> None:
    recipe = "torchtitan.experiments.torchft.llama3.config_registry:llama3_torchft_debugmodel"
    data = DataSpec(source="python-stdlib")
    (problem,) = problems(recipe=recipe, data=data, overrides={"validator.enable": False})
    assert problem.key == "titan.overrides.fault_tolerance.semi_sync_method"
    built(recipe=recipe, data=data, overrides={"validator.enable": False, "fault_tolerance.semi_sync_method": "none"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.local_batch_size", 0),
        ("training.seq_len", -4),
        ("lr_scheduler.warmup_steps", -1),
        ("lr_scheduler.total_steps", 80),
        ("metrics.log_freq", 0),
        ("dataloader.num_workers", -1),
    ],
)
def test_numbers_that_torchtitan_takes_unchecked(key: str, value: int) -> None:
    from titan_actor import check

    found = check.looked_at(TitanSpec(recipe=RECIPE, steps=150, overrides={key: value}), GroupsSpec())[0]
    assert [problem["key"] for problem in found][:1] == [f"titan.overrides.{key}"]


def test_a_backend_that_fails_at_two_ranks_is_kept_at_one() -> None:
    from titan_actor import config

    kept = {ranks: config.from_spec(TitanSpec(recipe=RECIPE), ranks).parallelism.spmd_backend for ranks in (1, 2)}
    assert kept == {1: "spmd_types", 2: "partial_dtensor"}


@pytest.mark.parametrize(
    "name",
    ["muse_glimmer.config_registry:muse_glimmer_debugmodel", "llama3.config_registry:llama3_debugmodel_dist_gemm"],
)
def test_a_config_that_takes_that_backend_alone_is_refused_at_two(name: str) -> None:
    from titan_actor import check

    off = {"validator.enable": False, "profiler.enable_profiling": False}
    spec = TitanSpec(recipe=f"torchtitan.models.{name}", overrides=off, data=DataSpec(source="python-stdlib"))
    assert check.looked_at(spec, GroupsSpec())[0] == []
    (found,) = check.looked_at(spec, GroupsSpec(ranks_per_group=2))[0]
    assert "spmd_types" in str(found["message"])


def test_names_that_torchtitan_takes_unchecked() -> None:
    from titan_actor import check

    (found,) = check.looked_at(TitanSpec(recipe=RECIPE, overrides={"compile.components": ["mdel"]}), GroupsSpec())[0]
    assert found["value"] == "mdel"
    (found,) = check.looked_at(TitanSpec(recipe=RECIPE, overrides={"compile.backend": "inductr"}), GroupsSpec())[0]
    assert (found["key"], found["nearest"]) == ("titan.overrides.compile.backend", "inductor")
    assert check.looked_at(TitanSpec(recipe=RECIPE, overrides={"compile.backend": "aot_eager"}), GroupsSpec())[0] == []
    weights = {"checkpoint.initial_load_path": "/nope"}
    assert check.looked_at(TitanSpec(recipe=RECIPE, overrides=weights), GroupsSpec())[0] == []
    (found,) = check.looked_at(TitanSpec(recipe=RECIPE, overrides=weights), GroupsSpec(), here=True)[0]
    assert found["value"] == "/nope"
    weights["checkpoint.initial_load_path"] = "/"
    (found,) = check.looked_at(TitanSpec(recipe=RECIPE, overrides=weights), GroupsSpec(), here=True)[0]
    assert "initial_load_in_hf" in str(found["message"])
    weights = {**weights, "checkpoint.initial_load_in_hf": True}
    assert check.looked_at(TitanSpec(recipe=RECIPE, overrides=weights), GroupsSpec(), here=True)[0] == []
    stock = "torchtitan.models.llama3.config_registry:llama3_debugmodel"
    (problem,) = problems(recipe=stock, overrides={"dataloader.dataset": "mine", "validator.enable": False})
    assert "c4_test" in problem.message
    (problem,) = problems(overrides={"model_spec.flavor": "8B"})
    assert "titan.recipe" in problem.message


def test_metrics_that_would_go_nowhere_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from titan_actor import check

    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = TitanSpec(recipe=RECIPE, overrides={"metrics.enable_wandb": True})
    (found,) = check.looked_at(spec, GroupsSpec())[0]
    assert "WANDB_API_KEY" in str(found["message"])
    assert check.looked_at(spec, GroupsSpec(), files=["WANDB_API_KEY"])[0] == []
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert check.looked_at(spec, GroupsSpec())[0] == []


def test_a_trainer_with_a_loop_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_loops.py").write_text(
        textwrap.dedent("""\
        import dataclasses
        from torchtitan.trainer import Trainer
        from titan_actor.recipes import llama3_debug

        class OwnStep(Trainer):
            @dataclasses.dataclass(kw_only=True, slots=True)
            class Config(Trainer.Config):
                pass

            def train_step(self, batches):
                return super().train_step(batches)

        class OwnLoop(OwnStep):
            @dataclasses.dataclass(kw_only=True, slots=True)
            class Config(Trainer.Config):
                pass

            def train(self):
                pass

        def own_step(kind=OwnStep):
            made = llama3_debug()
            return kind.Config(**{field.name: getattr(made, field.name) for field in dataclasses.fields(made)})

        def own_loop():
            return own_step(OwnLoop)
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = problems(recipe="own_loops:own_loop")
    assert problem.key == "titan.recipe"
    assert (
        "its trainer OwnLoop trains by OwnLoop.train(), and the supervised loop would take its place" in problem.message
    )
    assert type(built(recipe="own_loops:own_step"))._owner.__name__ == "OwnStep"


def test_a_model_without_a_vocabulary_has_no_too_many_tokens() -> None:
    from titan_actor.fit import too_many_tokens

    class Tokens:
        def get_vocab_size(self) -> int:
            return 5

    assert too_many_tokens(Tokens(), SimpleNamespace(vocab_size=4)) == "the tokenizer has 5 tokens, the model 4 rows"
    assert too_many_tokens(Tokens(), SimpleNamespace(vocab_size=5)) == ""
    assert too_many_tokens(object(), SimpleNamespace(hidden_size=4)) == "", "it makes images"


@pytest.mark.parametrize("table", ["DATASETS", "MM_DATASETS"])
def test_a_data_set_of_images_is_looked_for_and_a_folder_of_yours_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """As flux's loader, which needs packages that are not here, has them."""
    from titan_actor import config

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    paths = {"images": "somebody/images", "images-test": "tests/assets/images"}
    images = SimpleNamespace(**{table: {name: SimpleNamespace(path=path) for name, path in paths.items()}})
    monkeypatch.setitem(sys.modules, "torchtitan.images", images)
    loader: Any = type("Config", (), {"__module__": "torchtitan.images"})()

    def why(dataset: str, dataset_path: str | None = None) -> str:
        loader.dataset, loader.dataset_path = dataset, dataset_path
        return config._not_here(loader)

    assert "no data set 'image'; TorchTitan knows images, images-test" in why("image")
    assert "tests/assets/images of TorchTitan's repository" in why("images-test")
    assert "somebody/images of the Hugging Face hub, and ranks use no network" in why("images")
    assert why("images", str(tmp_path)) == why("images-test", str(tmp_path)) == ""
    assert "which is not here" in why("images", str(tmp_path / "gone"))


RECIPES = """\
import dataclasses
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.experiments.torchft.llama3.config_registry import llama3_torchft_debugmodel
from torchtitan.models.llama3.config_registry import llama3_debugmodel

class Careful(OptimizersContainer):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        care: float = 0.5

def with_an_optimizer():
    made = llama3_debugmodel()
    made.optimizer = Careful.Config(param_groups=made.optimizer.param_groups)
    return made

def with_settings():
    made = llama3_debugmodel()
    made.debug.seed = 42
    made.checkpoint.interval, made.checkpoint.keep_latest_k = 7, 9
    made.checkpoint.folder, made.checkpoint.async_mode = "mine", "async"
    return made

def with_torchft():
    made = llama3_torchft_debugmodel()
    made.fault_tolerance.semi_sync_method = None
    made.fault_tolerance.process_group_timeout_ms, made.fault_tolerance.min_replica_size = 1234, 2
    return made
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of a user's recipes."""
    (tmp_path / "recipes_of_a_user.py").write_text(RECIPES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recipes_of_a_user", raising=False)
    return "recipes_of_a_user"


TEXT: dict[str, Any] = {"data": DataSpec(source="python-stdlib")}


def test_an_optimizer_container_of_ones_own_is_refused(recipe: str) -> None:
    (problem,) = problems(recipe=f"{recipe}:with_an_optimizer", **TEXT)
    assert (problem.key, problem.value) == ("titan.recipe", f"{recipe}.Careful")
    assert "TorchFT's would take its place" in problem.message


def test_what_a_recipe_sets_and_the_run_does_not_go_by_has_a_line(recipe: str) -> None:
    from titan_actor import config

    _, changes = config.resolved(TitanSpec(recipe=f"{recipe}:with_settings", checkpoint_interval_steps=20, **TEXT), 2)
    found = {change.key: (change.before, change.after) for change in changes}
    assert {
        key: found[key] for key in found if key.startswith(("checkpoint.", "debug.", "parallelism.", "training.d"))
    } == {
        "checkpoint.interval": (7, 20),
        "checkpoint.keep_latest_k": (9, 2),
        "checkpoint.folder": ("mine", None),
        "checkpoint.async_mode": ("async", None),
        "checkpoint.last_save_model_only": (False, None),
        "debug.seed": (42, TitanSpec().seed),
        "parallelism.spmd_backend": ("spmd_types", "partial_dtensor"),
        "training.disable_cuda_graphs": (False, True),
    }
    _, changes = config.resolved(TitanSpec(recipe=f"{recipe}:with_torchft", **TEXT))
    found = {change.key: (change.before, change.after) for change in changes}
    assert found["fault_tolerance.process_group_timeout_ms"] == (1234, None)
    assert found["fault_tolerance.min_replica_size"] == (2, None)
    assert config.resolved(TitanSpec(recipe=RECIPE), 2)[1] == [], "a shipped recipe is ours"


def test_each_field_without_effect_is_shown_with_who_says_so(recipe: str) -> None:
    from titan_actor import config

    shown = {one.key: one for one in config.shown(TitanSpec(recipe=f"{recipe}:with_settings", **TEXT))}
    assert (shown["checkpoint.folder"].by, shown["checkpoint.folder"].value) == ("supervisor", None)
    assert shown["checkpoint.folder"].before == "mine"
    assert "titan.seed = 42 keeps the recipe's" in shown["debug.seed"].reason
    assert shown["comm.train_timeout_seconds"].by == "recipe"
    assert "at least a day" in shown["comm.train_timeout_seconds"].reason
    shown = {one.key: one for one in config.shown(TitanSpec(recipe=f"{recipe}:with_torchft", **TEXT))}
    gone = shown["fault_tolerance.min_replica_size"]
    assert (gone.value, gone.before, gone.reason) == (None, 2, "[groups] and [torchft]")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("debug.enable_structured_logging", True, "it has no effect: not written: steps.jsonl"),
        ("training.disable_cuda_graphs", False, "it has no effect: always true"),
        ("fault_tolerance.semi_sync_method", "", 'set it to "none"'),
    ],
)
def test_an_override_without_effect_or_place_is_refused(key: str, value: object, words: str) -> None:
    (problem,) = problems(
        recipe="torchtitan.models.llama3.config_registry:llama3_debugmodel", overrides={key: value}, **TEXT
    )
    assert (problem.key, problem.value) == (f"titan.overrides.{key}", value)
    assert words in problem.message


def test_an_override_that_asks_for_what_is_so_anyway_is_taken() -> None:
    stock = "torchtitan.models.llama3.config_registry:llama3_debugmodel"
    same = {"training.disable_cuda_graphs": True, "debug.enable_structured_logging": False}
    assert built(recipe=stock, overrides=same, **TEXT).training.disable_cuda_graphs


def test_a_module_of_overrides_that_is_not_there_is_refused() -> None:
    from titan_actor import check

    spec = TitanSpec(recipe=RECIPE, overrides={"override.imports": ["nosuch.module.fn"]})
    ((problem,), _, _) = check.looked_at(spec, GroupsSpec())
    assert problem["key"] == "titan.overrides.override.imports"
    assert "'nosuch.module' could not be imported" in str(problem["message"])


def test_types_are_checked_only_of_the_backend_that_has_them() -> None:
    from titan_actor import config

    spec = TitanSpec(
        recipe=RECIPE, overrides={"debug.spmd_typechecking": True, "parallelism.spmd_backend": "partial_dtensor"}
    )
    with pytest.raises(config.ConfigError, match="ranks of a group train with partial_dtensor: leave it false"):
        config.from_spec(spec, 2)


def test_a_model_that_needs_a_package_of_gpu_nodes_is_checked_without_its_memory() -> None:
    from titan_actor import check

    if importlib.util.find_spec("deep_ep") is not None:
        pytest.skip("deep_ep is installed here")
    tokenizer = str(Path("titan_actor/assets/tokenizer").resolve())
    overrides = {"hf_assets_path": tokenizer, "validator.enable": False}
    spec = TitanSpec(recipe="torchtitan.models.qwen3.config_registry:qwen3_moe_deepep", overrides=overrides, **TEXT)
    found, _, notes = check.looked_at(spec, GroupsSpec(ranks_per_group=8), slurm=SlurmSpec())
    assert found == []
    assert "its model cannot be built on this machine: DeepEP" in notes[0]
