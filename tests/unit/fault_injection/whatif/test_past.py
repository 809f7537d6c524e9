"""The failures of a past run, played again under another policy."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fault_injection.checkers import history_file
from fault_injection.checkers.consistency import check
from fault_injection.checkers.recovery import ALL
from fault_injection.whatif import command, compare, past
from fault_injection.whatif.months import Months, Outcome
from fault_injection.whatif.rates import times
from supervisor.shell.history import files
from tests.unit.fault_injection.broken import a_broken_run

LAUNCHED, TRAINS, ENDS = 1000.0, 1020.0, 1620.0
"""Wall clock. The run clock of the lines is 1000 behind."""


def incident(number: int, kind: str, opened: float, group: int = 0, **more: Any) -> dict[str, Any]:
    """An incident opened at a wall-clock time, decided 1 s later, acted on 2 s later and over after 12 s."""
    at = opened - LAUNCHED
    return {
        "id": f"i{number}", "kind": kind, "group": group, "opened": at, "decided": at + 1, "acted": at + 2, "recovered": at + 12,
        "step_before": 10 * number, "rung": 1, "generation_before": 1, "generation_after": 2, **more,
    }  # fmt: skip


def journal_of(folder: Path, *incidents: dict[str, Any]) -> Path:
    """The journal of two groups and a spare; each incident is decided 1 s after it was opened."""

    def intent(t: float, number: int, actions: list[Any], found: list[Any], phase: str) -> dict[str, Any]:
        groups = {str(g): {"generation": 1, "node": f"n{g}", "phase": phase} for g in (0, 1)}
        body = {"decision": number, "actions": actions, "incidents": found, "groups": groups, "phase": phase}
        return {"t": t, "entry": "intent", "epoch": 1, **body}

    asked = [{"verb": "acquire", "key": f"acquire:a{n}"} for n in (1, 2, 3)]
    placed = [{"verb": "place", "key": f"start:{g}:1", "group": g, "generation": 1, "node": f"n{g}"} for g in (0, 1)]
    lines = [intent(LAUNCHED, 1, asked, [], "unplaced"), intent(LAUNCHED + 5, 2, placed, [], "starting")]
    lines.append(intent(TRAINS, 3, [{"verb": "note", "key": "x"}], [], "running"))
    for number, body in enumerate(incidents, 4):
        lines.append(intent(body["opened"] + LAUNCHED + 1, number, [], [body], "running"))
    lines.append(intent(ENDS, 99, [{"verb": "note", "key": "y"}], [], "running"))
    path = folder / "journal.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_journal_tells_its_failures_and_how_long_things_took(tmp_path: Path) -> None:
    path = journal_of(
        tmp_path,
        incident(1, "crash", 1120.0),
        incident(2, "node_lost", 1220.0, 1, took_s=5.0),
        incident(3, "requested", 1320.0),
    )
    found = past.read(path)
    assert (found.groups, found.spares, found.seconds) == (2, 1, ENDS - TRAINS)
    assert [(f.at_s, f.group, f.look) for f in found.failures] == [(100.0, 0, "process"), (200.0, 1, "node")]
    assert found.left_out == {"requested": 1}
    assert sum(found.lost.values()) == pytest.approx(24.0 + 5.0), "from its first sign on"
    assert (found.restart_s, found.queue_s, found.step_s) == pytest.approx((10.0, 5.0, 10.0))
    measured = past.as_measured(found, times())
    assert (measured.start_s, measured.heal_s, measured.queue_s, measured.step_s) == pytest.approx(
        (10.0, 0.0, 5.0, 10.0)
    )
    assert measured.seen_s == times().seen_s


def test_groups_of_several_nodes_are_played_as_such(tmp_path: Path) -> None:
    path = journal_of(tmp_path, incident(1, "crash", 1120.0))
    first, second, *rest = map(json.loads, path.read_text().splitlines())
    first["actions"] = [{"verb": "acquire", "key": f"acquire:a{n}"} for n in range(1, 6)]
    for g, action in enumerate(second["actions"]):
        action["nodes"] = [f"n{g}", f"m{g}"]
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, second, *rest)))
    found = past.read(path)
    assert (found.groups, found.nodes_per_group, found.spares) == (2, 2, 1)
    app = typer.Typer()
    command.register(app)
    shown = CliRunner().invoke(app, ["--journal", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "2 groups of 2 nodes, 1 spares" in " ".join(shown.output.split())


def test_a_history_of_a_broken_run_tells_the_same(tmp_path: Path) -> None:
    path = journal_of(tmp_path, incident(1, "crash", 1120.0))
    told = files.read("run", tmp_path, tmp_path / "none")
    history_file.save(told, tmp_path / "history.jsonl")
    from_history, from_journal = past.read(tmp_path / "history.jsonl"), past.read(path)
    assert from_history.failures == from_journal.failures
    assert from_history.spares == 1


def test_the_same_failures_cost_what_the_policy_makes_of_them(tmp_path: Path) -> None:
    """Three crashes of one group, within a budget of three and of one."""
    found = past.read(journal_of(tmp_path, *(incident(n, "crash", 1020.0 + 100 * n) for n in (1, 2, 3))))
    measured = past.as_measured(found, times())

    def under(restarts: int) -> Outcome:
        policy = tmp_path / f"{restarts}.toml"
        policy.write_text(
            f"[policy]\nbackoff_first_s = 0.0\nbackoff_max_s = 0.0\n[policy.budget]\nrestart = {restarts}\n"
        )
        return Months(compare.spec(2, 1, policy), found.failures, measured, 0).run(found.seconds)

    enough, few = under(3), under(1)
    assert (enough.failures, few.failures) == (3, 3)
    assert (enough.spares, enough.halts) == (0, 0)
    assert few.spares > 0  # the second crash is more than may be restarted: the group moves
    assert enough.badput["start"] == pytest.approx(30.0)
    assert enough == under(3)


def test_a_failure_of_a_group_that_is_down_costs_nothing_more(tmp_path: Path) -> None:
    found = past.read(journal_of(tmp_path, incident(1, "crash", 1120.0), incident(2, "crash", 1121.0)))
    out = Months(compare.spec(2, 1, None), found.failures, past.as_measured(found, times()), 0).run(found.seconds)
    assert (out.failures, out.while_down) == (1, 1)


def test_an_error_that_was_judged_to_be_the_same_stays_the_same(tmp_path: Path) -> None:
    bodies = [incident(1, "error", 1120.0, error="A"), incident(2, "same_error", 1220.0, error="A")]
    found = past.read(journal_of(tmp_path, *bodies, incident(3, "error", 1320.0, error="B")))
    assert [f.error for f in found.failures] == ["A", "A", ""]


def test_a_halt_that_a_person_ended_is_left_out_and_the_last_one_is_not(tmp_path: Path) -> None:
    halted = {"state": "halted", "recovered": None, "error": "A"}
    both = [incident(1, "error", 1120.0, **halted), incident(2, "same_error", 1120.1, **halted)]
    assert past.read(journal_of(tmp_path, *both)).left_out == {}
    found = past.read(journal_of(tmp_path, *both, incident(3, "crash", 1220.0, state="recovered")))
    assert found.left_out == {"error": 1, "same_error": 1}
    assert [f.kind for f in found.failures] == ["crash"]


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    command.register(app)
    path, policy = journal_of(tmp_path, incident(1, "crash", 1120.0)), tmp_path / "mine.toml"
    policy.write_text("[policy]\nbackoff_first_s = 30.0\nbackoff_max_s = 30.0\n")
    told = CliRunner().invoke(app, ["--journal", str(path), "--policy", str(policy)], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert "2 groups, 1 spares, 10.0 minutes since all groups trained; failures: 1 crash" in told.output
    assert "as shipped" in told.output
    assert "mine.toml" in told.output
    for unused in (
        ["--gpus", "999"],
        ["--days", "3"],
        ["--rates", "llama3"],
        ["--seeds", "7"],
        ["--out", "figures.json"],
    ):
        told = CliRunner().invoke(app, ["--journal", str(path), *unused], env={"COLUMNS": "200"})
        assert told.exit_code == 2
        assert f"Invalid value for {unused[0]}: it applies to random failures" in told.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["incidents"][0].pop("opened"), "line 4: incidents.0.opened: Field required"),
        (lambda d: d["incidents"][0].pop("id"), "line 4: incidents.0.id: Field required"),
        (lambda d: d["incidents"][0].update(opened="x"), "line 4: incidents.0.opened: Input should be a valid number"),
        (lambda d: d["incidents"][0].update(kind="foo"), "line 4: incidents.0.kind: Input should be 'crash'"),
        (lambda d: d.pop("t"), "line 4: t: Field required"),
        (lambda d: d.update(actions=[{"verb": "acquire"}]), "line 4: actions.0.key: Field required"),
        (lambda d: d.update(actions=[{"key": "x"}]), "line 4: actions.0.verb: Field required"),
        (lambda d: d.update(incidents="i1"), "line 4: incidents: Input should be a valid list"),
        (lambda d: d.update(groups={"0": {}}), "line 4: groups.0.phase: Field required"),
    ],
)
def test_what_a_line_lacks_is_named_with_it(tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str) -> None:
    path = journal_of(tmp_path, incident(1, "crash", 1120.0))
    rows = path.read_text().splitlines()
    intent = json.loads(rows[3])
    change(intent)
    path.write_text("\n".join([*rows[:3], json.dumps(intent), *rows[4:]]) + "\n")
    with pytest.raises(ValueError, match=f"^{path}: {says}"):
        past.read(path)


ELSE = (None, -1, 0, 1.5, "x", "5", [], {}, True, 10**6, [1], {"a": 1}, 1e308, 10**400, math.inf, math.nan)
"""Values that may stand in the place of a right one."""


def places(body: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value of a JSON body."""
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, value in inside:
        yield (*way, name)
        yield from places(value, (*way, name))


