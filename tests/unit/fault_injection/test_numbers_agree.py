"""One real run, as every command prints it: the same ETTR, start, end, recoveries and durations."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fault_injection.demo import report
from fault_injection.doubles.memory_store import MemoryStore
from fault_injection.faults.acts import Injected
from fault_injection.testbed.world import LEASE_S
from supervisor import cli
from supervisor.cli import ledger, look
from supervisor.core.goodput.causes import Cause
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.history.account import from_start_to_end, of_run
from supervisor.shell.history.files import read
from supervisor.shell.history.goodput import Span, in_short
from supervisor.shell.history.goodput import ledger as of_group
from supervisor.shell.web.snapshot import Live, snapshot
from supervisor.shell.web.terminal import ENDLESS, Drawing, Word, clock, lasted
from supervisor.wire import keys
from tests.unit.fault_injection.record import unpack

INCIDENTS = ("i1", "i2", "i3")

BEAT_S = 1.0
"""Seconds until an agent reports its ranks' ends, or the gate a silence, on a busy machine."""


class Told:
    """All reports of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder, kept = unpack(folder)
        store = MemoryStore()
        for key, value in kept["records"].items():
            store.put(key, value.encode())
        self.mirror = Mirror(store.list(keys.PREFIX))
        self.page = snapshot(self.mirror, observe.runs(self.mirror)["toy"], Live(now=2e9))
        self.ledger = of_run(self.folder)
        self.report: dict[str, Any] = kept["report"]
        self.faults = [Injected(**fault) for fault in kept["faults"]]

    def top(self) -> str:
        """The output of `supervisor top` into a pipe."""
        return "\n".join(line.plain for line in Drawing(self.page, ENDLESS).lines(Word(""), ENDLESS))

    def incidents(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
        """The output of `supervisor incidents`."""

        @contextlib.contextmanager
        def opened(*_: Any) -> Iterator[Mirror]:
            yield self.mirror

        monkeypatch.setattr(look, "opened_mirror", opened)
        return CliRunner().invoke(cli.app, ["incidents", *arguments], env={"COLUMNS": "200"}).stdout

    def ledger_words(self) -> str:
        app = typer.Typer()
        ledger.register(app)
        return CliRunner().invoke(app, [str(self.folder)], env={"COLUMNS": "200"}).stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("recorded"))


def test_there_is_one_ettr(told: Told) -> None:
    shares = {f"{share:.1%}" for share in (told.page["time"]["ettr"], told.ledger["ettr"], told.report["ettr"])}
    assert len(shares) == 1
    (word,) = shares
    assert f"ETTR {word} of " in told.top()
    assert f"; ETTR {word}\n" in told.ledger_words()
    assert told.ledger["wrong"] == [], "and the files agree"
    shares = [(cause.replace("_", " "), f"{share:.1%}") for cause, share in told.ledger["badput"].items()]
    for cause, share in shares:
        assert f" {cause} {share}" in told.top() or share == "0.0%", cause
        assert re.search(rf"^{cause.replace(' ', '_')} +[\d.]+ +{share}", told.ledger_words(), re.M), cause
    assert told.report["badput"] == told.ledger["badput"]
    causes = told.ledger["causes"]
    assert round(causes["productive"] / sum(causes.values()), 3) == told.ledger["ettr"]


def test_the_leaders_count_is_what_the_files_say(told: Told) -> None:
    """They were not asked for it: they agree within the moments that only the files have."""
    groups = told.ledger["groups"].values()
    share = sum(g["productive"] for g in groups) / sum(sum(g.values()) for g in groups)
    assert share == pytest.approx(told.ledger["ettr"], abs=0.01)


def test_there_is_one_start_one_end_and_one_length(told: Told) -> None:
    page, of_files, in_short = told.page["time"], told.ledger, told.report
    starts = (page["began"], of_files["begin_unix_s"], in_short["begin_unix_s"])
    ends = (page["ended"], of_files["end_unix_s"], in_short["end_unix_s"])
    lengths = (page["ran_s"], of_files["seconds"], in_short["seconds"])
    assert [len({round(x, 1) for x in these}) for these in (starts, ends, lengths)] == [1, 1, 1]
    assert page["ended"] - page["began"] == pytest.approx(page["ran_s"], abs=0.2)
    assert f"{lasted(page['ran_s'])} from {clock(page['began'])} to {clock(page['ended'])}" in told.top()
    assert f"run toy: {of_files['seconds']:.1f} s of 2 groups (" in told.ledger_words()
    assert of_files["over"]


def test_there_is_one_recovery_of_each_incident_and_one_duration(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    table, top = told.incidents(monkeypatch).splitlines(), told.top()
    in_etcd = {i["id"]: i for i in json.loads(told.incidents(monkeypatch, "--json"))}
    of_files = {i["id"]: i for i in told.ledger["incidents"]}
    reported = {i["id"]: i for i in told.report["incidents"]}
    assert tuple(sorted(reported)) == tuple(sorted(of_files)) == tuple(sorted(in_etcd)) == INCIDENTS
    for name in INCIDENTS:
        page = told.page["incidents"][name]
        others = (in_etcd[name], of_files[name], reported[name])
        assert {round(o["recovered_unix_s"], 1) for o in others} == {page["recovered"]}
        assert {round(o["lasted_s"], 2) for o in others} == {page["lasted_s"]}
        word = lasted(page["lasted_s"])
        (row,) = (line for line in table if line.startswith(f"{name} "))
        assert row.endswith(f"  recovered  {word}")
        (line,) = (line for line in top.splitlines() if line.startswith(f"  {name} "))
        assert line.endswith(f"over after {word}")


def test_an_incident_lasts_from_the_fault_on(told: Told) -> None:
    """The fault's author knows its time, except for the moment until it was seen. A lost node's last renewal was up to
    a lease earlier."""
    kinds = [i["kind"] for i in told.report["incidents"]]
    assert kinds == ["crash", "node_lost", "allocation_lost"]
    for incident in told.report["incidents"]:
        earlier_s = LEASE_S if incident["kind"] == "node_lost" else 0.0
        assert -BEAT_S < incident["lasted_s"] - incident["recovered_s"] < earlier_s + 0.01, incident["fault"]


def test_the_recovery_is_the_first_step_with_the_others(told: Told) -> None:
    history = read("toy", told.folder, told.folder.parent / ".supervisor")
    for incident in told.report["incidents"]:
        (steps,) = (s for s in history.of_group(1) if s.generation == incident["generation_after"])
        first = next(x for x in steps.committed() if x["participants"] > 1 or x["healed"])
        assert 0.0 <= incident["recovered_unix_s"] - first["t"] < BEAT_S, "as soon as its agent has said so"


def test_the_report_is_made_of_the_files_alone(told: Told) -> None:
    history = read("toy", told.folder, told.folder.parent / ".supervisor")
    found = report.build(history, told.faults, from_start_to_end(told.folder, Span(0.0, 1.0)), 2, [])
    for name in ("ettr", "badput", "seconds", "begin_unix_s", "end_unix_s", "badput_wrong", "incidents"):
        assert found[name] == told.report[name], name


@pytest.mark.parametrize("off_s", [3600.0, -3600.0])
def test_an_hour_of_the_leaders_clock_changes_nothing_but_the_time_of_day(
    told: Told, tmp_path: Path, off_s: float
) -> None:
    folder, _ = unpack(tmp_path)
    journal = folder / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        line["t"] += off_s
        if line.get("event") == "account":
            account = line["account"]
            account["clocks"] = [[at, more + off_s] for at, more in account["clocks"]]
            account["began_unix_s"] += off_s
            account["ended_unix_s"] += off_s if account["ended_unix_s"] else 0.0
            account["off_s"] = off_s
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = of_run(folder)
    assert found["wrong"] == []
    for name in ("ettr", "badput", "causes", "seconds", "phase"):
        assert found[name] == told.ledger[name], name
    assert [i["lasted_s"] for i in found["incidents"]] == [i["lasted_s"] for i in told.ledger["incidents"]]
    for group, seconds in told.ledger["groups"].items():
        assert found["groups"][group]["productive"] == pytest.approx(seconds["productive"], abs=BEAT_S)


@pytest.mark.parametrize(("moved_to", "differs"), [(Cause.STRAGGLING, False), (Cause.QUORUM, True)])
def test_the_leader_alone_knows_of_a_slow_group_that_was_no_incident(
    tmp_path: Path, moved_to: Cause, differs: bool
) -> None:
    folder, _ = unpack(tmp_path)
    history = read("toy", folder, folder.parent / ".supervisor")
    account = history.account
    assert account is not None
    seconds = dict(account.seconds)
    part = seconds[Cause.PRODUCTIVE] / 5
    seconds[Cause.PRODUCTIVE] -= part
    seconds[moved_to] = seconds.get(moved_to, 0.0) + part
    history.account = replace(account, seconds=seconds)
    span = Span(account.began_unix_s, account.ended_unix_s)
    ledgers = {group: of_group(history, group, span) for group in (0, 1)}
    assert bool(in_short(history, ledgers, span).apart) is differs
