"""What one check of a machine says, as a record's part and as a line of the programs that check. Standard library only:
they are to be quick."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check of a machine said."""

    name: str
    outcome: Literal["passed", "failed", "skipped", "unknown"]
    """unknown: it could not be done, or did not end in its time, which says nothing of the machine."""
    evidence: str
    """A sentence."""
    value: float | None = None
    """What was measured, in `unit`."""
    unit: str = ""
    took_s: float = 0.0


def to_line(result: CheckResult) -> str:
    """Without a line's end."""
    return json.dumps(asdict(result))


def from_line(line: str | bytes) -> CheckResult:
    """Raises ValueError for what is none."""
    try:
        return CheckResult(**json.loads(line))
    except TypeError as error:
        raise ValueError(f"no result of a check: {error}") from error


def floored(name: str, rate: float, floor: float, unit: str, what: str) -> CheckResult:
    """Passed at or above the floor."""
    evidence = f"{rate:.4g} {unit} {what}" + (f": below {floor:g} {unit}" if rate < floor else "")
    outcome: Literal["passed", "failed"] = "passed" if rate >= floor else "failed"
    return CheckResult(name=name, outcome=outcome, evidence=evidence, value=round(rate, 4), unit=unit)
