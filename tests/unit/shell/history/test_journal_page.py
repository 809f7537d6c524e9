"""docs/JOURNAL.md names what is written and what is checked: no more, and no less."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from supervisor.shell.history import schema
from supervisor.wire.version import RECORDS
from tests.unit.shell.inspect.test_decision_replay import crashed
from titan_actor.ledger import Ledger

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/JOURNAL.md").read_text()

EVENTS_OF_STEPS = [*sorted((ROOT / "titan_actor").glob("*.py")), ROOT / "everstep_trainer/__init__.py"]
EVENTS_OF_JOURNALS = [ROOT / "supervisor/shell/control" / name for name in ("loop.py", "journal.py")]


def rows(section: str) -> dict[str, list[str]]:
    """The rows of a section's table by their first cell, without its quotes."""
    text = re.split(r"^#+ ", PAGE.partition(f"### {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    assert lines, section
    return {first.strip("`"): rest for first, *rest in lines}


def always(section: str) -> set[str]:
    return {name for name, (meaning,) in rows(section).items() if meaning.startswith("always")}


def calls(paths: list[Path], *methods: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yields the method, name and keywords of each line that a call of these methods writes."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                not isinstance(node, ast.Call)
                or not isinstance(node.func, ast.Attribute)
                or node.func.attr not in methods
            ):
                continue
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.func.attr, first.value, {k.arg for k in node.keywords if k.arg is not None}


def test_it_is_of_this_version() -> None:
    assert f"This page describes version {RECORDS}." in PAGE


@pytest.mark.parametrize(("section", "shape"), [("intent", schema._Intent), ("outcome", schema._Outcome)])
def test_what_a_checked_line_must_have_is_marked(section: str, shape: type) -> None:
    must = {f.name for f in fields(shape) if f.default is MISSING and f.default_factory is MISSING}
    assert always(section) == must | {"entry"}
    assert {f.name for f in fields(shape)} <= rows(section).keys()
    line = dict.fromkeys(must, 1) | {"entry": section, "t": 1.0}
    assert schema.wrong_with_journal(line) == ""
    for name in must:
        assert name in schema.wrong_with_journal({k: v for k, v in line.items() if k != name})


def test_a_supervisors_lines_have_the_fields_of_the_page(tmp_path: Path) -> None:
    crashed(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    for section in ("intent", "outcome"):
        wrote = [line.keys() for line in lines if line["entry"] == section]
        assert set().union(*wrote) == rows(section).keys()
        assert all(keys >= always(section) for keys in wrote)
    intents = [line for line in lines if line["entry"] == "intent"]
    for part, about in (("actions", rows("intent")["actions"]), ("incidents", rows("intent")["incidents"])):
        named = set(re.findall(r"`(\w+)`", about[0]))
        found = {key for line in intents for each in line[part] for key in each}
        assert named - found <= {"nodes", "rung", "incident"}, "named, and never written"
        assert part == "incidents" or found <= named


def test_each_event_of_a_journal_is_named_with_its_fields() -> None:
    page = rows("event")
    wrote = list(calls(EVENTS_OF_JOURNALS, "event"))
    assert {name for _, name, _ in wrote} == page.keys()
    for _, name, keywords in wrote:
        assert keywords <= set(re.findall(r"`(\w+)`", page[name][0])), name


def test_each_event_of_a_rank_is_named_with_its_fields() -> None:
    page = rows("other events")
    wrote = [call for call in calls(EVENTS_OF_STEPS, "event", "note") if call[1] != "step"]
    assert {name for _, name, _ in wrote} == page.keys()
    for method, name, keywords in wrote:
        overlaps, about, _ = page[name]
        assert (overlaps == "yes") == (method == "note"), name
        assert keywords - {"start"} <= set(re.findall(r"`(\w+)`", about)), name


def test_a_ranks_lines_have_the_fields_of_the_page(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "steps.jsonl", 0.0, group=0, generation=1, rank=0)
    ledger.event("start")
    ledger.step({"data": 0.0})
    event, step = (json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines())
    every = set(re.findall(r"`(\w+)`", PAGE.partition("Every line has")[2].partition(". ")[0]))
    assert event.keys() == every
    assert step.keys() == every | {"seconds"}
    tree = ast.parse((ROOT / "titan_actor/replica.py").read_text())
    (record,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_record")
    (call,) = (n for n in ast.walk(record) if isinstance(n, ast.Call) and ast.unparse(n.func) == "self.ledger.step")
    (both,) = (n.value for n in ast.walk(record) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "both")
    assert isinstance(both, ast.Dict)
    named = {k.arg for k in call.keywords if k.arg} | {ast.literal_eval(key) for key in both.keys if key is not None}
    assert rows("step").keys() == named | {"seconds"}


def test_what_is_checked_of_a_committed_step_is_on_the_page() -> None:
    line = {"event": "step", "committed": True, "t": 1.0, "step": 1}
    assert schema.wrong_with(line) == ""
    for name in ("t", "step"):
        assert f"has no {name}" in schema.wrong_with({k: v for k, v in line.items() if k != name})
    assert "has no participants" in schema.wrong_with({**line, "quorum_id": 1})
    assert "Of a committed one, `t` and `step` must be there." in PAGE
    assert "must be there if `quorum_id` is" in rows("step")["participants"][0]
