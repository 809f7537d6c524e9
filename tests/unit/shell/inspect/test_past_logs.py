"""The logs of a past run from its folder, by the command and the Python API: etcd is never asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import supervisor.client as everstep
from supervisor import cli
from supervisor.cli import common
from tests.unit.fault_injection.files import RUN, story

Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the story's run below the home of an `up`. Each generation has one line of output, and generation 4 is
    of a later run of that name."""
    story(tmp_path).write()
    (tmp_path / "system").rename(tmp_path / ".supervisor")
    for node, group, generation in (("n1", 0, 1), ("n2", 1, 1), ("n2", 1, 2), ("n3", 1, 3), ("n3", 1, 4)):
        log = tmp_path / ".supervisor" / "nodes" / node / "ranks" / f"{RUN}.{group}.{generation}.0" / "output.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"first of {group}.{generation}\nlast of {group}.{generation}\n")
    return tmp_path / RUN


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `supervisor logs` where etcd must not be asked."""

    def connect(*_: object, **__: object) -> None:
        raise AssertionError("etcd is asked")

    monkeypatch.setattr(common, "connect", connect)
    return lambda *given: CliRunner().invoke(cli.app, ["logs", *map(str, given)])


def test_a_folders_logs_are_printed_as_those_of_a_run(folder: Path, logs: Command) -> None:
    shown = logs(folder)
    assert shown.exit_code == 0, shown.output
    lines = [line.partition("Z ")[2] for line in shown.stdout.splitlines() if " | last" in line]
    assert sorted(lines) == [f"g{g}.gen{n}.r0 | last of {g}.{n}" for g, n in ((0, 1), (1, 1), (1, 2), (1, 3))]
    assert "**** group 1: incident " in shown.stdout
    assert logs("--run", folder).stdout == shown.stdout
    assert logs(folder, "-n", 1).stdout == shown.stdout.splitlines()[-1] + "\n"


def test_a_folder_without_a_slash_is_known_by_its_dot(
    folder: Path, logs: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    here = logs(".", "--group", 0)
    monkeypatch.chdir(folder.parent)
    folder.rename("run.1")
    assert "last of 0.1" in here.stdout
    assert logs("run.1", "--group", 0).stdout == here.stdout


def test_as_json_it_has_each_line(folder: Path, logs: Command) -> None:
    found: list[dict[str, Any]] = json.loads(logs(folder, "--group", 1, "--json").stdout)
    lines = [(entry["generation"], entry["text"]) for entry in found if entry["what"] == "line"]
    assert sorted(lines) == [(n, f"{which} of 1.{n}") for n in (1, 2, 3) for which in ("first", "last")]


def test_lines_are_chosen_by_text_and_time_over_all_generations(folder: Path, logs: Command) -> None:
    chosen = logs(folder, "--group", 1, "--grep", "last of", "-n", 2)
    assert sorted(line.rpartition("| ")[2] for line in chosen.stdout.splitlines()) == ["last of 1.2", "last of 1.3"]
    log = next(folder.parent.glob(".supervisor/nodes/n1/ranks/*/output.log"))
    log.write_text("[titan] 2099-01-01 00:00:00,000 - still to come\n")
    assert [entry["group"] for entry in json.loads(logs(folder, "--since", "1m", "--json").stdout)] == [0]
    log.write_text("the oldest\n" + "x" * 79 * 2**13 + "\n" * 2**13)
    assert "the oldest" in logs(folder, "--grep", "oldest").stdout, "also of a log of more than 256 KiB"
    none = logs(folder, "--grep", "nowhere")
    assert (none.exit_code, none.stderr) == (1, f"supervisor: run {RUN} has no such lines\n")


def test_its_hooks_are_shown(folder: Path, logs: Command) -> None:
    none = logs(folder, "--hooks")
    assert none.exit_code == 1
    assert none.stderr.startswith(f"supervisor: no output of hooks of run {RUN} below ")
    log = folder.parent / ".supervisor" / "nodes" / "n1" / "hooks" / RUN / "before.log"
    log.parent.mkdir(parents=True)
    log.write_text("prepared\n")
    assert logs(folder, "--hooks").stdout.splitlines()[1:] == ["prepared"]


@pytest.mark.parametrize("option", ["--follow", "--remote", "--supervisor"])
def test_what_needs_a_live_run_is_refused(folder: Path, logs: Command, option: str) -> None:
    refused = logs(folder, option)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(
        f"supervisor: {folder} is a folder, whose files are read once: it takes no --follow"
    )


def test_where_there_are_no_logs_a_sentence_names_the_place(folder: Path, logs: Command, tmp_path: Path) -> None:
    nodes = tmp_path / ".supervisor" / "nodes"
    mistyped = logs(folder, "--group", 7)
    assert (mistyped.exit_code, mistyped.stderr) == (
        1,
        f"supervisor: run {RUN} has no group 7; its journal has: 0, 1\n",
    )
    away = logs(folder, "--group", 1, "--rank", 5)
    assert away.exit_code == 1
    assert away.stderr.startswith(f"supervisor: no logs of run {RUN}, group 1, rank 5 below {nodes}: look on the")
    nodes.rename(tmp_path / "elsewhere")
    assert logs(folder).stderr.startswith(f"supervisor: no logs of run {RUN} below {nodes}: look on the machines")
    no_run = logs(tmp_path)
    assert (no_run.exit_code, no_run.stdout) == (1, "")
    assert no_run.stderr.startswith(f"supervisor: {tmp_path} holds no journal.jsonl: give the folder of a run")


def test_the_api_has_ends_and_incidents_in_their_places(folder: Path) -> None:
    past = everstep.open(folder)
    found = [(entry.what, entry.generation) for entry in past.logs(group=1) if entry.what != "line"]
    assert found == [
        ("start", 1), ("end", 1), ("incident", 2), ("start", 2), ("incident", 2),
        ("end", 2), ("incident", 3), ("start", 3), ("incident", 3), ("end", 3),
    ]  # fmt: skip
    assert {entry.text for entry in past.logs(grep="last of 1")} == {"last of 1.1", "last of 1.2", "last of 1.3"}
    assert [entry.generation for entry in past.logs(group=1, since=22.5)] == [3], "only its end is as late"
    assert [entry.what for entry in past.logs(tail=1)] == ["end"]
    with pytest.raises(everstep.EverstepError, match=f"no logs of run {RUN}, group 1, rank 5 below"):
        past.logs(group=1, rank=5)

    async def twin() -> list[everstep.LogEntry]:
        return [*await (await everstep.aopen(folder)).logs(group=1)]

    assert asyncio.run(twin()) == [*past.logs(group=1)]


def test_groups_of_a_later_run_of_the_name_are_left_out(folder: Path, logs: Command) -> None:
    log = folder.parent / ".supervisor" / "nodes" / "n3" / "ranks" / f"{RUN}.7.1.0" / "output.log"
    log.parent.mkdir(parents=True)
    log.write_text("of another run\n")
    assert "of another run" not in logs(folder).stdout
    assert "has no group 7" in logs(folder, "--group", 7).stderr


def test_a_node_whose_files_are_not_here_is_named(folder: Path, logs: Command) -> None:
    assert logs(folder).stderr == ""
    journal = folder / "journal.jsonl"
    text = journal.read_text()
    assert '"node": ""' in text
    journal.write_text(text.replace('"node": ""', '"node": "n9"'))
    assert "supervisor: node n9: its files are not below " in logs(folder).stderr


def test_the_newest_lines_of_logs_of_different_length(folder: Path, logs: Command) -> None:
    """A long log takes several looks, and the newest line of a short one comes in the first."""
    ranks = folder.parent / ".supervisor" / "nodes"
    lines = (f"2026-11-29 10:{n // 60 % 60:02}:{n % 60:02},{n % 1000:03} x{'y' * 1000}\n" for n in range(3000))
    (ranks / "n1" / "ranks" / f"{RUN}.0.1.0" / "output.log").write_text("".join(lines))
    (ranks / "n2" / "ranks" / f"{RUN}.1.1.0" / "output.log").write_text("2026-11-29 11:00:00,000 x the newest\n")
    assert logs(folder, "--grep", " x", "-n", 1).stdout.rstrip().endswith("x the newest")
