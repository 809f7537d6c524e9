"""The audit of a token store's samples, over kills, failed commits, heals, resumes and missing records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.shell.history.files import History, Steps
from supervisor.shell.history.samples import Audit, audit
from tests.unit.fault_injection.files import note, step, story
from titan_actor.tokens import command

Line = dict[str, Any]


def batch(t: float, quorum: int, number: int, position: int, **about: Any) -> Line:
    """Two samples."""
    body = {"position": position, "quorum_id": quorum, "step": number, **about}
    return note("batch", t, samples=["a", "b"], **body)


def made(t: float, quorum: int, number: int, participants: int = 2) -> Line:
    return step(t, t + 1, number, quorum_id=quorum, participants=participants)


def failed(t: float, quorum: int, number: int) -> Line:
    return step(t, t + 1, number - 1, committed=False, quorum_id=quorum, participants=2)


def of(*groups: list[Line]) -> History:
    steps = [Steps(group, 1, 0, f"n{group}", tuple(lines)) for group, lines in enumerate(groups)]
    return History("run", steps=steps)


def found(*groups: list[Line]) -> Audit:
    counts = audit(of(*groups))
    assert counts is not None
    return counts


def counted(counts: Audit) -> tuple[int, int, int]:
    return counts.once, counts.twice, counts.never


def two(first: int = 0, steps: int = 3, quorum: int = 1) -> tuple[list[Line], list[Line]]:
    """Steps of two groups, each of four samples."""
    sides: tuple[list[Line], list[Line]] = ([], [])
    for at in range(steps):
        for group, lines in enumerate(sides):
            t = float(10 * quorum + at)
            lines += [
                batch(t, quorum, first // 4 + at + 1, first + 4 * at + 2 * group),
                made(t, quorum, first // 4 + at + 1),
            ]
    return sides


def test_another_source_has_no_stream() -> None:
    assert audit(of([note("batch", 1.0, samples=["a"]), made(1.0, 1, 1)])) is None


def test_each_sample_of_two_groups_is_used_once() -> None:
    counts = found(*two())
    assert (counts.steps, counts.begin, counts.end, counted(counts)) == (3, 0, 12, (12, 0, 0))
    assert (counts.again, counts.wrong, counts.unnoted) == (0, [], [])


def test_a_group_that_was_killed_in_a_step_that_the_other_committed_counts() -> None:
    first, second = two()
    assert counted(found(first, second[:-1])) == (12, 0, 0)


def test_a_failed_step_and_a_heal_draw_what_is_drawn_again() -> None:
    first, second = two(steps=1)
    first += [batch(11.0, 1, 2, 4), failed(11.0, 1, 2), batch(12.0, 2, 2, 4), made(12.0, 2, 2)]
    second += [batch(12.0, 2, 2, 6), made(12.0, 2, 2)]
    counts = found(first, second)
    assert (counted(counts), counts.again, counts.wrong) == ((8, 0, 0), 2, [])


def test_what_a_resume_threw_away_does_not_count() -> None:
    first, second = two(steps=3)
    again = two(first=4, steps=1, quorum=2)
    counts = found(first + again[0], second + again[1])
    assert (counts.steps, counts.end, counted(counts), counts.again) == (2, 8, (8, 0, 0), 8)


def test_samples_used_again_and_skipped_are_named() -> None:
    first, second = two()
    second[2] = batch(11.0, 1, 2, 4)
    counts = found(first, second)
    assert counted(counts) == (8, 2, 2)
    assert (counts.twice_at, counts.never_at) == ([2], [3])
    assert counts.wrong == ["step 2 has samples 4 to 5 again", "step 3 skips samples 6 to 7"]


def test_missing_records_are_unknown_and_not_skipped() -> None:
    first, second = two()
    counts = found(first, second[:2] + second[4:])
    assert (counted(counts), counts.wrong) == ((10, 0, 0), [])
    assert [each.sentence for each in counts.unnoted] == ["step 2: 2 groups took part, 1 noted samples"]
    counts = found(first[:2] + first[4:], second[:2] + second[4:])
    assert (counted(counts), counts.wrong) == ((8, 0, 0), [])
    assert [each.sentence for each in counts.unnoted] == ["no record of step 2 is here"]


def test_a_rank_without_records_is_unknown() -> None:
    """Each group has two ranks; the samples of all are the step's, which each batch names."""
    groups = [[line | {"step_samples": 8} for line in lines] for lines in two(steps=1)]
    others = [[batch(10.0, 1, 1, 4 + 2 * group, step_samples=8), made(10.0, 1, 1)] for group in (0, 1)]
    ranks = [
        Steps(g, 1, r, "n", tuple(lines))
        for r, of_rank in enumerate((groups, others))
        for g, lines in enumerate(of_rank)
    ]
    whole = audit(History("run", steps=ranks))
    assert whole is not None
    assert (counted(whole), whole.unnoted) == ((8, 0, 0), [])
    for last in range(4):
        lacking = audit(History("run", steps=[each for each in ranks if each is not ranks[last]]))
        assert lacking is not None
        assert [each.sentence for each in lacking.unnoted] == ["step 1 has 8 samples, of which 6 are noted"]
        assert lacking.wrong == []


