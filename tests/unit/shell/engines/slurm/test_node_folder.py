"""The default folder of a node in /tmp, where any user may have made something of its name before."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.model.spec import AllocationSpec, SlurmSpec
from supervisor.ports.engine import Request
from supervisor.shell.engines.slurm import script
from supervisor.wire.security import Security

UID = os.getuid()


def started(tmp: Path, node_folder: str = "") -> Path:
    """Runs a node's batch script with `tmp` for /tmp; returns the home that its agent is given."""
    agent = f"""sh -c 'echo "$@" >{tmp}/agent' agent"""
    slurm = SlurmSpec(agent_command=agent, node_folder=node_folder)
    request = Request(key="a1", run="run", slots=1, lease_s=5, spec=AllocationSpec(engine="slurm", slurm=slurm))
    text = script.script(request, ["e:1"], Security(), "sys").replace("/tmp/supervisor-", f"{tmp}/supervisor-")
    subprocess.run(["bash", "-c", text], env={**os.environ, "SLURMD_NODENAME": "n1"}, check=True)
    words = (tmp / "agent").read_text().split()
    return Path(words[words.index("--home") + 1])


def said(home: Path) -> str:
    return (home / "nodes" / "n1" / "shim.log").read_text()


def test_it_is_made_and_used_again(tmp_path: Path) -> None:
    usual = tmp_path / f"supervisor-{UID}" / "sys"
    assert started(tmp_path) == usual
    assert [path.stat().st_mode & 0o777 for path in (usual.parent, usual, usual / "nodes")] == [0o700] * 3
    usual.parent.chmod(0o755)  # as an older version left it
    assert started(tmp_path) == usual
    assert usual.parent.stat().st_mode & 0o777 == 0o700
    assert said(usual) == ""


@pytest.mark.parametrize("what", ["link", "open", "file"])
@pytest.mark.parametrize("name", ["", "sys"])
def test_what_another_user_may_have_made_gives_a_folder_of_its_own_and_a_sentence(
    tmp_path: Path, what: str, name: str
) -> None:
    trap = tmp_path / f"supervisor-{UID}" / name
    trap.parent.mkdir(exist_ok=True)
    if what == "link":
        (tmp_path / "mine").mkdir()
        trap.symlink_to(tmp_path / "mine")
    elif what == "file":
        trap.write_text("")
    else:
        trap.mkdir(parents=True)
        trap.chmod(0o777)
    first, second = started(tmp_path), started(tmp_path)
    assert first != second
    for home in (first, second):
        assert home.parent == tmp_path
        assert home.name.startswith(f"supervisor-{UID}.")
        assert home.stat().st_mode & 0o777 == 0o700
        assert f"{trap} is not this user's alone" in said(home)
        assert str(home) in said(home)
    assert not (tmp_path / "mine").exists() or not list((tmp_path / "mine").iterdir())


def test_a_folder_of_the_run_file_is_the_users_choice(tmp_path: Path) -> None:
    mine = tmp_path / "mine here"
    mine.mkdir(mode=0o755)
    assert str(started(tmp_path, str(mine))) == str(mine).partition(" ")[0], "the agent's words are split here alone"
    assert (mine / "nodes" / "n1" / "shim.log").exists()


def test_a_job_of_a_group_uses_one_of_its_own_too(tmp_path: Path) -> None:
    slurm = SlurmSpec()
    request = Request(key="a1", run="run", slots=1, lease_s=5, spec=AllocationSpec(engine="slurm", slurm=slurm))
    text = script.script(replace(request, together=("a1", "a2")), ["e:1"], Security(), "sys", "comment")
    text = text.replace("/tmp/supervisor-", f"{tmp_path}/supervisor-").partition("keys=(")[0]
    (tmp_path / f"supervisor-{UID}").symlink_to(tmp_path)
    subprocess.run(["bash", "-c", text], env={**os.environ, "SLURM_JOB_ID": "7"}, check=True)
    (log,) = tmp_path.glob(f"supervisor-{UID}.*/job-7.log")
    assert "is not this user's alone" in log.read_text()
