"""Slurm's answer at its limit of jobs: a request is neither taken nor refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available, slurm
from supervisor.ports.engine import RequestRefused
from supervisor.ports.errors import Retryable
from supervisor.shell.engines.slurm.commands import Commands
from tests.contract.places import SlurmPlace

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
