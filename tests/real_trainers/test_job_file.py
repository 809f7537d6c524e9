"""A job file of 2025 with the five arguments of TorchTitan's tutorials, launched as a user types it and trained to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import world
from supervisor.shell.inspect import client
from titan_actor.lift import TOKENIZER

JOB = """
[job]
description = "Llama 3 debug training"
[model]
name = "llama3"
flavor = "debugmodel"
[optimizer]
name = "AdamW"
lr = 8e-4
[training]
batch_size = 2
seq_len = 128
mixed_precision_param = "float32"
[checkpoint]
enable_checkpoint = true
interval = 10
[metrics]
enable_tensorboard = true
"""
STEPS = 20


@pytest.mark.parametrize(
    ("folder", "exit_code"), [pytest.param("outputs", 0, marks=pytest.mark.long), ("train.toml/outputs", 2)]
)
def test_the_check_says_where_the_dump_folder_is_or_why_it_cannot_be_there(
    folder: str, exit_code: int, tmp_path: Path
) -> None:
    (tmp_path / "train.toml").write_text(JOB)
    given = ["--job.config_file", "train.toml", "--training.dataset_path", ".", "--validator.no-enable"]
    (tmp_path / "text.txt").write_text("A page.\n" * 200)
    (tmp_path / "more.txt").write_text("Another page.\n" * 200)
    checked = subprocess.run(
        [sys.executable, "-m", "supervisor.cli", "launch", "--check", *given, "--job.dump_folder", folder],
        capture_output=True, text=True, check=False, timeout=100, cwd=tmp_path,
    )  # fmt: skip
    assert checked.returncode == exit_code, checked.stderr
    assert f"job.dump_folder = '{tmp_path}/{folder}': titan.overrides.dump_folder; profiles, " in checked.stderr
    assert (f"{tmp_path}/train.toml is no folder that this user may write to" in checked.stderr) == bool(exit_code)


@pytest.mark.long
@pytest.mark.trainers
def test_the_five_arguments_train_a_local_folder_to_the_last_step(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(JOB)
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"Page {number} of a book that is trained on here.\n" * 200)
    with world(tmp_path / "home", toys=False) as w:
        w.supervisor()
        eventually(w.led, 30, "a supervisor leads")
        launched = subprocess.run(
            [
                sys.executable, "-m", "supervisor.cli", "launch", "--job.config_file", "train.toml",
                "--model.tokenizer_path", str(TOKENIZER), "--training.steps", str(STEPS),
                "--training.dataset_path", "text", "--job.dump_folder", "outputs", "groups.count=2",
                "--follow", "--etcd", w.etcd.endpoint, "--home", str(w.runs),
            ],
            capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path, env=w.environment,
        )  # fmt: skip
        assert launched.returncode == 0, launched.stdout + launched.stderr
        assert "job.dump_folder = " in launched.stdout + launched.stderr, "where its files go is said"
        record = client.choose_run(w.mirror(), "train")
        assert record.spec.titan.data.path == str(text)
        last = {
            one.group: [line["step"] for line in one.lines if line.get("committed")][-1]
            for one in w.history(record).steps
        }
        assert last == {0: STEPS, 1: STEPS}
        written = [*(tmp_path / "outputs" / "train").glob("group-*/tb/*/events.out.tfevents.*")]
        assert {file.relative_to(tmp_path).parts[2] for file in written} == {"group-0", "group-1"}
        w.check(record)
