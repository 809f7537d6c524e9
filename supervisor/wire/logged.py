"""The log of a supervisor, an agent or a gate: lines of text, or of JSON with each line's subject."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from supervisor.core.report.visible import visible

VARIABLE = "SUPERVISOR_LOG_FORMAT"
LINES = 10_000
LAST_WORDS_S = 2.0
TEXT = "%(asctime)s %(levelname)s %(message)s"


class LogFormatError(ValueError):
    """SUPERVISOR_LOG_FORMAT names no format; the text lists the valid ones."""


def about(**what: object) -> dict[str, dict[str, object]]:
    """Returns a line's subject for `extra`: run, group, rank, generation, incident, node, as far as known."""
    return {"about": {name: value for name, value in what.items() if value not in (None, "")}}


class TextLine(logging.Formatter):
    """Formats text for a person's terminal; makes foreign text harmless."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class JsonLine(logging.Formatter):
    """Formats one JSON object a line: t (Unix seconds), level, logger, text, and its subject."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "t": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            body["trace"] = self.formatException(record.exc_info)
        return json.dumps(body)


def wanted() -> str:
    """Returns SUPERVISOR_LOG_FORMAT: text, also by default, or json. Raises LogFormatError."""
    found = os.environ.get(VARIABLE) or "text"
    if found not in ("text", "json"):
        raise LogFormatError(f"{VARIABLE} = {found!r}: it must be text or json")
    return found


class NeverWaits(logging.Handler):
    """A handler that never waits for a stalled disk. At most LINES lines wait for it; later ones are lost."""

    def __init__(self, stream: TextIO) -> None:
        from supervisor.wire.aside import Aside  # imports asyncio, which commands need not load to fail with a sentence

        super().__init__()
        self._stream = stream
        self._aside = Aside("log")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._aside.left < LINES:
                self._aside.ask(partial(self._write, f"{self.format(record)}\n"))
        except Exception:  # noqa: BLE001 - a slip in what is logged, by whatever library, ends nobody
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all is written, at most LAST_WORDS_S. Called at the end of the process too (logging.shutdown)."""
        if not self._aside.left:
            return  # no thread can be started at the end of the process
        with suppress(TimeoutError):
            self._aside.ask(lambda: None).result(LAST_WORDS_S)

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a full disk, or a reader that is gone
            self._stream.write(line)
            self._stream.flush()


def set_up() -> None:
    """Logs to stderr in SUPERVISOR_LOG_FORMAT. Raises LogFormatError."""
    formatter = JsonLine() if wanted() == "json" else TextLine(TEXT)
    handler = NeverWaits(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
