"""How a process ended, from what it left behind."""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.wire.records import PEERS_GONE, ExitObserved, ProcessRecord

TAIL_BYTES = 2048
MESSAGE_BYTES = 2048


def decode(record: ProcessRecord, log_name: str = "output.log") -> ExitObserved:
    """Read the error file and the end of the log in the process's folder; a missing or broken one is an empty text."""
    folder = Path(record.folder)
    return ExitObserved(
        exit_code=record.exit_code,
        signal=record.signal,
        error_file=_error_message(folder / "error.json"),
        stderr_tail=_tail(folder / log_name),
    )


def how(record: ProcessRecord) -> str:
    """One word for metrics: clean, peers_gone, error or signal."""
    if record.signal is not None:
        return "signal"
    return {0: "clean", PEERS_GONE: "peers_gone"}.get(record.exit_code if record.exit_code is not None else -1, "error")


def _error_message(path: Path) -> str:
    """torchelastic writes {"message": {"message": ..., "extraInfo": ...}}, or a plain string as message."""
    try:
        message = json.loads(path.read_bytes())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    text = message.get("message", "") if isinstance(message, dict) else message
    return _cut(str(text).encode(errors="replace")[:MESSAGE_BYTES])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
    except OSError:
        return ""
    if size > TAIL_BYTES and b"\n" in tail[:-1]:
        tail = tail[tail.index(b"\n") + 1 :]  # whole lines only
    return _cut(tail)


def _cut(text: bytes) -> str:
    """As text; a character cut in two is dropped, any other byte that is none is shown as `?` (so never more bytes)."""
    return text.decode("utf-8", errors="replace").replace("\ufffd", "?").strip()