def changed(lines: Sequence[dict[str, Any]], dice: random.Random) -> str:
    """The lines, with one value of one line changed, or left out; each kind of line as often as the others."""
    kinds = [line.get("type") or line["entry"] for line in lines]
    kind = dice.choice(sorted(set(kinds)))
    at = dice.choice([at for at, each in enumerate(kinds) if each == kind])
    line = copy.deepcopy(lines[at])
    *way, name = dice.choice(list(places(line)))
    within = functools.reduce(lambda body, step: body[step], way, line)
    if dice.random() < 0.1:
        del within[name]
    else:
        within[name] = dice.choice(ELSE)
    return "".join(json.dumps(each) + "\n" for each in (*lines[:at], line, *lines[at + 1 :]))


def a_file(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of a file of a run with every kind of line; writes it."""
    if kind == "history":
        history_file.save(a_broken_run(folder), folder / "history.jsonl")
        lines = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
        for body in (body for line in lines for body in line.get("incidents", ())):
            body["opened"] = 10.6
        return lines
    path = journal_of(folder, incident(1, "crash", 1120.0, error="E"), incident(2, "node_lost", 1220.0, 1))
    lines = [json.loads(row) for row in path.read_text().splitlines()]
    for intent in list(lines):
        said = {"epoch": 1, "decision": intent["decision"]}
        lines.append({"t": intent["t"], "entry": "outcome", **said, "revision": 7, "refused": ""})
    lines.append({"t": LAUNCHED, "entry": "event", "event": "term", "epoch": 1, "elected": 3})
    lines.append({"t": TRAINS + 1, "entry": "event", "event": "store", "up": False, "silent_s": 1.0})
    return sorted(lines, key=lambda line: (line["t"], line["entry"] != "intent"))


@pytest.mark.parametrize("kind", ["journal", "history"])
def test_whatever_is_in_a_file_in_the_place_of_something_else_is_played_or_refused(tmp_path: Path, kind: str) -> None:
    """One value of it at a time."""
    lines, path, dice = a_file(tmp_path, kind), tmp_path / "changed.jsonl", random.Random(kind)
    app, played, refused = typer.Typer(), 0, 0
    command.register(app)
    for _ in range(100):
        path.write_text(changed(lines, dice))
        told = CliRunner().invoke(app, ["--journal", str(path)])
        assert told.exit_code in (0, 2), f"{path.read_text()}\n{told.output}"
        played, refused = played + (told.exit_code == 0), refused + (told.exit_code == 2)
    assert min(played, refused) > 5, "it is neither refused for everything nor for nothing"


def test_whatever_is_in_a_history_is_judged(tmp_path: Path) -> None:
    lines, path, dice = a_file(tmp_path, "history"), tmp_path / "changed.jsonl", random.Random("judged")
    for _ in range(200):
        path.write_text(changed(lines, dice))
        assert check(history_file.load(path), ALL)


def test_times_that_are_years_apart_are_refused(tmp_path: Path) -> None:
    path = journal_of(tmp_path, incident(1, "crash", 1120.0))
    path.write_text(path.read_text().replace(f'"t": {ENDS}', f'"t": {ENDS + 4000 * 86400}'))
    with pytest.raises(ValueError, match="its times are 4000 days apart, and at most 3650 are played"):
        past.read(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("[1]\n", "line 1 is JSON, but no object"),
        ("no journal\n", "line 1 is no JSON"),
        ("\nno journal\n", "line 2 is no JSON"),
        ("[" * 200_000, "line 1 is no JSON"),
    ],
)
def test_what_is_no_file_of_a_run_is_said_plainly(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(ValueError, match=says):
        past.read(tmp_path / "other")


def test_the_recorded_run_of_the_tests_is_named_for_what_it_lacks(tmp_path: Path) -> None:
    """It was shortened for the page."""
    path = tmp_path / "history.jsonl"
    path.write_bytes(gzip.decompress((Path(__file__).parents[1] / "recorded_run/history.jsonl.gz").read_bytes()))
    with pytest.raises(ValueError, match=r"line 3: actions\.0\.key: Field required"):
        past.read(path)


@pytest.mark.parametrize("text", ["", "no journal\n", '{"a": 1}\n', '{"type": "history"}\n'])
def test_a_file_that_is_neither(tmp_path: Path, text: str) -> None:
    app, path = typer.Typer(), tmp_path / "other"
    command.register(app)
    path.write_text(text)
    assert CliRunner().invoke(app, ["--journal", str(path)]).exit_code == 2
    assert CliRunner().invoke(app, ["--journal", str(tmp_path / "none")]).exit_code == 2
