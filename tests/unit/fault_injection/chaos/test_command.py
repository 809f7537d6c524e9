"""The parts of `supervisor chaos` that need no run."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fault_injection import commands
from fault_injection.chaos import campaign, command, schedule
from fault_injection.chaos.schedule import load
from fault_injection.checkers.history_file import save
from fault_injection.checkers.recovery import ALL
from fault_injection.faults import site as sites
from fault_injection.faults.catalogue import FAULTS
from fault_injection.faults.fault import Site
from fault_injection.faults.site import no_collective
from fault_injection.testbed.unavailable import no_command
from tests.unit.fault_injection.broken import a_broken_run, fault

pytestmark = pytest.mark.usefixtures("able")

NO_IP = no_command("ip")
ABLE = Site(no_collective=no_collective(1))
BARE = replace(
    ABLE, no_memory_cgroup="no cgroup can be made in /sys/fs/cgroup: Read-only file system", no_own_disks=NO_IP, no_cut=NO_IP,
    no_filter=NO_IP, no_reset=no_command("ss"), no_faketime="no libfaketime (Debian: apt-get install faketime)", no_trace=no_command("strace"),
)  # fmt: skip
"""A machine with nothing installed."""


def said(code: int, *arguments: str, columns: int = 200) -> str:
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["chaos", *arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.output


def on(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setattr(sites, "of_machine", lambda: site)


def test_list_names_every_fault_with_the_reason_why_not(monkeypatch: Any) -> None:
    on(monkeypatch, replace(ABLE, no_memory_cgroup="no [memory] controller", no_own_disks=NO_IP, no_cut=NO_IP))
    rows = json.loads(said(0, "list", "--json"))
    assert [row["fault"] for row in rows] == list(FAULTS)
    why_not = {row["fault"]: row["why_not"] for row in rows}
    assert why_not["sigkill"] == ""
    assert why_not["killed_for_memory"] == "no [memory] controller"
    assert why_not["disk_full"] == why_not["node_silent"] == NO_IP
    assert "in a group of one rank" in why_not["collective_skipped"]
    table = said(0, "list")
    assert all(name in table for name in FAULTS)
    (number,) = re.findall(r"node_silent +a node's link goes down: silent, as a dead host \(not here: (\d)\)", table)
    assert re.search(rf"^{number} \(4 faults\) +no `ip` command \(Debian: apt-get install iproute2\) *$", table, re.M)
    assert re.search(r"^\d \(1 fault\) +no \[memory\] controller *$", table, re.M)
    assert f"{sum(1 for why in why_not.values() if not why)} of {len(FAULTS)} faults can be made here" in table


@pytest.mark.parametrize("site", [ABLE, BARE], ids=["able", "bare"])
def test_list_is_read_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    on(monkeypatch, site)
    rows = said(0, "list", columns=80).splitlines()
    assert max(map(len, rows)) <= 80
    assert any(re.fullmatch(r"sigkill +SIGKILL to a rank \(crash\) *", row) for row in rows)
    folded = sum(row.startswith(" ") for row in rows)
    assert folded < len(FAULTS) / 2, "most take one line"
    text = " ".join(" ".join(rows).split())
    reasons = set(vars(site).values()) - {"", "local"}
    assert {why: text.count(why) for why in reasons} == dict.fromkeys(reasons, 1), "each is there, whole and once"


def test_check_judges_files_and_ends_with_1_unless_all_pass(tmp_path: Path) -> None:
    history = a_broken_run(tmp_path)
    save(history, tmp_path / "good.jsonl")
    good = said(0, "check", str(tmp_path / "good.jsonl"))
    assert f"good.jsonl: {len(ALL)} of {len(ALL)} checkers pass" in good
    history.left = None
    fault(history, 2, within_s=1.0)
    save(history, tmp_path / "bad.jsonl")
    bad = said(1, "check", str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl"))
    assert f"bad.jsonl: {len(ALL) - 2} of {len(ALL)} checkers pass" in bad
    assert "unknown  nothing_left" in bad
    assert "fail     recovered_in_time" in bad
    assert "fault 2 (node_killed of group 1 rank 0 at step 13): it took 4.1 s" in bad
    body = json.loads(said(1, "check", "--json", str(tmp_path / "bad.jsonl")))
    assert {v["checker"]: v["answer"] for v in body[str(tmp_path / "bad.jsonl")]}["nothing_left"] == "unknown"


def test_check_of_what_is_not_there(tmp_path: Path) -> None:
    (sentence,) = said(2, "check", str(tmp_path / "none.jsonl")).splitlines()
    assert sentence.startswith(
        f"supervisor: cannot read {tmp_path}/none.jsonl: No such file or directory; `supervisor chaos run`"
    )
    (sentence,) = said(2, "check", str(tmp_path)).splitlines()
    assert sentence == f"supervisor: {tmp_path} is a folder: give the file, {tmp_path}/history.jsonl"
    (tmp_path / "other.txt").write_text("hello\n")
    (sentence,) = said(2, "check", str(tmp_path / "other.txt")).splitlines()
    assert (
        sentence == f"supervisor: {tmp_path}/other.txt is no history: `supervisor chaos run` writes one, history.jsonl"
    )


def test_check_judges_what_can_be_read(tmp_path: Path) -> None:
    good, none = tmp_path / "good.jsonl", tmp_path / "none.jsonl"
    save(a_broken_run(tmp_path), good)
    for files in ((good, none), (none, good)):
        text = said(2, "check", *map(str, files))
        assert f"supervisor: cannot read {none}: " in text
        assert f"{good}: {len(ALL)} of {len(ALL)} checkers pass" in text
    assert str(good) in said(2, "check", "--json", str(good), str(none))


SCHEDULE = '[[fault]]\nname = "sigkill"\nat_step = 40\n'


def test_a_plan_is_printed_before_anything_is_broken(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEDULE)
    text = said(0, "run", str(tmp_path / "s.toml"), "--dry-run", "--home", str(tmp_path / "runs"))
    assert "seed 0: 1 faults; " in text
    assert re.search(r"1  at step 40: sigkill, group [01] rank 0", text)
    assert not (tmp_path / "runs").exists()
    drawn = said(0, "run", "--seed", "3", "--faults", "5", "--dry-run", "--home", str(tmp_path / "runs"))
    assert drawn == said(0, "run", "--seed", "3", "--faults", "5", "--dry-run", "--home", str(tmp_path / "runs"))
    assert "seed 3: 5 faults" in drawn


def test_groups_of_the_size_that_the_schedule_names(tmp_path: Path) -> None:
    skipped = '[[fault]]\nname = "collective_skipped"\nat_step = 9\nrank = 1\n'
    (tmp_path / "s.toml").write_text("ranks_per_group = 2\n" + skipped)
    assert re.search("collective_skipped, group [01] rank 1", said(0, "run", str(tmp_path / "s.toml"), "--dry-run"))
    (tmp_path / "s.toml").write_text(skipped.replace("rank = 1", "rank = 0"))
    text = said(2, "run", str(tmp_path / "s.toml"), "--dry-run")
    assert "collective_skipped cannot be made here" in text
    assert "ranks_per_group = 2" in text


def test_groups_on_as_many_nodes_as_the_schedule_names(tmp_path: Path) -> None:
    schedule = '[[fault]]\nname = "sigkill"\nat_step = 9\nrank = 1\n'
    (tmp_path / "s.toml").write_text("nodes_per_group = 2\n" + schedule)
    said(0, "run", str(tmp_path / "s.toml"), "--dry-run")  # and a rank on each
    (tmp_path / "s.toml").write_text("nodes_per_group = 40\n" + schedule)
    assert "groups.nodes_per_group = 40: at most 32" in said(2, "run", str(tmp_path / "s.toml"), "--dry-run")


def test_a_wrong_schedule_stops_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEDULE.replace("sigkill", "sigkil"))
    text = said(2, "run", str(tmp_path / "s.toml"), "--home", str(tmp_path / "runs"))
    assert "supervisor: fault.0.name = 'sigkil': there is no such fault; nearest: 'sigkill'" in text
    assert "cannot read the schedule" in said(2, "run", str(tmp_path / "none.toml"))
    (tmp_path / "s.toml").write_text(SCHEDULE.replace("sigkill", "nan_batch"))
    assert "nan_batch cannot be made here" in said(2, "run", str(tmp_path / "s.toml"), "--dry-run")
    assert not (tmp_path / "runs").exists()


def test_how_many_is_not_said_of_a_schedule_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "schedule.toml"
    path.write_text('[[fault]]\nname = "sigkill"\nat_step = 3\n')
    for option in ("--faults", "--every-steps"):
        assert f"{path} lists the faults: leave out one" in said(2, "run", str(path), option, "3", "--dry-run")


@pytest.mark.parametrize("name", ["../x", "a/b", "a b", "", "a" * 300, "-a", "a\n"])
@pytest.mark.parametrize("dry", [True, False])
def test_a_name_that_no_run_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dry: bool
) -> None:
    monkeypatch.setattr(campaign, "Campaign", None)  # nothing is started in any case
    (tmp_path / "s.toml").write_text(SCHEDULE + "group = 1\nrank = 0\n")
    given = [str(tmp_path / "s.toml"), "--home", str(tmp_path / "runs"), f"--name={name}"]
    (sentence,) = said(2, "run", *given, *(["--dry-run"] if dry else [])).splitlines()
    assert sentence.startswith(f"supervisor: name = {name!r}: use 1 to 63 letters, digits and inner dashes; nearest: ")
    assert said(2, "replay", *given).splitlines() == [sentence]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", [["--name", "x"], ["--cold"]])
def test_what_is_of_a_run_that_is_started_here_is_not_said_of_a_live_one(tmp_path: Path, option: list[str]) -> None:
    (tmp_path / "s.toml").write_text(SCHEDULE + "group = 1\nrank = 0\n")
    given = [str(tmp_path / "s.toml"), "--run", "live", "--etcd", "127.0.0.1:1", *option]
    for command_ in ("run", "replay"):
        assert "apply to a run that is started here, but --run breaks live: leave" in said(2, command_, *given)


def test_a_folder_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEDULE)
    (tmp_path / "runs" / "chaos").mkdir(parents=True)
    text = said(1, "run", str(tmp_path / "s.toml"), "--home", str(tmp_path / "runs"))
    assert "already exists: choose another --name, or remove it" in text


def test_a_plan_is_read_once_before_it_is_replayed_and_once_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(SCHEDULE + "group = 1\nrank = 0\n")
    read: list[Path] = []
    monkeypatch.setattr(schedule, "load", lambda path: read.append(path) or load(path))
    (tmp_path / "runs" / "chaos").mkdir(parents=True)
    said(1, "replay", str(tmp_path / "s.toml"), "--home", str(tmp_path / "runs"))
    assert len(read) == 2


def test_only_a_plan_replays(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCHEDULE)
    assert "is not a plan: it names no victim for sigkill" in said(2, "replay", str(tmp_path / "s.toml"))
    (tmp_path / "runs" / "chaos").mkdir(parents=True)
    (tmp_path / "s.toml").write_text(SCHEDULE + "group = 1\nrank = 0\n")
    text = said(1, "replay", str(tmp_path / "s.toml"), "--home", str(tmp_path / "runs"))
    assert "already exists" in text, "it went as far as to start"


def test_the_command_line_finds_it() -> None:
    points = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["supervisor.commands"]["fault_injection"].partition(":")
    assert getattr(importlib.import_module(module), name) is commands.register
    assert ("chaos", "chaos.command") in [each[1:3] for each in commands.COMMANDS]


def test_each_command_has_an_example_that_begins_with_it() -> None:
    for each in command.chaos.registered_commands:
        name = each.name or (each.callback.__name__ if each.callback else "")
        assert (each.epilog or "").startswith(f"Example: supervisor chaos {name}")
