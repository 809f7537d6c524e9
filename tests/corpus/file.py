"""The file of the corpus: a line of JSON for each decision, with its input as the journal keeps it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from supervisor.core.decide import decide
from supervisor.shell.control.decision_inputs import Input
from tests.corpus.neutral import Answer, answer

PATH = Path(__file__).with_name("decisions.jsonl.xz")

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 2**26}]
INPUT = TypeAdapter(Input)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One decision."""

    source: str
    """The origin of the decision: a seed of the simulator, a journal, a unit test."""
    given: dict[str, Any]
    """The input, as supervisor.shell.control.decision_inputs.Input in JSON."""
    answered: Answer

    def today(self) -> Answer:
        """The answer of today's `decide`. Raises pydantic.ValidationError where its input cannot be read any more."""
        given = INPUT.validate_python(self.given)
        found = json.loads(json.dumps(answer(decide(given.observed, given.spec, given.memory), given.memory)))
        assert isinstance(found, dict)
        return found


def read(path: Path = PATH) -> Iterator[Recorded]:
    with lzma.open(path, "rt") as file:
        for line in file:
            body = json.loads(line)
            yield Recorded(body["source"], body["given"], body["answered"])


def write(lines: Iterable[Recorded], path: Path = PATH) -> None:
    with lzma.open(path, "wt", format=lzma.FORMAT_XZ, filters=_FILTERS) as file:
        for line in lines:
            body = {"source": line.source, "answered": line.answered, "given": line.given}
            file.write(json.dumps(body, separators=(",", ":")) + "\n")
