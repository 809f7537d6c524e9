"""A real demo as one file: `python -m tests.unit.fault_injection.record` (two minutes). For test_numbers_agree.py.

Keeps what etcd held when the run was over, the report, and the files from which `supervisor ledger` counts.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from supervisor.core.model import Memory
from supervisor.core.restored import ENDED
from supervisor.ports.errors import PortError
from supervisor.shell import up
from supervisor.shell.store import connect
from supervisor.wire import keys
from supervisor.wire.records import decode

RECORD = Path(__file__).parent / "recorded_demo" / "demo.json.gz"

FILES = (
    "journal.jsonl", "report.json", ".supervisor/nodes/*/shim.jsonl", ".supervisor/nodes/*/ranks/demo.*/steps.jsonl",
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        command = [sys.executable, "-m", "supervisor.cli", "demo", "--home", str(home), "--easy"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            records = _watched(home / "demo", process)
        found = {
            str(path.relative_to(home / "demo")): path.read_text()
            for pattern in FILES
            for path in sorted((home / "demo").glob(pattern))
        }
    body = json.dumps({"records": records, "files": found}, sort_keys=True).encode()
    RECORD.write_bytes(gzip.compress(body, mtime=0))


def _watched(home: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    """What etcd held last."""
    found: dict[str, str] = {}
    while process.poll() is None:
        threading.Event().wait(0.1)
        with contextlib.suppress(PortError, OSError, ValueError):
            store = connect([up.endpoints_of(home)])
            try:
                while process.poll() is None:
                    items = store.list(keys.PREFIX).items
                    found = {item.key: item.value.decode() for item in items}
                    over = any(
                        decode(i.value, Memory).phase in ENDED for i in items if i.key == keys.memory("demo", "run")
                    )
                    if over:
                        return found
                    threading.Event().wait(0.25)
            finally:
                store.close()
    return found


def unpack(folder: Path) -> tuple[Path, dict[str, str]]:
    """Lay the demo's files out below a folder. Returns the run's own folder, and what etcd held."""
    told: dict[str, Any] = json.loads(gzip.decompress(RECORD.read_bytes()))
    for name, text in told["files"].items():
        path = folder / "demo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "demo", told["records"]


if __name__ == "__main__":
    main()
