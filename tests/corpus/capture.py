"""A pytest plugin that writes each input of `decide` as a line of JSON, for `tests.corpus.record` alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.core import decide as core
from supervisor.core.model import Decision, Memory, Observed
from supervisor.core.spec import RunSpec
from supervisor.shell.control import decision_inputs

_decide = core.decide


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--capture-decisions", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    path = Path(config.getoption("--capture-decisions")) / f"{os.getpid()}.jsonl"

    def captured(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
        try:
            given = json.loads(decision_inputs.take(observed, spec, memory).body)
        except ValueError:
            return _decide(observed, spec, memory)
        with path.open("a") as file:
            file.write(json.dumps({"source": test, "given": given}) + "\n")
        return _decide(observed, spec, memory)

    core.decide = captured