def test_first_steps_without_records_are_unknown() -> None:
    counts = found(*two(first=40))
    assert (counts.begin, counts.end, counted(counts), counts.wrong) == (40, 52, (12, 0, 0), [])
    assert [each.sentence for each in counts.unnoted] == ["no record of steps 1 to 10 is here"]
    counts = found([batch(1.0, 1, 1, 2), made(1.0, 1, 1, 1)])
    assert (counts.wrong, counts.unnoted) == (["step 1 skips samples 0 to 1"], [])


def test_a_run_that_began_with_another_runs_checkpoint_begins_there() -> None:
    first, second = two(first=40)
    resumed = note("resumed", 9.0, step=10, data="sample 40")
    counts = found([resumed, *first], second)
    assert (counts.begin, counts.end, counted(counts), counts.unnoted) == (40, 52, (12, 0, 0), [])
    skipped = found([resumed | {"data": "sample 38"}, *first], second)
    assert skipped.wrong == ["step 11 skips samples 38 to 39"]
    later = of([resumed, *first], second)
    later.steps[0] = replace(later.steps[0], generation=2)
    counts = audit(later)
    assert counts is not None
    assert [each.sentence for each in counts.unnoted] == ["no record of steps 1 to 10 is here"], "its own checkpoint"
    of_new_group = of(first, second, [resumed])
    of_new_group.sizes = [(8.0, 3)]
    counts = audit(of_new_group)
    assert counts is not None
    assert [each.sentence for each in counts.unnoted] == ["no record of steps 1 to 10 is here"], "a relaunch with more"


def test_a_stream_that_begins_again_is_wrong() -> None:
    first, second = two()
    first += [batch(20.0, 2, 4, 0), batch(20.1, 2, 4, 2), made(20.0, 2, 4, 1)]
    counts = found(first, second)
    assert counts.wrong == ["step 4 begins a stream at its first sample, after sample 11 of the one before"]
    assert counted(counts) == (16, 0, 0)


@pytest.mark.parametrize(
    ("position", "code", "says"),
    [
        (2, 0, "run run: 1 steps of its model, samples 0 to 3: 4 used once, 0 twice, 0 never"),
        (0, 1, "supervisor: step 1 has samples 0 to 1 again"),
    ],
)
def test_the_command(tmp_path: Path, position: int, code: int, says: str) -> None:
    files = story(tmp_path)
    files.steps = {
        (node, group, 1): [batch(5.5, 1, 1, at), made(5.0, 1, 1)]
        for node, group, at in (("n1", 0, 0), ("n2", 1, position))
    }
    files.write()
    (tmp_path / "system").rename(tmp_path / ".supervisor")
    result = CliRunner().invoke(command.data, ["audit", str(tmp_path / "run")])
    assert (result.exit_code, says in result.output) == (code, True), result.output


def test_a_run_without_a_store_is_named(tmp_path: Path) -> None:
    story(tmp_path).write()
    result = CliRunner().invoke(command.data, ["audit", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert 'run run: no record of a token store is here (titan.data.source = "tokens")' in result.output
