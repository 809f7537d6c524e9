"""The table of TorchTitan's fields is complete; profiles, metrics and weights, which it calls honoured, are."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.core.model.spec import TitanSpec
from tests.titan.groups import Groups
from titan_actor import fields, mends

NEEDED: tuple[type[Exception], ...] = (ImportError, ValueError)
"""Raised by configs for packages or devices that are not here."""


@pytest.fixture(scope="module", autouse=True)
def _upstream() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()


def registries() -> Iterator[Any]:
    """The modules of configs that can be imported here."""
    import torchtitan.models

    names = [
        f"torchtitan.models.{one.name}.config_registry" for one in pkgutil.iter_modules(torchtitan.models.__path__)
    ]
    for name in (*names, "torchtitan.experiments.torchft.llama3.config_registry"):
        try:
            yield importlib.import_module(name)
        except ImportError:
            continue


def configs() -> Iterator[Any]:
    for registry in registries():
        for name, made in vars(registry).items():
            if callable(made) and getattr(made, "__module__", "") == registry.__name__ and not name.startswith("_"):
                try:
                    config = made()
                except (TypeError, *NEEDED):
                    continue
                if dataclasses.is_dataclass(config):
                    yield config


def test_every_field_of_every_config_has_a_row_and_every_row_a_field() -> None:
    from titan_actor import config

    paths = {path for one in configs() for path, _ in config._leaves(one)}
    assert len(paths) > 120
    assert sorted(path for path in paths if fields.standing(path) is None) == []
    known = {(section, name) for section, rows in fields.TABLE.items() for name in rows if section}
    met = {(path.split(".")[0], (path.split(".") * 2)[1]) for path in paths}
    not_met = (
        known - met - {("activation_checkpoint", "budget"), ("activation_checkpoint", "visualize_memory_budget_pareto")}
    )
    assert not_met == set()


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
        assert runs == [f"run-run-group-{group}"] * (1 + group), "a restart goes on with its group's run"
    (export,) = (groups.run_dir / "export").iterdir()
    assert list(export.glob("*.safetensors"))

    weights = {"checkpoint.initial_load_path": str(export), "checkpoint.initial_load_in_hf": True}
    groups.run_dir = groups.top / "next"
    first = groups.start(0, generation=3, groups=1, steps=1, overrides=weights)
    assert first.exit_code() == 0, first.log()[-1500:]
    assert first.lines("initial_weights")
    (begun,), trained = first.lines("step"), survivor.lines("step")
    assert begun["loss"] < trained[0]["loss"] - 0.5, "it begins where the other run ended"
