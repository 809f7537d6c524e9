"""The result of one machine check, as part of a record and as an output line of check programs. Standard library only,
for a quick start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one machine check."""

    name: str
    outcome: Literal["passed", "failed", "skipped", "unknown"]
    """unknown: it could not be done, or did not end in time, so it does not judge the machine."""
    evidence: str
    """A sentence."""
    value: float | None = None
    """The measurement, in `unit`."""
    unit: str = ""
    took_s: float = 0.0


def to_line(result: CheckResult) -> str:
    """Returns the result as a line, without a line end."""
    return json.dumps(asdict(result))


def from_line(line: str | bytes) -> CheckResult:
    """Parses a line. Raises ValueError if it is not a result."""
    try:
        return CheckResult(**json.loads(line))
    except TypeError as error:
        raise ValueError(f"not a result of a check: {error}") from error


def floored(name: str, rate: float, floor: float, unit: str, what: str) -> CheckResult:
    """Returns a result that passed if the rate is at or above the floor."""
    evidence = f"{rate:.4g} {unit} {what}" + (f": below {floor:g} {unit}" if rate < floor else "")
    outcome: Literal["passed", "failed"] = "passed" if rate >= floor else "failed"
    return CheckResult(name=name, outcome=outcome, evidence=evidence, value=round(rate, 4), unit=unit)
