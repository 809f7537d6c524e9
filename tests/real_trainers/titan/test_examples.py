"""The shipped examples are right for TorchTitan too: `launch --check` takes them, and refuses one with a slip."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from titan_actor import mends

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.toml"))


def check(file: Path) -> subprocess.CompletedProcess[str]:
    """Checks without Slurm's commands: a cluster's acceptance is not the example's matter."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "launch", "--check", str(file)],
        env={**os.environ, "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_is_right(file: Path) -> None:
    result = check(file)
    assert result.returncode == 0, result.stderr
    if file.stem == "llama3-70b":
        assert "asks for 130 nodes of 8 ranks each: 8 x 16 for its groups, 2 as spares" in result.stdout
    assert ("Slurm was not asked if it accepts the run's jobs" in result.stderr) is ("slurm" in file.parts)


def test_an_override_of_the_8b_example_is_checked_against_its_config(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "examples" / "slurm" / "llama3-8b.toml").read_text()
    file = tmp_path / "run.toml"
    file.write_text(text.replace('"training.seq_len"', '"training.seq_length"'))
    result = check(file)
    assert result.returncode == 2
    assert "nearest: titan.overrides.training.seq_len" in result.stderr


def test_the_8b_recipe_is_torchtitans_own_model_and_optimizer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mends.apply()
        from torchtitan.models.llama3 import config_registry

        from titan_actor import recipes

        made, theirs = recipes.load("llama3-8b"), config_registry.llama3_8b()
    model = made.model_spec.model
    assert len(model.layers) == 32
    assert model.vocab_size == theirs.model_spec.model.vocab_size == 128256
    assert made.optimizer.param_groups == theirs.optimizer.param_groups
    assert (made.training, made.lr_scheduler) == (theirs.training, theirs.lr_scheduler)
