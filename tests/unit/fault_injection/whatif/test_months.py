"""`supervisor simulate`, on runs that are small or short."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import simulate_months
from fault_injection.whatif import command, compare
from fault_injection.whatif.months import ByChance, Months, Outcome
from fault_injection.whatif.rates import known, rates, times

DAY_S = 86_400.0
GPUS = 256


def simulated(seed: int, days: float = 30.0, many: float = 50.0, size: int = 1, **policy: object) -> Outcome:
    """Failures come `many` times as often as published, so that a short run has some."""
    spec = compare.spec(GPUS // 8 // size, 1, None, size)
    spec = replace(spec, policy=replace(spec.policy, **policy))  # type: ignore[arg-type]
    published = rates("llama3")
    often = replace(published, mttf=tuple((gpus, hours / many) for gpus, hours in published.mttf))
    return Months(spec, ByChance(often, GPUS), times(), seed).run(days * DAY_S)


def test_the_published_counts_add_up() -> None:
    llama = rates("llama3")
    assert sum(count for _, count, _ in llama.causes) == 419
    assert llama.mttf_s(16_384) == pytest.approx(54 * DAY_S / 419, rel=1e-3)
    assert llama.mttf_s(8_192) == pytest.approx(2 * llama.mttf_s(16_384))


def test_between_two_published_sizes_and_beyond_them() -> None:
    rsc = rates("rsc")
    hours = [rsc.mttf_s(gpus) / 3600 for gpus in (512, 1024, 4096, 16_384, 32_768)]
    assert hours == pytest.approx([15.8, 7.9, (7.9 * 1.8) ** 0.5, 1.8, 0.9])


def test_rates_that_are_not_known() -> None:
    with pytest.raises(ValueError, match="known: llama3, rsc"):
        rates("rcs")
    assert known() == ["llama3", "rsc"]


def test_ettr_and_badput_add_up_and_what_was_published_comes() -> None:
    out = simulated(1)
    # Poisson: within five standard deviations of the expected number
    wanted = 30 * DAY_S / (rates("llama3").mttf_s(GPUS) / 50)
    assert abs(out.failures - wanted) < 5 * wanted**0.5
    total = out.seconds * out.groups
    assert out.ettr + sum(out.badput.values()) / total == pytest.approx(1.0)
    assert sum(out.by_look.values()) == pytest.approx(sum(out.badput.values()))
    assert {"gpu", "node", "process", "allocation"} <= set(out.by_look)


def test_each_failure_is_mended_and_takes_what_its_parts_take() -> None:
    """With failures far apart every one costs its start, a heal for which all groups wait, and no more than a search for
    a place besides."""
    out = simulated(2, many=20.0)
    assert out.halts == 0
    assert out.failures > 10
    assert out.badput["start"] == pytest.approx(out.failures * times().start_s)
    assert out.badput["heal"] == pytest.approx(GPUS // 8 * out.failures * times().heal_s)
    assert out.badput["detect"] < 20 * out.failures


def test_a_group_of_several_nodes_starts_again_as_a_whole_and_replaces_one() -> None:
    out = simulated(2, many=20.0, size=4)
    assert (out.groups, out.halts) == (8, 0)
    assert out.failures > 10
    assert 0 < out.spares <= out.failures
    assert out.badput["start"] == pytest.approx(out.failures * times().start_s)


def test_the_same_seed_is_the_same_run() -> None:
    assert simulated(3, days=10.0) == simulated(3, days=10.0)
    assert simulated(3, days=10.0) != simulated(4, days=10.0)


def test_a_longer_lease_is_paid_until_the_decision() -> None:
    """The gate hears a lost node's silence at once, which opens the incident; only its lease shows that it is lost."""
    quick, slow = (simulated(5, many=20.0, node_lease_s=lease) for lease in (5, 60))
    assert slow.by_look["node"] > quick.by_look["node"]
    assert slow.badput["decide"] > quick.badput["decide"]


def only_group(interval_s: float) -> Outcome:
    """A run of one group, whose failures stop the whole run."""
    spec, published = compare.spec(1, 30, None), rates("rsc")
    often = replace(published, mttf=((8, 4.0),))
    return Months(spec, ByChance(often, 8), replace(times(), whole_interval_s=interval_s), 7).run(20 * DAY_S)


def test_where_nobody_is_left_what_was_trained_since_the_checkpoint_is_trained_again() -> None:
    never, often = only_group(0.0), only_group(1800.0)
    assert never.badput["recompute"] == 0.0
    assert never.failures == often.failures > 50
    # half an interval each time, within the chance deviation of that number
    assert often.badput["recompute"] / often.failures == pytest.approx(900.0, rel=0.25)
    assert often.seconds * (never.ettr - often.ettr) == pytest.approx(often.badput["recompute"])
    assert sum(often.by_look.values()) == pytest.approx(sum(often.badput.values()))


def test_who_goes_on_loses_nothing_that_was_trained() -> None:
    assert simulated(6, many=20.0).badput["recompute"] == 0.0


