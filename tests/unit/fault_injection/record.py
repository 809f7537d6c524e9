"""Records a real run as one file, for test_numbers_agree.py: `python -m tests.unit.fault_injection.record` (a minute).

Toys step in a real TorchFT quorum, under a real supervisor, agents and etcd. A trainer is killed, then a node, then an
allocation is taken away. It keeps etcd's records at the end of the run, the report, and the files from which
`supervisor ledger` counts.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fault_injection.checkers import consistency
from fault_injection.demo import report
from fault_injection.faults.acts import Injected
from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import World, toy_spec, world
from supervisor.core.model.memory import Memory
from supervisor.core.model.spec import TitanSpec
from supervisor.core.remediation.restore import ENDED
from supervisor.shell.history.account import from_start_to_end
from supervisor.shell.history.goodput import Span
from supervisor.wire import keys
from supervisor.wire.records import RunRecord

RECORD = Path(__file__).parent / "recorded_run" / "numbers.json.gz"

FILES = ("toy/journal.jsonl", ".supervisor/nodes/*/shim.jsonl", ".supervisor/nodes/*/ranks/toy.*/steps.jsonl")

VICTIM, STEPS = 1, 12
"""The group that is broken, and the number of steps between two faults."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, world(Path(folder)) as w:
        w.supervisor()
        titan = TitanSpec(steps=10**6, overrides={"toy.mode": "quorum", "toy.step_s": 0.4})
        record = w.launch(replace(toy_spec(), titan=titan))
        eventually(w.running(record, 1, 1), 120, "both groups train")
        made = [_broken(w, record, name, how) for name, how in FAULTS.items()]
        _steps(w, record)
        w.control(record, stop=True)
        phase = keys.memory("toy", "run")
        eventually(lambda: (w.mirror().record(phase, Memory) or Memory()).phase in ENDED, 60, "it is stopped")
        records = {key: item.value.decode() for key, item in w.mirror().items.items()}
        history = w.history(record)
        span = from_start_to_end(Path(record.run_dir), Span(0.0, time.time()))
        told = report.build(history, made, span, record.spec.groups.count, consistency.check(history))
        found = {str(p.relative_to(w.runs)): p.read_text() for pattern in FILES for p in sorted(w.runs.glob(pattern))}
    body = {"records": records, "files": found, "report": told, "faults": [asdict(fault) for fault in made]}
    RECORD.write_bytes(gzip.compress(json.dumps(body, sort_keys=True).encode(), mtime=0))


def _kill_trainer(w: World, record: RunRecord) -> str:
    return f"SIGKILL to pid {w.kill_trainer(record, VICTIM)}"


def _kill_node(w: World, record: RunRecord) -> str:
    node = w.status(record).groups[VICTIM].node
    w.kill_node(node)
    return f"SIGKILL to the shim of {node}"


def _take_allocation(w: World, record: RunRecord) -> str:
    key = w.allocation_of(record, VICTIM)
    w.take_away(key)
    return f"allocation {key} was taken away"


FAULTS: dict[str, Callable[[World, RunRecord], str]] = {
    "kill_trainer": _kill_trainer, "lose_node": _kill_node, "take_allocation": _take_allocation,
}  # fmt: skip


def _broken(w: World, record: RunRecord, name: str, how: Callable[[World, RunRecord], str]) -> Injected:
    _steps(w, record)
    count, node = len(w.incidents(record)), w.status(record).groups[VICTIM].node
    at = time.time()
    evidence = how(w, record)
    eventually(
        lambda: len(w.incidents(record)) > count and w.running(record)() and not w.status(record).incidents_open,
        120, f"{name} is mended",
    )  # fmt: skip
    return Injected(name=name, group=VICTIM, node=node, unix_s=at, evidence=evidence)


def _steps(w: World, record: RunRecord) -> None:
    goal = w.status(record).step + STEPS
    eventually(lambda: min(g.step for g in w.status(record).groups) >= goal, 120, f"step {goal}")


def unpack(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Lays the run's files out below a folder. Returns the run's own folder, and the other kept data."""
    told: dict[str, Any] = json.loads(gzip.decompress(RECORD.read_bytes()))
    for name, text in told["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "toy", told


if __name__ == "__main__":
    main()
