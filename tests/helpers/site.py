"""The environment that a site's shell leaves: a proxy that does not answer, and the variables of an outer job."""

from __future__ import annotations

from pathlib import Path

_CASES = Path(__file__).parent.parent / "cases"


def _exported(file: str) -> dict[str, str]:
    words = (_CASES / file).read_text().split()
    return dict(word.split("=", 1) for word in words if "=" in word)


PROXY = _exported("proxy.env")
OUTER_JOB = _exported("outer_job.env")
