"""An incident from the journal, and the same decisions made again."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.decide import decide
from supervisor.core.model.decision import Decision
from supervisor.core.model.kinds import Kind, Rung
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import ControlView, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import FirstRungSpec, RunSpec
from supervisor.core.report import words
from supervisor.core.report.decision_diff import Answer
from supervisor.ports.errors import Fatal
from supervisor.shell.control import decision_inputs, projection
from supervisor.shell.control.build_info import program
from supervisor.shell.control.journal import Journal
from supervisor.shell.control.loop import ROUTINE
from supervisor.shell.inspect import decision_replay, render
from supervisor.wire import keys
from supervisor.wire.records import Account, RunRecord, encode
from tests.helpers.reasons import text
from tests.unit.core.world import World
from tests.unit.shell.records import mirror_of

EPOCH = 7


class Journaled(World):
    """A world whose every decision is in a journal, as the loop writes it."""

    def __init__(self, folder: Path, **about: Any) -> None:
        super().__init__(**about)
        self.journal = Journal(folder / "journal.jsonl")
        self.keep_inputs = True
        self.epoch = EPOCH
        self.dies = False
        """True to die at the failpoint `committed`, in the next round with a decision."""
        self.digests: dict[str, bytes] = {}

    def round(self, after: float = 0.0) -> Decision:
        before = self.memory
        decision = super().round(after)
        told = decision.incidents or any(a.verb not in ROUTINE for a in decision.actions)
        given = self.journal.take(self.observed_then(), self.spec, before) if told and self.keep_inputs else None
        if decision.memory is not before:
            self.journal.intent(self.epoch, self.observed_then(), decision, before, given, 3)
        if given is not None:
            by = projection.Decider(self.epoch, "head", program(), 3)
            self.digests |= projection.digest_record("run", decision, by, given.digest)
        if decision.memory is not before and self.dies:
            self.epoch, self.dies = self.epoch + 30, False
            self.journal.event("term", epoch=self.epoch)
            return decision
        if decision.memory is not before:
            self.journal.outcome(self.epoch, decision.memory.decisions, self.rounds)
        if given is not None:
            self.journal.keep(given)
        return decision

    def observed(self) -> Observed:
        self._seen = super().observed()
        return self._seen

    def observed_then(self) -> Observed:
        return self._seen


def crashed(folder: Path, inputs_kept: bool = True) -> Journaled:
    """A world in which a group crashed, was started again and is back."""
    world = Journaled(folder)
    world.bring_up()
    world.keep_inputs = inputs_kept
    world.crash(1)
    world.round(1.0)
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)
    return world


def page(world: Journaled) -> str:
    return "\n".join(decision_replay.page(decision_replay.why(world.incident, world.journal.path)))


def test_a_page_tells_when_what_and_why_and_gives_the_same_answer(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    told = decision_replay.why(world.incident, world.journal.path)
    assert told.same
    assert [d.known for d in told.decided] == [True] * len(told.decided)
    text = "\n".join(decision_replay.page(told))
    i = world.incident
    assert i.acted is not None
    assert i.recovered is not None
    assert i.decided is not None
    for part in (
        f"Incident {i.id}: group 1, rank 0, on node {i.node}: crash (certain)",
        " UTC, by the clock of the machine that led",
        f"decided   {i.decided - i.opened:.2f} s later",
        f"acted     {i.acted - i.decided:.2f} s later",
        f"back      {i.recovered - i.acted:.2f} s later, {i.recovered - i.opened:.2f} s after it was detected",
        "What was done: rung 1 (restart).",
        "What each would cost",
        f"+0.00 s  decision {told.decided[0].decision} (epoch 7, policy version 3)",
        f"      start group 1 generation 2 on {i.node}: ",
        f"+{i.recovered - i.opened:.2f} s  decision {told.decided[1].decision} (epoch 7, policy version 3)",
        "      it is recovered",
        "Asked again today, with what was seen then: the same answer (decisions ",
        f"Decided by {program()}; asked again with {program()}.",
    ):
        assert part in text, part
    assert "What else was considered" not in text or i.considered


def test_it_is_a_page(tmp_path: Path) -> None:
    """The page is a screen or two, in spite of the run's other events."""
    world = crashed(tmp_path)
    lines = decision_replay.page(decision_replay.why(world.incident, world.journal.path))
    assert len(lines) < 50


