"""The lane of compound faults, without playing any."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import chaos_compound


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_no_seeds_are_refused(seeds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos_compound", "--seeds", seeds])
    with pytest.raises(SystemExit) as ended:
        chaos_compound.main()
    assert ended.value.code == 2
    assert f"--seeds {seeds}: at least 1 is played" in capsys.readouterr().err


def test_a_lane_that_is_begun_anew_leaves_the_older_one_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "r.json"
    results.write_text('{"each": [{"seed": 1, "green": false}]}')
    monkeypatch.setattr(chaos_compound, "RESULTS", results)
    monkeypatch.setattr(chaos_compound, "play", lambda seed: {"seed": seed, "green": True})
    monkeypatch.setattr(sys, "argv", ["chaos_compound", "--seeds", "2", "--go-on"])
    assert chaos_compound.main() == 1, "what was red before is not forgotten"
    monkeypatch.setattr(sys, "argv", ["chaos_compound", "--seeds", "1"])
    assert chaos_compound.main() == 0
    assert [each["seed"] for each in json.loads(results.read_text())["each"]] == [1]
    before = json.loads(results.with_name("r.json.before").read_text())["each"]
    assert [(each["seed"], each["green"]) for each in before] == [(1, False), (2, True)]


@pytest.mark.parametrize("text", ["{", "[]", '{"each": [{}]}', '{"each": null}'])
def test_a_file_of_something_else_is_not_gone_on_with(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.json").write_text(text)
    monkeypatch.setattr(chaos_compound, "RESULTS", tmp_path / "r.json")
    monkeypatch.setattr(sys, "argv", ["chaos_compound", "--go-on"])
    with pytest.raises(SystemExit, match="holds no seeds that were played"):
        chaos_compound.main()
