"""The table of TorchTitan's fields is complete; profiles, metrics and weights, which it calls honoured, are."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from supervisor.core.model.spec import TitanSpec
from supervisor.wire.address import free_port
from tests.real_trainers.titan.groups import Groups, assert_equal_digests, complete
from titan_actor import fields, mends
from titan_actor.overrides import fields_of

NEEDED: tuple[type[Exception], ...] = (ImportError, ValueError)
"""Raised by configs for packages or devices that are not here."""

COMPILES_WITHIN_S = 240.0
"""Deadline of a part of the training in which the compiler writes and builds C++."""


@pytest.fixture(scope="module", autouse=True)
def _upstream() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()


def registries(left: dict[str, str]) -> Iterator[Any]:
    """The modules of configs; `left` gets those that cannot be imported here."""
    import torchtitan.models

    names = [
        f"torchtitan.models.{one.name}.config_registry" for one in pkgutil.iter_modules(torchtitan.models.__path__)
    ]
    for name in (*names, "torchtitan.experiments.torchft.llama3.config_registry"):
        folder = importlib.import_module(name.rpartition(".")[0])
        if not (Path(folder.__file__ or "").parent / "config_registry.py").exists():
            continue  # what models share
        try:
            yield importlib.import_module(name)
        except ImportError as error:
            left[name] = str(error)


def configs(left: dict[str, str]) -> Iterator[Any]:
    """Yields TorchTitan's configs; `left` gets those that cannot be made here, with the error."""
    for registry in registries(left):
        for name, made in vars(registry).items():
            if callable(made) and getattr(made, "__module__", "") == registry.__name__ and not name.startswith("_"):
                try:
                    config = made()
                except TypeError:
                    continue  # it makes a part of a config
                except NEEDED as error:
                    left[f"{registry.__name__}:{name}"] = str(error)
                    continue
                if dataclasses.is_dataclass(config):
                    yield config


def declared(config: Any) -> Iterator[str]:
    """Yields the paths of all fields that the types of a config and of its parts declare: a part may be None here, or
    another kind of it elsewhere."""
    yield from of_type(type(config), "")
    for name in fields_of(config):
        part = getattr(config, name)
        if fields_of(part) and name != "model_spec":  # one row for all, and it refers to itself
            yield from of_type(type(part), f"{name}.")


