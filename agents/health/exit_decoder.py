"""Reads how a process ended from the files that it left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from agents.agent.launch import OUTPUT
from agents.health import kernel_log
from supervisor.core import errors
from supervisor.wire import rotated
from supervisor.wire.records import PEERS_GONE, ExitObserved, ProcessRecord

MESSAGE_BYTES = 2048
TRACE_BYTES = 2048

LOG_BYTES = 65536
"""Bytes of the log's end to search. Python's handler of fatal signals writes all threads' stacks after the error."""

MODULES = b"Extension modules: "
"""The start of the last line of Python's fatal signal handler, which holds kilobytes of names."""

UNCAUGHT = 1
"""Exit code of a Python program that an exception ended."""


def decode(record: ProcessRecord, log_name: str = OUTPUT) -> ExitObserved:
    """Reads the error file and the end of the log in the process's folder. A missing or broken file counts as empty."""
    folder = Path(record.folder)
    # `supervisor explain` prints all of it in a terminal
    message, trace = map(errors.printable, _error_file(folder / "error.json"))
    log = errors.printable(_end_of(folder / log_name).decode(errors="replace"))
    raised = ""
    if not message and record.exit_code == UNCAUGHT:
        raised, trace = errors.raised(log)
    by_sigkill = record.signal == signal.SIGKILL and not record.told
    kernel = kernel_log.killed_for_memory(record.pid, record.start_ticks) if by_sigkill else ""
    return ExitObserved(
        exit_code=record.exit_code,
        signal=record.signal,
        error_file=_cut(message.encode(errors="replace")[:MESSAGE_BYTES]),
        raised=_cut(raised.encode(errors="replace")[:MESSAGE_BYTES]),
        trace=_newest_lines(trace),
        last_words=errors.last_words(log) if record.exit_code != 0 else "",
        told=record.told,
        oom=True if kernel else record.oom,
        ended_s=record.ended_s,
        kernel=kernel,
    )


def unread(record: ProcessRecord, disk: str) -> ExitObserved:
    """Returns what is known without the process's files. `disk`: why they cannot be read."""
    return ExitObserved(
        exit_code=record.exit_code,
        signal=record.signal,
        error_file="",
        told=record.told,
        oom=record.oom,
        ended_s=record.ended_s,
        disk=disk,
    )


def how(record: ProcessRecord) -> str:
    """Returns one word for metrics: clean, peers_gone, error or signal."""
    if record.signal is not None:
        return "signal"
    return {0: "clean", PEERS_GONE: "peers_gone"}.get(record.exit_code if record.exit_code is not None else -1, "error")


def _error_file(path: Path) -> tuple[str, str]:
    """Returns message and traceback. torchelastic writes {"message": {"message": ..., "extraInfo": {"py_callstack":
    ...}}}, or a plain string as message."""
    try:
        message: Any = json.loads(path.read_bytes())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""
    if not isinstance(message, dict):
        return str(message), ""
    about = message.get("extraInfo")
    trace = about.get("py_callstack", "") if isinstance(about, dict) else ""
    return str(message.get("message", "")), str(trace)


def _end_of(path: Path) -> bytes:
    """Returns at most the last LOG_BYTES, without the list of extension modules."""
    try:
        end = _last_bytes(path, LOG_BYTES)
        if len(end) < LOG_BYTES and (older := rotated.parts(path)):
            end = _last_bytes(older[-1], LOG_BYTES - len(end)) + end
    except OSError:
        return b""
    return b"".join(line for line in end.splitlines(keepends=True) if not line.startswith(MODULES))


def _last_bytes(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - most))
        return file.read(most)


def _newest_lines(trace: str) -> str:
    """Returns the end of a traceback: whole lines, at most TRACE_BYTES."""
    text = trace.strip("\n").encode(errors="replace")
    if len(text) <= TRACE_BYTES:
        return text.decode(errors="replace")
    tail = text[-TRACE_BYTES:]
    return tail[tail.find(b"\n") + 1 :].decode(errors="replace")


def _cut(text: bytes) -> str:
    """Returns the bytes as text that is no longer than they are: each broken or cut character becomes one `?`."""
    return text.decode("utf-8", errors="replace").replace("\ufffd", "?").strip()
