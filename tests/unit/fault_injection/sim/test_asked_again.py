"""Every decision of the real loop about an incident is the same when `decide` is asked again from the journal's inputs.
The world is the simulator's; journal, inputs and digests are real files and records."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_injection.sim import leaders, run
from fault_injection.sim.faults import Fault
from supervisor.shell.control.journal import Journal
from supervisor.shell.inspect import decision_replay

BREAKS = ("crash", "error", "freeze", "node_lost", "unplugged", "allocation_taken", "split")
"""Faults that have an incident."""


@pytest.mark.parametrize("kind", BREAKS)
def test_each_incident_of_a_simulated_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(leaders._Kept):
        """Keeps decisions in the world's memory, for the checks of the simulator, and on disk."""

        def __init__(self, world: object) -> None:
            super().__init__(world)  # type: ignore[arg-type]
            self._disk = Journal(tmp_path / "journal.jsonl")
            self.take = self._disk.take  # type: ignore[method-assign, assignment]
            self.keep = self._disk.keep  # type: ignore[method-assign]

        def _append(self, line: dict[str, object]) -> None:
            super()._append(line)
            self._disk._append(line)

    monkeypatch.setattr(leaders, "_Kept", Kept)
    assert run.run(1, 4, [Fault(20.0, kind, 1, 6.0)]).broken == ()
    found = decision_replay.incidents(tmp_path / "journal.jsonl")
    assert found
    for incident in found.values():
        told = decision_replay.why(incident, tmp_path / "journal.jsonl")
        assert told.decided
        assert told.same, "\n".join(decision_replay.page(told))
        assert {a.verdict for a in told.again} == {"same"}
