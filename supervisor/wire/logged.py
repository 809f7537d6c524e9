"""The log of a supervisor, an agent or a gate: lines of text, or of JSON with what each is about."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

VARIABLE = "SUPERVISOR_LOG_FORMAT"
TEXT = "%(asctime)s %(levelname)s %(message)s"


class LogFormatError(ValueError):
    """SUPERVISOR_LOG_FORMAT names no format; the text says which there are."""


def about(**what: object) -> dict[str, dict[str, object]]:
    """For `extra`: run, group, rank, generation, incident, node, as far as they are known."""
    return {"about": {name: value for name, value in what.items() if value not in (None, "")}}


class JsonLine(logging.Formatter):
    """One object a line: t (Unix seconds), level, logger, text, and what it is about."""

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
    """What SUPERVISOR_LOG_FORMAT says: text, also by default, or json. Raises LogFormatError."""
    found = os.environ.get(VARIABLE) or "text"
    if found not in ("text", "json"):
        raise LogFormatError(f"{VARIABLE} = {found!r}: it is text or json")
    return found


def set_up() -> None:
    """Log to stderr as SUPERVISOR_LOG_FORMAT says. Raises LogFormatError."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if wanted() == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
