"""The lane of compound faults, without playing any."""

from __future__ import annotations

import sys

import pytest

from benchmarks import chaos_compound


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_no_seeds_are_refused(seeds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos_compound", "--seeds", seeds])
    with pytest.raises(SystemExit) as ended:
        chaos_compound.main()
    assert ended.value.code == 2
    assert f"--seeds {seeds}: at least 1 is played" in capsys.readouterr().err
