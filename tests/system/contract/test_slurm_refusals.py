"""Slurm's answer at its limit of jobs: a request is neither taken nor refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available, slurm
from fault_injection.testbed.waiting import eventually
from supervisor.ports.engine import RequestDeferred, RequestRefused
from supervisor.ports.errors import Retryable
from supervisor.shell.engines.slurm.commands import Commands
from tests.system.contract.places import WITHIN_S, SlurmPlace, become, grants

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(available()), reason=available() or "Slurm")]


def test_a_slurm_that_is_full_is_asked_later_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch waits for a place by itself. It is ended at the deadline, and no job is left after any number of
    requests."""
    with slurm(tmp_path, 1, options={"MaxJobCount": "2"}) as lab:
        at = SlurmPlace(lab, tmp_path, monkeypatch)
        known = {lab.submit("sleep 600")}
        engine = at.engine()
        engine._commands = Commands(deadline_s=4.0)
        with pytest.raises(RequestRefused, match=r"Slurm refuses the job: .*temporarily unavailable"):
            engine.check(at.request("a1"))
        for _ in range(2):
            with pytest.raises(Retryable, match=r"not answered within 4 s \(.*temporarily unable to accept job"):
                engine.acquire(at.request("a1"))
        assert {job["job_id"] for job in lab.jobs()} == known


SWITCHES = """\
SwitchName=leaf1 Nodes=n1
SwitchName=leaf2 Nodes=n2
SwitchName=spine Switches=leaf[1-2]
"""


def test_jobs_wait_within_the_limits_and_nodes_name_their_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit per user needs slurmdbd, so sbatch prints here what it prints there."""
    with slurm(tmp_path, 2, topology=SWITCHES) as lab:
        at = SlurmPlace(lab, tmp_path, monkeypatch)
        engine = at.engine()
        said = "echo sbatch: error: QOSMaxSubmitJobPerUserLimit >&2; exit 1"
        with at.instead("sbatch", said) as calls, pytest.raises(RequestDeferred, match="QOSMaxSubmitJobPerUserLimit"):
            engine.acquire(at.request("a1"))
        assert len(calls.read_text().splitlines()) == 1
        for key in ("a1", "a2"):
            engine.acquire(at.request(key))
            node = become(engine, key, "granted").nodes[0]
            told = tmp_path / f"told-{at.jobs(key)[0]['job_id']}"
            words = eventually(lambda told=told: told.exists() and told.read_text(), WITHIN_S, "the agent was started")
            assert words.split()[-1] == f"--switch=spine.leaf{node[1:]}"
        limit = {"max_pending": 1}
        engine.acquire(at.request("a3", slurm=limit))
        with pytest.raises(RequestDeferred, match="1 jobs wait"):
            engine.acquire(at.request("a4", slurm=limit))
        assert {key: grant.state for key, grant in grants(engine).items()} == {
            "a1": "granted", "a2": "granted", "a3": "pending",
        }  # fmt: skip