def of_type(kind: type, prefix: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        path, parts = f"{prefix}{field.name}", list(configs_in(hints[field.name]))
        if not parts or path == "model_spec":
            yield path
        for part in parts if path != "model_spec" else ():
            yield from of_type(part, f"{path}.")


def configs_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for argument in get_args(hint):
        yield from configs_in(argument)


def without_a_row(paths: Iterable[str]) -> str:
    """Returns what to do about fields that the table does not have; empty: it has all."""
    missing = sorted({path for path in paths if fields.standing(path) is None})
    where = "in TABLE of titan_actor/fields.py, under its section, say of it: honoured, ours or refused, and why"
    return f"TorchTitan has fields without a row ({', '.join(missing)}): {where}" if missing else ""


def test_every_field_of_every_config_has_a_row_and_every_row_a_field() -> None:
    command = [sys.executable, "-m", "tests.real_trainers.titan.every_field"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    paths = set(found["met"])
    assert len(paths) > 120
    devices = ("SM100", "SM89", "Hopper", "MXFP8", "CUDA")
    unknown = {name: why for name, why in found["left"].items() if not any(one in why for one in devices)}
    assert not unknown, "these were not looked at, and for want of no device"
    assert not without_a_row(paths)
    unnumbered = {re.sub(r"\.\d+(?=\.|$)", "", path) for path in paths}
    met = {".".join(path.split(".")[:end]) for path in unnumbered for end in range(1, path.count(".") + 2)}
    known = {
        f"{section}.{name}".strip(".").removesuffix(".*") for section, rows in fields.TABLE.items() for name in rows
    }
    assert known - met == set(), "these rows are of no field: take them out of titan_actor/fields.py"


def test_a_field_that_is_new_is_named_with_the_place_for_its_row() -> None:
    from torchtitan.config import TrainingConfig
    from torchtitan.trainer import Trainer

    @dataclasses.dataclass(kw_only=True)
    class Training(TrainingConfig):
        sharpness: float = 0.5

    @dataclasses.dataclass(kw_only=True)
    class Config(Trainer.Config):
        training: Training = dataclasses.field(default_factory=Training)
        moonlight: bool = False

    Config.__annotations__["training"] = Training  # a class of this function's, which its name alone does not find
    found = without_a_row(declared(Config()))
    assert "fields without a row (moonlight, training.sharpness): in TABLE of titan_actor/fields.py" in found
    assert not without_a_row(declared(Trainer.Config()))
    assert fields.standing("model_spec.model.new.deep") is fields.TABLE[""]["model_spec.*"]
    assert fields.standing("optimizer.param_groups.3.pattern") is fields.TABLE["optimizer.param_groups"]["pattern"]
    assert fields.standing("validator.dataloader.new") is fields.standing("training.seq_len.more") is None


REFUSED = {
    "checkpoint.create_seed_checkpoint": True,
    "checkpoint.exclude_from_loading": ["optimizer"],
    "checkpoint.initial_load_model_only": False,
    "checkpoint.load_step": 5,
    "comm.mode": "fake_backend",
}


def test_a_refused_field_is_named_with_the_reason() -> None:
    from titan_actor import config

    rows = {f"{section}.{name}": row for section, names in fields.TABLE.items() for name, row in names.items()}
    assert REFUSED.keys() == {key for key, row in rows.items() if row.standing == "refused"}
    for key, value in REFUSED.items():
        with pytest.raises(config.ConfigError) as raised:
            config.from_spec(TitanSpec(recipe="llama3-debug-small", overrides={key: value}))
        (problem,) = raised.value.problems
        assert problem.key == f"titan.overrides.{key}"
        assert rows[key].note in problem.message


def test_who_set_a_field() -> None:
    from titan_actor import config

    settings = config.shown(
        TitanSpec(recipe="llama3-debug-small", steps=7, overrides={"optimizer.lr": 0.5, "training.seq_len": 32})
    )
    found = {setting.key: setting for setting in settings}
    lr = found["optimizer.param_groups.0.optimizer_kwargs.lr"]
    assert (lr.value, lr.by, lr.before) == (0.5, "run file", 8e-4)
    assert (found["training.steps"].value, found["training.steps"].by) == (7, "run file")
    assert (found["training.seq_len"].by, found["training.max_norm"].by) == ("run file", "recipe")
    graphs = found["training.disable_cuda_graphs"]
    assert (graphs.value, graphs.by) == (True, "supervisor")
    assert "all-reduce" in graphs.reason
    for key, part in {
        "dump_folder": "a folder of the group",
        "checkpoint.interval": "titan.checkpoint_interval",
    }.items():
        assert (found[key].by, part in found[key].reason) == ("supervisor", True), "whatever the recipe says"
    kept = found["checkpoint.interval"].value, found["checkpoint.keep_latest_k"].value
    assert kept == (TitanSpec().checkpoint_interval_steps, TitanSpec().checkpoints_kept)


@pytest.mark.long
@pytest.mark.trainers
def test_profiles_metrics_and_weights_are_where_the_config_wants_them(groups: Groups) -> None:
    """Two groups; one of them is started again in the middle, and goes on with its run in W&B."""
    keeps: dict[str, Any] = {
        "steps": 12,
        "overrides": {
            "profiler.enable_profiling": True,
            "profiler.profile_freq": 4,
            "profiler.profiler_warmup": 1,
            "profiler.profiler_active": 1,
            "metrics.enable_tensorboard": True,
            "metrics.enable_wandb": True,
            "checkpoint.last_save_in_hf": True,
        },
        "environment": {"WANDB_MODE": "offline"},
    }
    survivor, lost = groups.start(0, writer=True, **keeps), groups.start(1, **keeps)
    lost.reached(5, commits=2)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers", **keeps)
    assert [survivor.exit_code(), back.exit_code()] == [0, 0], survivor.log()[-1500:] + back.log()[-1500:]
    for group in (0, 1):
        folder = groups.run_dir / "titan" / f"group-{group}"
        assert list(folder.glob("tb/*/events.out.tfevents.*"))
        assert list(folder.glob("profiling/traces/**/*.json*"))
        runs = [file.stem for file in folder.glob("tb/*/wandb/**/run-*.wandb")]
        name = f"run-run-group-{group}-{(groups.run_dir / 'wandb-id').read_text()}"
        assert runs == [name] * (1 + group), "a restart goes on with its group's run"
    (export,) = (groups.run_dir / "export").iterdir()
    assert list(export.glob("*.safetensors"))

    weights = {"checkpoint.initial_load_path": str(export), "checkpoint.initial_load_in_hf": True}
    groups.run_dir = groups.top / "next"
    first = groups.start(0, generation=3, groups=1, steps=1, overrides=weights)
    assert first.exit_code() == 0, first.log()[-1500:]
    assert first.lines("initial_weights")
    (begun,), trained = first.lines("step"), survivor.lines("step")
    assert begun["loss"] < trained[0]["loss"] - 0.5, "it begins where the other run ended"


@pytest.mark.long
@pytest.mark.trainers
def test_a_compiled_model_and_loss_train_through_a_kill(groups: Groups) -> None:
    """Compiled before the group is let in, by the one that comes back too: no step of the others waits for that."""
    keeps: dict[str, Any] = {"steps": 100, "overrides": {"compile.enable": True, "compile.backend": "inductor"}}
    survivor, lost = groups.start(0, **keeps), groups.start(1, **keeps)
    lost.reached(5, commits=2, within_s=COMPILES_WITHIN_S)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers", **keeps)
    ended = [survivor.exit_code(COMPILES_WITHIN_S), back.exit_code(COMPILES_WITHIN_S)]
    assert ended == [0, 0], survivor.log()[-1500:] + back.log()[-1500:]
    for rank in (survivor, back):
        assert "Compiling each TransformerBlock with torch.compile" in rank.log()
        assert "Compiling the loss function with torch.compile" in rank.log()
        assert rank.lines("rehearsed")
        assert {line["seconds"]["compile"] for line in rank.lines("step")} == {0.0}
    assert_equal_digests(survivor, back)


TITANS_OWN = """
import os, sys
from supervisor.core.model.spec import TitanSpec
from titan_actor import config, mends
mends.apply()
from torchtitan.tools.logging import init_logger
init_logger()
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
made = config.from_spec(TitanSpec(recipe="llama3-debug-small", steps=20))
made.dump_folder = sys.argv[1]
made.checkpoint.enable, made.checkpoint.last_save_model_only = True, False
made.build().train()
"""
"""TorchTitan's own trainer with its own checkpoint at the end: model, optimizer, place in the data. A process of its own."""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A checkpoint in TorchTitan's own format (DCP), and the first loss of the training that wrote it."""
    folder = tmp_path_factory.mktemp("native")
    command = [sys.executable, "-c", TITANS_OWN, str(folder), str(free_port())]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert result.returncode == 0, result.stderr[-3000:]
    losses = re.findall(r"loss: +([\d.]+)", result.stderr + result.stdout)
    return folder / "checkpoint" / "step-20", float(losses[0])


@pytest.mark.long
@pytest.mark.trainers
def test_a_run_begins_with_native_weights_once(groups: Groups, native: tuple[Path, float]) -> None:
    """The group that was killed heals, and a run that lost all groups goes on from its own checkpoint."""
    weights, untrained = native
    keeps: dict[str, Any] = {
        "steps": 12,
        "checkpoint_interval_steps": 4,
        "overrides": {"checkpoint.initial_load_path": str(weights)},
    }
    survivor, lost = groups.start(0, writer=True, **keeps), groups.start(1, **keeps)
    lost.reached(5, commits=2)
    lost.kill()
    back = groups.start(1, generation=2, resume="peers", **keeps)
    assert [survivor.exit_code(), back.exit_code()] == [0, 0], survivor.log()[-1500:] + back.log()[-1500:]
    assert [bool(rank.lines("initial_weights")) for rank in (survivor, lost, back)] == [True, True, False]
    first = survivor.lines("step")[0]
    assert first["step"] == 1, "the other training's steps do not count"
    assert first["loss"] < untrained - 0.5
    assert_equal_digests(survivor, back)

    keeps["steps"] = 14
    (newest,) = complete(groups.run_dir)[-1:]
    again = groups.start(0, generation=3, groups=1, **keeps)
    assert again.exit_code() == 0, again.log()[-1500:]
    assert [line["step"] for line in again.lines("resumed")] == [newest.step]
    assert not again.lines("initial_weights")
    assert again.lines("step")[0]["step"] == newest.step + 1

    groups.run_dir = groups.top / "next"
    keeps["overrides"] = {"checkpoint.initial_load_path": newest.path}
    other = groups.start(0, generation=4, groups=1, steps=1, overrides=keeps["overrides"])
    assert other.exit_code() == 0, other.log()[-1500:]
    assert [line["path"] for line in other.lines("initial_weights")] == [newest.path]
    (begun,) = other.lines("step")
    assert begun["step"] == 1
    assert begun["loss"] < first["loss"], "it begins where the other run ended"
