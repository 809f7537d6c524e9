"""A new kind of failure, rehearsed: what it takes (CONTRIBUTING.md, "Add a kind of failure") and that nothing else has to know of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.extended import Change, patched, told_by

NAMED = Change(
    "supervisor.core.model.kinds",
    '    REQUESTED = "requested"\n',
    '    THERMAL = "thermal"\n    """Its machine is too hot to go on."""\n    REQUESTED = "requested"\n',
)

FOUND = Change(
    "supervisor.core.evidence.exit_status",
    "    if first.exit_code == PEERS_GONE_EXIT:\n",
    "    if first.exit_code == 79:\n"
    "        exited = Reason.of(Code.EXITED, rank=first.rank, exit_code=79, error=first.error)\n"
    "        return Failure(Kind.THERMAL, (exited,), first.error)\n"
    "    if first.exit_code == PEERS_GONE_EXIT:\n",
)

ROWS = "TRAITS: Mapping[Kind, Traits] = {\n"
WORDS = "WHY_FIRST: Mapping[str, str] = {\n"
KEYS = "class FirstRungSpec:\n"

FIXED = [
    NAMED,
    FOUND,
    Change(
        "supervisor.core.model.kinds",
        ROWS,
        ROWS + "    Kind.THERMAL: _row(Is.ENDED, Is.ON_THE_NODE, rung=Rung.REPLACE),\n",
    ),
    Change("supervisor.core.report.words", WORDS, WORDS + '    Kind.THERMAL: "its machine is too hot",\n'),
]
"""Its first rung is not for the policy to say."""

OF_THE_POLICY = [
    NAMED,
    FOUND,
    Change("supervisor.core.model.kinds", ROWS, ROWS + "    Kind.THERMAL: _row(Is.ENDED, Is.ON_THE_NODE),\n"),
    Change(
        "supervisor.core.model.spec",
        "    crash: Literal[",
        '    thermal: Literal["restart", "replace"] = setting("replace", "its machine is too hot")\n    crash: Literal[',
    ),
]
"""`policy.first_rung.thermal` says its first rung."""

DECIDED = """
from supervisor.core.report.explain import explain
from supervisor.core.report.words import said, say
from supervisor.shell.metrics.catalogue import KINDS
from supervisor.shell.runfile.parse import parse
from supervisor.wire.records import decode, encode
from supervisor.core.model.memory import Memory
from tests.unit.core.model import test_kinds
from tests.unit.core.world import World

w = World().bring_up()
w.fail(0, code=79, error="too hot")
w.round()
w.now += 5.0
w.round()
test_kinds.test_every_kind_has_a_row()
test_kinds.test_the_rung_is_fixed_or_the_policys()
told = {
    "kind": w.incident.kind,
    "rung": w.incident.rung.name,
    "why": say(w.incident.reason),
    "evidence": said(w.incident.evidence),
    "kept": decode(encode(w.memory), Memory) == w.memory,
    "observed": parse({"name": "run", "policy": {"observe": ["thermal"]}}).policy.observe,
    "counted": "thermal" in KINDS,
}
"""


@pytest.mark.parametrize("changes", [FIXED, OF_THE_POLICY], ids=["fixed", "of the policy"])
def test_a_new_kind_takes_three_files(tmp_path: Path, changes: list[Change]) -> None:
    touched = patched(tmp_path, changes)
    assert len(touched) <= 3
    told = told_by(tmp_path, DECIDED)
    assert told == {
        "kind": "thermal",
        "rung": "REPLACE",
        "why": "its machine is too hot",
        "evidence": ["rank 0 exited with code 79: too hot"],
        "kept": True,
        "observed": ["thermal"],
        "counted": True,
    }