def test_another_answer_is_said_with_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = crashed(tmp_path)

    def dearer(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        policy = replace(spec.policy, first_rung=FirstRungSpec(crash="replace"))
        return decide(observed, replace(spec, policy=policy), memory)

    monkeypatch.setattr(decision_replay, "decide", dearer)
    told = decision_replay.why(world.incident, world.journal.path)
    assert not told.same
    text = "\n".join(decision_replay.page(told))
    assert "Asked again today: ANOTHER ANSWER (decision " in text
    assert f"incident {world.incident.id}: rung was '1', today it is '2'" in text


def test_other_words_are_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = crashed(tmp_path)

    def reworded(observed: Observed, spec: RunSpec, memory: Memory) -> Decision:
        made = decide(observed, spec, memory)
        return replace(made, actions=tuple(replace(a, reason=text("because")) for a in made.actions))

    monkeypatch.setattr(decision_replay, "decide", reworded)
    told = decision_replay.why(world.incident, world.journal.path)
    assert told.same
    assert "the same is done, in other words (decision" in "\n".join(decision_replay.page(told))


def test_why_nothing_was_done_yet_is_found_however_it_is_worded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_WORDS", dict.fromkeys(Code, "so it is"))
    world = Journaled(tmp_path)
    world.bring_up()
    world.control = ControlView(paused=True)
    world.crash(1)
    world.round(1.0)
    assert "Why not at once:\n  - so it is" in page(world)


def test_one_of_a_paused_run_says_that_nothing_was_done_and_why(tmp_path: Path) -> None:
    """It still gives the reason, once it was decided on."""
    world = Journaled(tmp_path)
    world.bring_up()
    world.control = ControlView(paused=True)
    world.crash(1)
    world.round(1.0)
    paused = "group 1: rank 0 was ended by SIGSEGV (signal 11); the run is paused, nothing is done"
    text = page(world)
    assert "Nothing was done yet: nothing was decided.\nWhy not at once:\n  - " + paused in text
    assert f"it is open, as crash; {paused}" in text
    assert "What was done" not in text
    table = Console(width=200, file=io.StringIO())
    table.print(render.incidents([world.incident]))
    assert isinstance(table.file, io.StringIO)
    assert "    Nothing was done yet: nothing was decided." in table.file.getvalue()
    assert "rung" not in table.file.getvalue()
    world.control = ControlView()
    world.round(90.0)
    world.recover(1)
    text = page(world)
    assert "decided   90.00 s later" in text
    assert "What was done: rung 1 (restart)." in text
    assert f"Why not at once:\n  - {paused}" in text


def test_one_whose_kind_changed_says_when_it_was_which(tmp_path: Path) -> None:
    """Its gate fell silent on it, and then its process was seen to have ended."""
    world = Journaled(tmp_path)
    world.bring_up()
    world.hear(1, "silent")
    world.round(1.0)
    assert world.incident.kind == Kind.SILENT
    world.crash(1)
    world.round(4.0)
    assert world.incident.kind == Kind.CRASH
    text = page(world)
    assert ", as silent" in text
    assert "  crash     4.00 s later: only now it counted as that" in text
    assert "before it counted as a failure" not in text


def test_a_climb_is_told_with_its_rung(tmp_path: Path) -> None:
    """Its decision may have actions that name no incident."""
    world = crashed(tmp_path)
    told = decision_replay.why(world.incident, world.journal.path)
    first, *others = told.decided
    then = replace(world.incident, state="acting", rung=Rung.REALLOCATE, reason=Reason.of(Code.TEXT, text="the spare is gone"), acted=None,
                   recovered=None, decided=first.clock)  # fmt: skip
    climbed = replace(first, own=(), then=Answer((), (then,)))
    assert "      it is decided: rung 3 (reallocate): the spare is gone" in decision_replay.page(
        replace(told, decided=(climbed, *others))
    )


def test_a_journal_without_the_input_says_so(tmp_path: Path) -> None:
    world = crashed(tmp_path, inputs_kept=False)
    told = decision_replay.why(world.incident, world.journal.path)
    assert not told.same
    assert "not known (decisions" in page(world)
    assert "the older version that wrote it kept none" in page(world)


def test_inputs_that_had_to_go_are_said_to_be_gone(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    (tmp_path / decision_inputs.NAMES[0]).unlink()
    assert f"its input is not in {tmp_path} any more: the newest 256 MiB are kept" in page(world)
    assert "copy inputs.jsonl" in page(world)


def test_what_was_refused_was_not_decided(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    lines = world.journal.path.read_text().splitlines()
    first = decision_replay.why(world.incident, world.journal.path).decided[0]
    refused = next(
        json.loads(x) for x in lines if f'"decision":{first.decision},' in x and '"entry":"intent"' in x
    ) | {"epoch": 6}  # fmt: skip
    outcome = {"entry": "outcome", "epoch": 6, "decision": first.decision, "revision": None, "refused": "another leads"}
    world.journal.path.write_text(
        "\n".join([json.dumps(refused, separators=(",", ":")), json.dumps(outcome, separators=(",", ":")), *lines])
        + "\n"
    )
    assert [d.epoch for d in decision_replay.why(world.incident, world.journal.path).decided] == [EPOCH] * 2


def test_one_whose_number_the_next_leader_gave_again_is_not_told(tmp_path: Path) -> None:
    """The number went to a decision without actions, whose leader died before its outcome and had not found the
    first."""
    world = crashed(tmp_path)
    path = world.journal.path
    first, last = (d.decision for d in decision_replay.why(world.incident, path).decided)
    assert last > first
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    path.unlink()
    append(path, *(x for x in lines if (x.get("decision"), x["entry"]) != (last, "outcome")))
    again = {**lines[-1], "entry": "intent", "epoch": EPOCH + 30, "decision": last, "actions": [], "incidents": []}
    append(path, again | {"changed": False})
    assert [d.decision for d in decision_replay.why(world.incident, path).decided] == [first, last], (
        "it only waits, and has found it"
    )
    stale = {"epoch": EPOCH + 20, "changed": True}
    append(path, again | stale, {**again, **stale, "entry": "outcome", "refused": "another leads"})
    assert [d.decision for d in decision_replay.why(world.incident, path).decided] == [first, last], (
        "it knew less than etcd"
    )
    append(path, again | {"changed": True}, again | {"changed": True, "decision": last + 1})
    assert [d.decision for d in decision_replay.why(world.incident, path).decided] == [first]


def test_one_without_an_outcome_is_told_with_a_doubt(tmp_path: Path) -> None:
    """Its supervisor died between the commit and the line."""
    world = crashed(tmp_path)
    last = decision_replay.why(world.incident, world.journal.path).decided[-1]
    path = world.journal.path
    path.write_text(
        "".join(
            x
            for x in path.read_text().splitlines(True)
            if f'"decision":{last.decision},"revision"' not in x or '"outcome"' not in x
        )
    )
    told = decision_replay.why(world.incident, path)
    assert [d.known for d in told.decided] == [True, False]
    assert "whether it took effect is not in the journal" in page(world)


def killed(folder: Path, after: float = 1.0) -> Journaled:
    """A group crashed, and the supervisor was killed once it had committed its decision: the next one went on."""
    world = Journaled(folder)
    world.bring_up()
    world.crash(1)
    world.dies = True
    world.round(after)
    assert world.epoch > EPOCH
    world.recover(1)
    while world.memory.incidents:
        world.round(1.0)
    return world


def append(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def test_one_whose_supervisor_was_killed_as_it_decided_is_told_from_the_one_journal_that_there_is(
    tmp_path: Path,
) -> None:
    world = killed(tmp_path)
    told = decision_replay.why(world.incident, world.journal.path)
    first, second = told.decided
    assert (first.epoch, second.epoch) == (EPOCH, EPOCH + 30), "in the order in which they were made"
    assert (first.known, second.known) == (True, True), "the second one was made on the first"
    assert told.gaps == ()
    text = "\n".join(decision_replay.page(told))
    at = datetime.fromtimestamp(decision_replay.seen(world.journal.path)["i1"], UTC)
    assert f"detected  {at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 10000:02d} UTC" in text
    assert "another machine" not in text
    assert "whether it took effect" not in text
    ended = "its input was not written: its supervisor ended as it decided"
    assert f"not known (decision {first.decision}): {ended}." in text
    assert f"the same answer (decision {second.decision})." in text
    assert not told.same


def led_on(world: Journaled, *epochs: int) -> None:
    """Keeps the lines of these leaders alone, by wall clocks that the test knows. The first one led for 30 s more, and
    changed nothing. 2 s later the next one began, where the run clock had stood 32 s before."""
    lines = [json.loads(line) for line in world.journal.path.read_text().splitlines()]
    told = [line | {"t": 5000.0 + line.get("now", 0.0) + 32.0 * (line["epoch"] > EPOCH)} for line in lines]
    world.journal.path.unlink()
    append(world.journal.path, *(line for line in told if line["epoch"] in epochs))


ONE, BOTH = (EPOCH,), (EPOCH, EPOCH + 30)


@pytest.mark.parametrize("after", [1.0, 1.00004, 1.00006])
@pytest.mark.parametrize(("epochs", "in_etcd"), [(BOTH, False), (BOTH, True), (ONE, True)])
def test_what_the_run_clock_does_not_have_is_part_of_how_long_it_took(
    tmp_path: Path, epochs: tuple[int, ...], in_etcd: bool, after: float
) -> None:
    """It was detected at 6003 s of the wall clock, and back at 6036 s. The source is the account in etcd, with any
    journals here, or both journals. The rounding in the journal may shift the last decision of a term."""
    world = killed(tmp_path, after)
    led_on(world, *epochs)
    stood = ((world.incident.opened, 32.0),) if in_etcd else ()
    text = "\n".join(decision_replay.page(decision_replay.why(world.incident, world.journal.path, stood=stood)))
    for part in (
        "  acted     33.00 s later: its new processes were seen",
        "  back      0.00 s later, 33.00 s after it was detected",
        "  (32.00 s of it are not on the run clock: another supervisor took the lead)",
        "  +0.00 s  decision 4 (epoch 7, ",
        *(["  +33.00 s  decision 5 (epoch 37, "] if epochs == BOTH else []),
    ):
        assert part in text, part
    assert "nobody led" not in text, "30 of the 32 s somebody did"


def test_where_one_led_all_the_time_the_run_clock_has_it_all(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    assert "not on the run clock" not in page(world)
    stood = ((world.incident.opened - 1.0, 500.0), (world.incident.recovered or 0.0, 500.0))
    told = decision_replay.page(decision_replay.why(world.incident, world.journal.path, stood=stood))
    assert told == decision_replay.page(decision_replay.why(world.incident, world.journal.path)), (
        "it was over, or had not begun"
    )


def test_what_was_not_committed_when_its_supervisor_was_killed_was_not_decided(tmp_path: Path) -> None:
    """The next one gave its number again: here, or on another machine, as its digest in etcd shows."""
    world = killed(tmp_path)
    path = world.journal.path
    first, second = decision_replay.why(world.incident, path).decided
    digests = decision_replay.digests(mirror_of(world.digests), "run", world.incident.id)
    anew = tuple(replace(d, epoch=EPOCH + 9) if d.decision == first.decision else d for d in digests)
    assert [d.decision for d in decision_replay.why(world.incident, path, anew).decided] == [second.decision]
    about = {"t": 1.0, "epoch": EPOCH + 9, "decision": first.decision}
    waits = {**about, "entry": "intent", "waits": ["group 1: it is started"]}
    append(path, waits)
    assert len(decision_replay.why(world.incident, path).decided) == 2, (
        "one that only waits has the number of the one before it"
    )
    append(path, {**about, "entry": "intent"}, {**about, "entry": "outcome", "refused": ""})
    assert [d.decision for d in decision_replay.why(world.incident, path).decided] == [second.decision]


def test_what_a_store_that_went_away_left_open_has_its_input(tmp_path: Path) -> None:
    """Its supervisor went on, and kept it: if it is missing, there is another reason."""
    world = killed(tmp_path)
    first = decision_replay.why(world.incident, world.journal.path).decided[0]
    path = world.journal.path
    append(path, {"entry": "event", "event": "outcome_unknown", "epoch": first.epoch, "decision": first.decision})
    assert "any more: the newest" in page(world)


def test_one_of_which_nothing_is_told_but_etcds_digest_took_effect(tmp_path: Path) -> None:
    world = Journaled(tmp_path)
    world.bring_up()
    world.crash(1)
    world.dies = True
    world.round(1.0)
    digests = decision_replay.digests(mirror_of(world.digests), "run", world.incident.id)
    assert [d.known for d in decision_replay.why(world.incident, world.journal.path).decided] == [False]
    assert [d.known for d in decision_replay.why(world.incident, world.journal.path, digests).decided] == [True]


def test_without_a_journal_etcds_digests_say_where_it_is(tmp_path: Path) -> None:
    world = crashed(tmp_path / "there")
    found = decision_replay.digests(mirror_of(world.digests), "run", world.incident.id)
    assert [d.decision for d in found] == [
        d.decision for d in decision_replay.why(world.incident, world.journal.path).decided
    ]
    told = decision_replay.why(world.incident, tmp_path / "here" / "journal.jsonl", found)
    text = "\n".join(decision_replay.page(told))
    assert not told.same
    assert f"decision {found[0].decision} (epoch 7, on head, by {program()}): start:1:2" in text
    assert "Ask on head, or with --journal FILE." in text


def without(path: Path, decision: int) -> None:
    """Removes a decision, as in the journal of a machine whose supervisor did not lead then."""
    lines = path.read_text().splitlines(True)
    path.write_text("".join(x for x in lines if f'"decision":{decision},' not in x))


@pytest.mark.parametrize("nth", [0, 1])
def test_what_another_machine_decided_is_told_by_its_digest_and_is_not_the_same_answer(
    tmp_path: Path, nth: int
) -> None:
    world = crashed(tmp_path)
    found = decision_replay.digests(mirror_of(world.digests), "run", world.incident.id)
    without(world.journal.path, found[nth].decision)
    told = decision_replay.why(world.incident, world.journal.path, found)
    assert not told.same
    lines = decision_replay.page(told)
    (short,) = [n for n, line in enumerate(lines) if f"decision {found[nth].decision} (epoch 7, on head, by " in line]
    (whole,) = [n for n, line in enumerate(lines) if f"decision {found[1 - nth].decision} (epoch 7, policy " in line]
    assert (short < whole) == (nth == 0), "in the order in which they were made"
    gap = f"Asked again today: not known: decision {found[nth].decision} was made on head, whose journal has it."
    assert gap in lines
    assert f"the same answer (decision {found[1 - nth].decision})." in "\n".join(lines)


@pytest.mark.parametrize(("nth", "what"), [(0, "how it began"), (1, "how it went on")])
def test_so_it_is_when_etcd_has_no_digest_of_it_any_more(tmp_path: Path, nth: int, what: str) -> None:
    world = crashed(tmp_path)
    without(world.journal.path, decision_replay.why(world.incident, world.journal.path).decided[nth].decision)
    told = decision_replay.why(world.incident, world.journal.path)
    assert not told.same
    assert f"Asked again today: not known: {what} is in another machine's journal." in decision_replay.page(told)


def test_a_journal_of_a_program_that_had_other_kinds(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    path = world.journal.path
    path.write_text(path.read_text().replace('"kind":"crash"', '"kind":"gremlin"'))
    with pytest.raises(Fatal, match=r"line of decision \d+ of epoch 7 is from another version"):
        decision_replay.why(world.incident, path)


def test_when_an_incident_was_seen_is_what_its_page_says(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    found = decision_replay.seen(world.journal.path)
    assert list(found) == ["i1"]
    at = datetime.fromtimestamp(found["i1"], UTC)
    assert f"detected  {at:%Y-%m-%d %H:%M:%S}" in page(world)
    assert decision_replay.seen(tmp_path / "none") == {}


# --- the command ---


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["explain", *arguments], env={"COLUMNS": "400"})
    return result.exit_code, result.stdout, result.stderr


def test_the_command_reads_a_journal_alone(tmp_path: Path) -> None:
    world = crashed(tmp_path)
    journal = str(world.journal.path)
    code, out, _ = run("i1", "--journal", journal)
    assert code == 0
    assert out.splitlines() == decision_replay.page(decision_replay.why(world.incident, world.journal.path))
    code, out, _ = run("i1", "--journal", journal, "--json")
    body = json.loads(out)
    assert (code, body["id"], body["kind"], body["same_today"]) == (0, "i1", "crash", True)
    assert {a["verdict"] for a in body["asked_again"]} == {"same"}


def test_its_exit_codes(tmp_path: Path) -> None:
    world = crashed(tmp_path, inputs_kept=False)
    journal = str(world.journal.path)
    assert run("i1", "--journal", journal)[0] == 1
    code, _, err = run("i9", "--journal", journal)
    assert (code, "has no incident 'i9'; known: i1" in err) == (1, True)
    code, _, err = run("i1", "--journal", str(tmp_path / "none"))
    assert (code, "there is no journal" in err) == (1, True)
    assert run("i1", "--journal", journal, "--run", "run")[0] == 2
    assert run()[0] == 2


def in_etcd(world: Journaled, monkeypatch: pytest.MonkeyPatch, account: Account | None = None) -> None:
    """Sets the records that a command reads in etcd."""
    record = encode(RunRecord(spec=world.spec, run_dir=str(world.journal.path.parent), launched_unix_s=0.0))
    values = projection.memory_records(world.spec, world.memory, (world.incident,))
    values |= {keys.spec("run"): record, **world.digests}
    values |= {} if account is None else {keys.account("run"): encode(account)}

    def connect(*_: object, **__: object) -> MemoryStore:
        store = MemoryStore()
        for key, value in values.items():
            store.put(key, value)
        return store

    monkeypatch.setattr(common, "connect", connect)


def test_it_tells_as_long_as_the_list_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account in etcd gives the time: the next leader's journal is on another machine."""
    world = killed(tmp_path)
    led_on(world, *ONE)
    in_etcd(world, monkeypatch, Account(stood=((world.incident.opened, 32.0),)))
    _, out, _ = run("i1", "--run", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path))
    assert "33.00 s after it was detected" in out
    assert (
        "  33 s\n" in CliRunner().invoke(cli.app, ["incidents", "--etcd", "127.0.0.1:1"], env={"COLUMNS": "200"}).stdout
    )
    _, out, _ = run("i1", "--run", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path), "--json")
    assert json.loads(out)["stood"] == [[world.incident.opened, 32.0]]


def test_it_reads_etcd_and_the_runs_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = crashed(tmp_path)
    in_etcd(world, monkeypatch)
    code, out, _ = run("i1", "--run", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path))
    assert (code, "the same answer" in out) == (0, True)
    listed = CliRunner().invoke(cli.app, ["incidents", "--etcd", "127.0.0.1:1", "--json"])
    assert [i["seen_unix_s"] for i in json.loads(listed.stdout)] == [decision_replay.seen(world.journal.path)["i1"]]
    world.journal.path.unlink()
    assert CliRunner().invoke(cli.app, ["incidents", "--etcd", "127.0.0.1:1"]).stdout.splitlines()[1].split()[1] == "-"
    code, out, _ = run("i1", "--run", "run", "--etcd", "127.0.0.1:1", "--home", str(tmp_path))
    assert (code, "Ask on head" in out) == (1, True)
