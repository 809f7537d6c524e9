"""The support bundle: state, journal and logs of a run in one archive, without secrets."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import rotated
from supervisor.wire.private_file import private_file
from supervisor.wire.records import RunRecord

SECRET = re.compile(r"(token|secret|passw|credential|api[_-]?key|private[_-]?key|access[_-]?key)", re.IGNORECASE)
"""Key names whose values are left out: a run file's overrides may hold a secret."""

WHOLE = ("setup", "agent_command", "hooks")
"""Keys of [allocation.slurm], and [hooks], whose whole values are left out: lines of shell may hold anything."""

LOG_BYTES = 256 * 1024
"""Bytes kept from the end of each log."""


def write(out: Path, mirror: Mirror, record: RunRecord, system: Path) -> int:
    """Writes the archive and returns its number of files. Raises OSError."""
    members = {"state.json": json.dumps(_state(mirror), indent=1).encode()}
    run_dir = Path(record.run_dir)
    for path in [run_dir / "journal.jsonl", run_dir / "report.json", system / "supervisor.log"]:
        if path.is_file() and _is_no_link(path, path.parent):
            members[path.name] = _tail(path, whole=path.suffix == ".jsonl")
    run = record.spec.name
    for pattern in ("nodes/*/*.log", "nodes/*/*.jsonl", f"nodes/*/ranks/{run}.*/*", f"nodes/*/hooks/{run}/*.log"):
        for path in system.glob(pattern):
            if (
                path.is_file()
                and _is_no_link(path, system)
                and (path.suffix in (".log", ".json", ".jsonl", ".txt") or rotated.number(path))
            ):
                members[str(path.relative_to(system))] = _tail(path)
    with private_file(out, "the archive") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in sorted(members.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return len(members)


def _is_no_link(path: Path, folder: Path) -> bool:
    """Returns true if no part of the path below the folder is a link: one could lead to any file of ours."""
    return path.resolve() == folder.resolve() / path.relative_to(folder)


def _state(mirror: Mirror) -> dict[str, Any]:
    state: dict[str, Any] = {"revision": mirror.revision, "keys": {}}
    for key, item in sorted(mirror.items.items()):
        try:
            value = redact(json.loads(item.value))
        except ValueError:
            value = {"unreadable": len(item.value)}
        state["keys"][key] = {"mod_revision": item.mod_revision, "value": value}
    return state


def redact(value: Any) -> Any:
    """Returns the value without what is under keys that name a secret, or that hold lines of shell."""
    if isinstance(value, dict):
        return {k: "(left out)" if SECRET.search(str(k)) or (k in WHOLE and v) else redact(v) for k, v in value.items()}
    if isinstance(value, list):
        return [redact(v) for v in value]
    return value


def _tail(path: Path, whole: bool = False) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if not whole:
            file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
        content = file.read() if whole else file.read(LOG_BYTES)
    if path.suffix == ".json":
        try:
            return json.dumps(redact(json.loads(content))).encode()
        except ValueError:
            return b""
    lines = content.decode(errors="replace").splitlines(keepends=True)
    return "".join("(left out)\n" if _names_a_secret(line) else line for line in lines).encode()


def _names_a_secret(line: str) -> bool:
    return re.search(SECRET.pattern + r"[\w-]{0,64}[\\'\"]{0,8}\s{0,64}[=:]\s{0,64}\S", line, re.IGNORECASE) is not None
