"""The table of stages: each writes what its row says, and nothing else, in every decision of the corpus."""

from __future__ import annotations

from dataclasses import fields
from itertools import islice
from typing import Any

import pytest

from supervisor.core.decide import POOL_STAGES, STAGES, Found
from supervisor.core.model.memory import Memory
from supervisor.core.round.draft import Round
from supervisor.shell.control.decision_inputs import Input
from tests.corpus.file import INPUT, read
from tests.corpus.test_corpus import PARTS

AT_ROUNDS_END = {"clock", "decisions"}
"""Round.done writes these itself."""
IN_A_RESUME = {"resumes_done", "allocations_above"}
"""core/remediation/resume.py and core/remediation/restore.py write these alone."""
IN_THE_ROUND = ("groups", "allocations", "incidents", "cordons", "spent", "spent_by_kind", "restarts_done")
"""Fields of memory that a round keeps beside its draft."""

FIELDS = [f.name for f in fields(Memory)]


def now(r: Round) -> dict[str, Any]:
    """Memory as it would be if the round ended here."""
    found = {name: getattr(r.draft, name) for name in FIELDS} | {"incidents_seen": r.seen}
    return found | {name: dict(getattr(r, name)) for name in IN_THE_ROUND}


def written(given: Input) -> dict[str, set[str]]:
    """The fields that each stage changed."""
    r, passed, found = Round(given.observed, given.spec, given.memory), Found(), {}
    for stage in STAGES:
        before = now(r)
        stage.run(r, passed)
        after = now(r)
        found[stage.name] = {name for name in FIELDS if after[name] != before[name]}
    return found


NEVER_SEEN = {("place", "incidents_seen"), ("wind down", "relaunching")}
"""The first is seen only where a group without an incident waits to start on a node that is leaving. The corpus is older
than relaunches, and than the stage `scale`."""
NEVER_SEEN |= {
    (stage.name, name)
    for stage in STAGES
    for name in stage.writes
    if stage.name == "scale" or name in ("from_memory", "debugged")
}


def seen(part: slice) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {stage.name: set() for stage in STAGES}
    for line in islice(read(), part.start, part.stop, part.step):
        given = INPUT.validate_python(line.given)
        if given.memory.phase in ("new", "running", "stopping"):
            for name, changed in written(given).items():
                found[name] |= changed
    return found


def test_a_stage_writes_nothing_but_what_its_row_says() -> None:
    found = seen(slice(0, None, PARTS))
    assert not {s.name: sorted(found[s.name] - s.writes) for s in STAGES if found[s.name] - s.writes}


@pytest.mark.long
def test_a_stage_writes_what_its_row_says() -> None:
    found = seen(slice(0, None, 1))
    rows = {(s.name, name) for s in STAGES for name in s.writes}
    assert rows - NEVER_SEEN == {(stage, name) for stage, names in found.items() for name in names}


def test_every_field_of_memory_has_a_writer() -> None:
    written_by_stages = frozenset().union(*(stage.writes for stage in (*STAGES, *POOL_STAGES)))
    assert set(FIELDS) - written_by_stages == AT_ROUNDS_END | IN_A_RESUME


def test_names_are_one_each() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    assert len({stage.name for stage in POOL_STAGES}) == len(POOL_STAGES)
