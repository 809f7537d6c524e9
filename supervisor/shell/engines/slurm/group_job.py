"""Names the nodes of a job that serves several allocations: its comment, and Slurm's lists of hosts.

The comment is FIRST_KEY+COUNT; keys are numbered one after the other. Once the steps run, the batch script adds the
job's hosts as Slurm lists them: the first key is that of the first host.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

MARK = "+"
"""A sign that only the comment of such a job has."""

_KEYS = re.compile(r"(.*?)(\d+)\+(\d+)$")
_ITEMS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
"""Items of a list of hosts: the commas inside brackets separate numbers."""
_PARTS = re.compile(r"\[([^\]]*)\]")


def named(keys: Sequence[str]) -> str:
    """Returns the name of these keys in a comment. Raises ValueError if they are not numbered one after the other."""
    name = f"{keys[0]}+{len(keys)}"
    if keys_of(name) != tuple(keys):
        raise ValueError(f"not numbered one after the other: {', '.join(keys)}")
    return name


def keys_of(name: str) -> tuple[str, ...]:
    """Returns the keys that a comment names; a name without a count is the one key itself."""
    found = _KEYS.match(name)
    if found is None:
        return (name,)
    stem, first, count = found.groups()
    return tuple(f"{stem}{number}" for number in range(int(first), int(first) + int(count)))


def hosts(listed: str) -> tuple[str, ...]:
    """Returns the hosts of one of Slurm's lists, such as `gpu[1-3,07],cpu1`, in its order."""
    found: list[str] = []
    for item in _ITEMS.findall(listed):
        # split by the bracket's group: texts and lists of numbers take turns
        parts = [_numbers(part) if i % 2 else [part] for i, part in enumerate(_PARTS.split(item))]
        found += ["".join(words) for words in itertools.product(*parts)]
    return tuple(found)


def _numbers(listed: str) -> list[str]:
    found = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return found