def test_what_stops_everybody_costs_more() -> None:
    out = Outcome(seconds=10 * DAY_S, groups=4, failures=10)
    cost_s = times().whole_restart_s + times().whole_interval_s / 2
    assert compare.whole(out, times()) == pytest.approx(1 - cost_s / DAY_S)


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (9, 2.2622), (10, 2.2281), (11, 2.2010), (19, 2.0930), (30, 2.0423), (49, 2.0096), (1000, 1.9623)],
)
def test_students_t_is_as_the_tables_have_it(freedom: int, t: float) -> None:
    assert compare.student_t_95(freedom) == pytest.approx(t, rel=2e-3 if freedom < 10 else 1e-4)


def test_the_interval_of_seeds() -> None:
    assert compare.interval([0.5]) == (0.5, None)
    mean, half = compare.interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.30 / 3**0.5)


def test_each_seeds_figures_are_written(tmp_path: Path) -> None:
    app = typer.Typer()
    command.register(app)
    out = tmp_path / "out.json"
    few = ["--gpus", "1024", "--days", "60", "--seeds", "2"]
    assert CliRunner().invoke(app, [*few, "--out", str(out)]).exit_code == 0
    body = json.loads(out.read_text())
    assert (body["rates"], body["gpus"], body["days"]) == ("llama3", 1024, 60.0)
    seeds = body["policies"][compare.AS_SHIPPED]
    assert [seed["seed"] for seed in seeds] == [0, 1]
    for seed in seeds:
        assert seed["ettr"] + sum(seed["badput"].values()) == pytest.approx(1.0)
        assert seed["cpu_s"] > 0.0
    summed = simulate_months.summary(seeds)
    assert summed["failures"]["mean"] == sum(seed["failures"] for seed in seeds) / 2
    assert summed["ettr"]["interval_95"] is not None
    assert next(iter(summed["badput"])) == "heal"


def test_a_file_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    app = typer.Typer()
    command.register(app)
    for out, says in (
        (tmp_path / "no" / "out.json", "cannot write"),
        (tmp_path, "is not a file"),
        (Path("/dev/null"), "is not a file"),
    ):
        told = CliRunner().invoke(app, ["--gpus", "1024", "--days", "1", "--out", str(out)])
        assert told.exit_code == 2
        assert says in " ".join(told.output.replace("│", " ").split())
        assert "policy" not in told.output, "it is said before anything is played"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_the_older_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, out = typer.Typer(), tmp_path / "out.json"
    command.register(app)
    out.write_text("older")
    write_text = Path.write_text

    def full(path: Path, text: str) -> int:
        write_text(path, text[:10])
        if text:
            raise OSError(errno.ENOSPC, "No space left on device")
        return 0

    monkeypatch.setattr(Path, "write_text", full)
    told = CliRunner().invoke(app, ["--gpus", "1024", "--days", "1", "--out", str(out)], env={"COLUMNS": "200"})
    assert told.exit_code == 2
    assert "No space left" in told.output
    assert out.read_text() == "older"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--days", "inf"], "--days"),
        (["--days", "nan"], "--days"),
        (["--days", "3651"], "--days"),
        (["--gpus", "1000000000"], "--gpus"),
        (["--policy", "a.toml", "--policy", "b.toml", "--policy", "a.toml"], "a.toml is given twice"),
    ],
)
def test_what_would_not_end_or_compares_nothing_is_refused(given: list[str], says: str) -> None:
    app = typer.Typer()
    command.register(app)
    told = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    assert told.exit_code == 2
    assert says in told.output


def test_the_command_compares_two_policies(tmp_path: Path) -> None:
    app = typer.Typer()
    command.register(app)
    one, two, wrong = tmp_path / "one.toml", tmp_path / "two.toml", tmp_path / "wrong.toml"
    one.write_text("[policy]\nnode_lease_s = 10\n")
    two.write_text("[policy]\nnode_lease_s = 30\n")
    wrong.write_text("[policy]\nnode_leese_s = 20\n")
    deep = tmp_path / "deep.toml"
    deep.write_text("[policy]\nnode_lease_s = " + "[" * 200_000)
    few = ["--gpus", "1024", "--days", "30", "--seeds", "2"]
    told = CliRunner().invoke(app, [*few, "--policy", str(one), "--policy", str(two)], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert told.output.count("ETTR if each failure stopped all groups") == 2
    assert "arXiv 2407.21783" in told.output
    less = told.output.split(f"policy {two} less policy {one}:")[1]
    assert re.search(r"ETTR +│ +-\S+ % +│ +± \S+ % ", less), "a longer lease costs time"
    assert re.search(r"badput: (detect|decide) +│ +\+\S+ % ", less)
    same = CliRunner().invoke(app, [*few, "--policy", str(one)], env={"COLUMNS": "200"})
    assert " less policy " not in same.output
    for path, says in ((wrong, "node_lease_s"), (deep, "--policy")):
        refused = CliRunner().invoke(app, [*few, "--policy", str(path)])
        assert refused.exit_code == 2
        assert says in refused.output
    assert CliRunner().invoke(app, ["--rates", "lama"]).exit_code == 2
