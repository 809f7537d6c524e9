"""The doctor's conclusions from Slurm's commands, with stand-ins for them; a real Slurm is in
tests/system/integration/test_doctor_slurm.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.shim.main import AGENT_LAST_WORDS_S
from agents.shim.settings import Settings
from supervisor.shell.inspect.doctor import addresses, folders, slurm
from supervisor.shell.inspect.doctor.finding import Finding

WANTED = {"SLURM_CONF": "/x"}
JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}

ANSWERS = {
    "sinfo": 'case "$1" in --version) echo slurm-wlm 22.05.8;; --json) echo "{}";; *) echo "train|up|infinite|4";; esac',
    "squeue": """echo '{"jobs": []}'""",
    "scontrol": 'case "$1" in ping) echo "Slurmctld(primary) at h is UP";; *) echo "KillWait = 30 sec"; echo "MinJobAge = 300 sec";; esac',
}

Commands = Callable[..., None]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Puts commands on PATH, each a line of sh, and nothing else beside the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(**changed: str) -> None:
        for name, body in {**ANSWERS, **changed}.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    return put


def look(tmp_path: Path, **environment: str) -> list[Finding]:
    found = list(slurm.examine(tmp_path, environment))
    assert all(f.do for f in found if f.level != "good"), "a finding that is not good says what to do"
    return found


def only(found: list[Finding], level: str) -> Finding:
    (one,) = [f for f in found if f.level == level]
    return one


def test_a_machine_without_slurm_has_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look(tmp_path) == []


def test_a_slurm_that_is_wanted_and_has_no_command_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (one,) = look(tmp_path, **WANTED)
    assert (one.level, "`sinfo --version` cannot be run" in one.what) == ("bad", True)


def test_a_slurm_that_answers(commands: Commands, tmp_path: Path) -> None:
    commands()
    found = look(tmp_path, **WANTED)
    assert [f.what for f in found if f.level == "bad"] == []
    said = "\n".join(f.what for f in found)
    for words in ("22.05.8", "at h is UP", "train (4 nodes, at most infinite)", "has no job of this program"):
        assert words in said
    assert "KillWait" not in said


@pytest.mark.parametrize(("environment", "level"), [(WANTED, "bad"), ({}, "note")])
def test_a_controller_that_is_down_matters_where_slurm_is_meant(
    commands: Commands, tmp_path: Path, environment: dict[str, str], level: str
) -> None:
    commands(scontrol='echo "Slurmctld(primary) at h is DOWN"; echo "** RESTORE **"; exit 1')
    assert only(look(tmp_path, **environment), level).what == (
        "`scontrol ping` ended with 1: Slurmctld(primary) at h is DOWN"
    )


@pytest.mark.parametrize("name", ["scontrol", "squeue"])
def test_a_command_that_hangs_costs_one_deadline(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(slurm, "DEADLINE_S", 0.5)
    commands(**{name: "exec sleep 1000"})
    since = time.monotonic()
    assert "gave no answer within 0.5 s" in only(look(tmp_path, **WANTED), "bad").what
    assert time.monotonic() - since < 10 * 0.5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"squeue": "echo no plugin"}, "`squeue --json` gave no JSON"),
        ({"squeue": "echo 'squeue: error: Unauthorized' >&2; exit 1"}, "squeue: error: Unauthorized"),
        ({"sinfo": '[ "$1" = --version ] && echo slurm 21.08.8 || echo "p|up|1|1"'}, "21.08.8 is too old"),
        (
            {"sinfo": 'case "$1" in --json) echo "{}";; --v*) echo slurm 23.2;; *) echo "p|down|1|1";; esac'},
            "no partition",
        ),
    ],
)
def test_what_is_wrong_is_said(commands: Commands, tmp_path: Path, changed: dict[str, str], words: str) -> None:
    commands(**changed)
    assert any(words in f.what for f in look(tmp_path, **WANTED) if f.level == "bad")


def test_jobs_of_ours_are_counted_by_system() -> None:
    def job(comment: str | None, state: object, user: str = "me") -> dict[str, object]:
        return {"comment": comment, "job_state": state, "user_name": user}

    body = {
        "jobs": [
            job("supervisor/abc/k1", "RUNNING"), job("supervisor/abc/k2", ["PENDING"]), job("supervisor/abc/k3", "RUNNING"),
            job("supervisor/xyz/k1", "RUNNING"), job("supervisor/abc/k4", "RUNNING", "you"), job("mine", "RUNNING"), job(None, "RUNNING"),
        ]
    }  # fmt: skip
    assert [f.what for f in slurm.jobs(body, "me")] == [
        "Slurm: jobs of me for system abc: 1 PENDING, 2 RUNNING",
        "Slurm: jobs of me for system xyz: 1 RUNNING",
    ]
    for nothing in ({}, [], {"jobs": []}):
        assert [f.what for f in slurm.jobs(nothing, "me")] == ["Slurm: me has no job of this program"]


@pytest.mark.parametrize(("wait_s", "level"), [(30, "good"), (13, "note"), (2, "note")])
def test_a_node_has_to_end_within_killwait(commands: Commands, tmp_path: Path, wait_s: int, level: str) -> None:
    commands(scontrol=f'[ "$1" = ping ] && echo up || echo "KillWait                = {wait_s} sec"')
    (one,) = [f for f in look(tmp_path, **WANTED, **JOB) if "KillWait" in f.what]
    assert one.level == level
    if level == "note":
        assert "KillWait = 30" in one.do
        assert "allocation.slurm.agent_command" in one.do
        assert f'"$@" --grace-s {max(0, (wait_s - 4) / 2):g}' in one.do


def test_the_time_that_a_node_takes_to_end_is_the_shims() -> None:
    grace_s = Settings(node="n", home=Path("/"), etcd=()).grace_s
    assert 2 * grace_s + 2 * AGENT_LAST_WORDS_S == slurm.NODE_ENDS_WITHIN_S


def test_a_short_memory_of_slurm_is_a_note(commands: Commands, tmp_path: Path) -> None:
    commands(scontrol='[ "$1" = ping ] && echo up || echo "MinJobAge               = 10 sec"')
    assert "after 10 s (MinJobAge)" in next(f for f in look(tmp_path, **WANTED) if f.level == "note").what


# --- folders and addresses ---


def test_the_kind_of_a_folder_is_that_of_its_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    lines = [
        "/dev/a / ext4 rw",
        f"srv:/x {tmp_path}/shared nfs4 rw",
        f"t {tmp_path}/shared/own\\040one tmpfs rw",
        "bad",
    ]
    mounts.write_text("\n".join([*lines, f"f {tmp_path}/f fuse.sshfs rw"]))
    expected = {
        "": ("ext4", False),
        "shared/runs": ("nfs4", True),
        "shared/own one": ("tmpfs", False),
        "sharedx": ("ext4", False),
    }
    for name, kind in {**expected, "f": ("fuse.sshfs", True)}.items():
        assert folders.kind_of(tmp_path / name, str(mounts)) == kind
    assert folders.kind_of(tmp_path, str(tmp_path / "nothing")) == ("unknown", False)


def test_a_nodes_folder_is_its_own_and_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [f.level for f in slurm.node_folder(tmp_path)] == ["good"]
    assert [f.level for f in slurm.node_folder(tmp_path / "nothing")] == ["bad"]
    monkeypatch.setattr(slurm, "kind_of", lambda _: ("lustre", True))
    assert "must not be on a shared file system" in next(slurm.node_folder(tmp_path)).what


def test_the_automatic_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(addresses.examine("127.0.0.1:2379")) == []
    assert list(addresses.examine("nonsense")) == []
    (away,) = addresses.examine("nosuch.invalid:2379")
    assert (away.level, "no route from here to nosuch.invalid:2379" in away.what) == ("bad", True)
    assert addresses.listens("127.0.1.1").level == "note"
    assert addresses.listens("203.0.113.7").level == "bad"
    monkeypatch.setattr(addresses, "is_loopback", lambda _: False)
    (here,) = addresses.examine("127.0.0.1:2379")
    assert here.level == "good"
    assert here.what.startswith("--address auto is 127.0.0.1 on lo here, and a node can listen there")
