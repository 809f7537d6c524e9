"""Checks the bill of materials of `make wheel`: `python -m tests.nightly.bill_of_materials dist/NAME.cdx.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.helpers.locks import PYPROJECT, Lock, Pinned, asked, lock, problems


def contents(bill: dict[str, Any]) -> Lock:
    """The components, as a lock file has them."""
    found: Lock = {}
    for part in bill["components"]:
        sources = part.get("externalReferences", [])
        hashes = [*part.get("hashes", []), *(each for source in sources for each in source.get("hashes", []))]
        digests = frozenset(each["content"] for each in hashes if each["alg"] == "SHA-256")
        found.setdefault(canonicalize_name(part["name"]), []).append(Pinned(part["version"], digests))
    return found


def wrong(bill: dict[str, Any]) -> list[str]:
    """Lists what a bill lacks; empty: nothing."""
    parts, project = contents(bill), PYPROJECT["project"]
    subject = bill["metadata"]["component"]
    named = {name: set(pins) for name, pins in parts.items()}
    missing = [name for name, pins in lock("demo").items() if named.get(name) != set(pins)]
    return [
        *(
            []
            if (subject["name"], subject["version"]) == (project["name"], project["version"])
            else ["of another package"]
        ),
        *problems(parts, list(asked("demo"))),
        *(f"{name}: not as demo.lock has it" for name in missing),
    ]


def main() -> int:
    bill = json.loads(Path(sys.argv[1]).read_text())
    found = wrong(bill)
    print("\n".join(found) or f"{sys.argv[1]}: {len(bill['components'])} components, each with its version and hashes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
