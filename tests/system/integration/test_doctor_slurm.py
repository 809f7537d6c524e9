"""The doctor with a real Slurm: well, away, and from inside a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fault_injection.testbed.own_slurm import available, slurm
from fault_injection.testbed.waiting import eventually
from supervisor.shell.inspect.doctor import slurm as doctor

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(available() != "", reason=available())]


def test_slurm_that_is_well_away_and_around_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with slurm(tmp_path, 2) as cell:
        monkeypatch.setenv("SLURM_CONF", str(cell.conf))
        cell.submit("sleep 1000", "--comment=supervisor/abc/key")
        eventually(lambda: [job["job_state"] for job in cell.jobs()] == ["RUNNING"], 15)
        told = {f.what: f.level for f in doctor.examine(tmp_path)}
        for words in ("is UP", "train (2 nodes, at most infinite)", "tiny (", "for system abc: 1 RUNNING"):
            assert any(words in what and level == "good" for what, level in told.items()), told
        assert "bad" not in told.values()

        out = tmp_path / "told.json"
        code = f"{sys.executable} -m supervisor.cli doctor --json --home {tmp_path} > {out}.new; mv {out}.new {out}"
        cell.submit(f"export PYTHONPATH={Path(__file__).parents[3]}; {code}", f"--chdir={tmp_path}", "--nodelist=n2")
        eventually(out.exists, 30, "the doctor in the job")
        inside = {f["what"]: f["level"] for f in json.loads(out.read_text())}
        assert any("inside job 2 on n2" in what for what in inside), inside
        assert [level for what, level in inside.items() if "Slurm kills 2 s after TERM" in what] == ["note"]

        cell.stop_controller()
        (away,) = [f for f in doctor.examine(tmp_path) if f.level == "bad"]
        assert "is DOWN" in away.what
