"""The support bundle holds no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from supervisor.core.model.spec import AllocationSpec, RunSpec, SlurmSpec, TitanSpec
from supervisor.shell.inspect import bundle
from supervisor.wire import keys
from supervisor.wire.records import RunRecord, encode
from tests.unit.shell.records import mirror_of, run_values

CANARY = "hunter2-canary"


@pytest.mark.parametrize(
    "key",
    ["token", "HF_TOKEN", "api_key", "apikey", "API-KEY", "password", "passwd", "client_secret", "aws_access_key_id",
     "private_key", "credentials", "wandb.token"],
)  # fmt: skip
def test_what_a_key_names_as_secret_is_left_out(key: str) -> None:
    told = bundle.redact({"a": [{key: CANARY, "kept": 1}], key: {"deep": [CANARY]}})
    assert CANARY not in json.dumps(told)
    assert told["a"][0]["kept"] == 1
    assert key in told, "that it was there is told"


def test_lines_of_shell_of_the_run_file_are_left_out_wholly() -> None:
    """Their variables may have any names."""
    how = SlurmSpec(
        partition="gpu",
        setup=f"module load python\nexport X={CANARY}",
        agent_command=f"env X={CANARY} supervisor-agent",
    )
    spec = RunSpec(name="run", allocation=AllocationSpec(engine="slurm", slurm=how))
    told = bundle.redact(json.loads(encode(RunRecord(spec=spec, run_dir="/r", launched_unix_s=1.0))))
    assert CANARY not in json.dumps(told)
    left = told["spec"]["allocation"]["slurm"]
    assert (left["setup"], left["agent_command"], left["partition"]) == ("(left out)", "(left out)", "gpu")
    assert bundle.redact({"setup": ""}) == {"setup": ""}, "that there is none is told"


def test_everything_else_stays() -> None:
    body = {"steps": 5, "name": "run", "nested": [{"loss": 1.5}, None, True, "text"]}
    assert bundle.redact(body) == body


def make(tmp_path: Path, **files: str) -> dict[str, str]:
    """The bundle's members for a run with a secret in its overrides and these files."""
    spec = RunSpec(name="run", titan=TitanSpec(overrides={"wandb.api_key": CANARY, "optimizer.lr": 0.25}))
    run_dir, system = tmp_path / "run", tmp_path / ".supervisor"
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    record = RunRecord(spec=spec, run_dir=str(run_dir), launched_unix_s=1.0)
    mirror = mirror_of({**run_values(), keys.spec("run"): encode(record), keys.health("n1"): b"{torn"})
    out = tmp_path / "bundle.tar.gz"
    count = bundle.write(out, mirror, record, system)
    assert out.stat().st_mode & 0o777 == 0o600
    members = {}
    with tarfile.open(out) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            members[member.name] = file.read().decode()
    assert len(members) == count
    return members


def test_the_state_is_there_without_the_secret(tmp_path: Path) -> None:
    members = make(tmp_path)
    state = json.loads(members["state.json"])
    overrides = state["keys"][keys.spec("run")]["value"]["spec"]["titan"]["overrides"]
    assert overrides == {"wandb.api_key": "(left out)", "optimizer.lr": 0.25}
    assert state["keys"][keys.health("n1")]["value"] == {"unreadable": 5}
    assert CANARY not in "".join(members.values())


@pytest.mark.parametrize(
    "line",
    [
        f"token={CANARY}",
        f"HF_TOKEN: {CANARY}",
        f'{{"api_key": "{CANARY}"}}',
        f"password = {CANARY}",
        f"'secret': '{CANARY}'",
    ],
)
def test_lines_of_logs_that_name_a_secret_are_left_out(tmp_path: Path, line: str) -> None:
    files = {
        ".supervisor/supervisor.log": f"before\n{line}\nafter\n",
        ".supervisor/nodes/n1/agent.log": f"{line}\n",
        ".supervisor/nodes/n1/ranks/run.0.1.0/stdout.log": f"{line}\n",
        "run/journal.jsonl": json.dumps({"entry": "event", "note": line}) + "\n",
    }
    members = make(tmp_path, **files)
    assert CANARY not in "".join(members.values())
    assert members["supervisor.log"] == "before\n(left out)\nafter\n"
    assert "nodes/n1/agent.log" in members
    assert "nodes/n1/ranks/run.0.1.0/stdout.log" in members


def test_json_files_are_redacted_by_key(tmp_path: Path) -> None:
    launch = json.dumps({"titan": {"overrides": {"hub.token": CANARY}}, "group": 1})
    members = make(tmp_path, **{".supervisor/nodes/n1/ranks/run.0.1.0/launch.json": launch})
    assert json.loads(members["nodes/n1/ranks/run.0.1.0/launch.json"])["group"] == 1
    assert CANARY not in "".join(members.values())


def test_another_runs_ranks_are_left_out(tmp_path: Path) -> None:
    members = make(tmp_path, **{".supervisor/nodes/n1/ranks/other.0.1.0/stdout.log": "x\n"})
    assert list(members) == ["state.json"]


def test_long_logs_are_cut_at_their_beginning_and_the_journal_is_whole(tmp_path: Path) -> None:
    long = "x" * (bundle.LOG_BYTES + 10)
    members = make(tmp_path, **{".supervisor/supervisor.log": f"{long}\nend\n", "run/journal.jsonl": long})
    assert len(members["supervisor.log"]) == bundle.LOG_BYTES
    assert members["supervisor.log"].endswith("\nend\n")
    assert len(members["journal.jsonl"]) == len(long)


def test_no_link_is_followed(tmp_path: Path) -> None:
    """A trainer may put one in its folder, and another user where the archive is written."""
    away, ranks = tmp_path / "away", tmp_path / ".supervisor" / "nodes" / "n1" / "ranks"
    away.mkdir()
    for name in ("stdout.log", "key", "journal.jsonl"):
        (away / name).write_text(CANARY)
    (ranks / "run.0.1.0").mkdir(parents=True)
    (ranks / "run.0.1.0" / "key.log").symlink_to(away / "key")
    (ranks / "run.0.1.1").symlink_to(away)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").symlink_to(away / "journal.jsonl")
    (tmp_path / "bundle.tar.gz").symlink_to(away / "key")
    assert list(make(tmp_path)) == ["state.json"]
    assert (away / "key").read_text() == CANARY
    assert not (tmp_path / "bundle.tar.gz").is_symlink()


def test_a_system_behind_a_link_is_gathered(tmp_path: Path) -> None:
    """A home may be a link to a larger disk."""
    (tmp_path / "large").mkdir()
    (tmp_path / ".supervisor").symlink_to(tmp_path / "large")
    members = make(tmp_path, **{".supervisor/nodes/n1/agent.log": "x\n"})
    assert "nodes/n1/agent.log" in members
