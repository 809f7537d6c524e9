"""A policy that is changed on a live run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor import cli
from supervisor.cli import common
from supervisor.core.model.measured import Measured
from supervisor.core.model.spec import HangSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.runfile import live_policy
from supervisor.shell.runfile.parse import RunFileError
from supervisor.wire import keys
from supervisor.wire.records import NodeDesired, PolicySet, RunRecord, decode
from tests.unit.shell.control.test_loop import _loop, launched
from tests.unit.shell.records import MEMORY, SPEC, run_values

RECORD = RunRecord(spec=SPEC, run_dir="/r", launched_unix_s=0.0)


def problems(*given: str) -> list[str]:
    with pytest.raises(RunFileError) as error:
        live_policy.changed(SPEC, given)
    return error.value.problems


def test_keys_are_as_in_the_run_file_and_values_as_in_toml() -> None:
    found = live_policy.changed(
        SPEC, ["hang.factor=20", "policy.mode=observe", 'observe=["hang"]', "budget.restart = 7"]
    )
    assert found == replace(
        SPEC.policy,
        hang=replace(SPEC.policy.hang, factor=20.0),
        mode="observe",
        observe=("hang",),
        budget=replace(SPEC.policy.budget, restart=7),
    )


def test_kinds_are_keys_too_and_without_a_value_a_key_has_its_default_again() -> None:
    given = ["first_rung.crash=replace", "kind_budget.crash=2", "kind_backoff_s.oom=30", "hang.factor=20"]
    found = live_policy.changed(SPEC, given)
    assert (found.first_rung.crash, found.first_rung.oom) == ("replace", "restart")
    assert (found.kind_budget, found.kind_backoff_s) == ({"crash": 2}, {"oom": 30.0})
    assert [line for line in live_policy.lines(found) if line.startswith("kind_")] == [
        "kind_budget.crash = 2",
        "kind_backoff_s.oom = 30.0",
    ]
    assert 'first_rung.crash = "replace"' in live_policy.lines(found)
    again = [f"{pair.partition('=')[0]}=" for pair in given]
    assert live_policy.changed(replace(SPEC, policy=found), again) == SPEC.policy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("kind_budget.crash=", ("policy.kind_budget.crash: no value is set there",)),
        ("hang.factr=", ("policy.hang.factr: no value is set there",)),
        ("first_rung.node_lost=restart", ("policy.first_rung.node_lost", "'replace', 'reallocate' or 'stop'")),
        ("first_rung.leaving=restart", ("leaving is always replace: its node is about to be taken away",)),
        ("hang.factr=20", ("policy.hang.factr", "nearest: policy.hang.factor")),
        ("mode=obsrve", ("policy.mode", "nearest: 'observe'")),
        ("hang.factor=fast", ("policy.hang.factor", "number")),
        ("hang.factor=1", ("policy.hang.factor = 1: must be at least 6",)),
        ("breaker.share=2", ("policy.breaker.share = 2: a share of the run's nodes, above 0 and at most 1",)),
        ("hang.at_least_s=1", ("policy.hang.at_least_s = 1 is below",)),
        ("hang.factor", ("'hang.factor': give KEY=VALUE",)),
        ("=3", ("give KEY=VALUE",)),
        ("policy=x", ("'policy=x': policy is a table, not a key: give KEY=VALUE",)),
        ("policy.policy=x", ("policy is a table, not a key",)),
        ("..=3", ("'..=3': give KEY=VALUE",)),
        ("hang.=3", ("'hang.=3': give KEY=VALUE",)),
        ("torchft.heartbeat_timeout_ms=10", ("is not part of the policy: torchft is fixed by the run file at launch",)),
        ("groups.count=3", ("groups is fixed by the run file at launch",)),
        ("mode.now=observe", ("policy.mode.now: its parent is not a table",)),
        ("node_lease_s=9", ("cannot be changed on a live run", "only at their start")),
    ],
)
def test_what_is_wrong_is_refused_as_in_the_run_file(given: str, words: tuple[str, ...]) -> None:
    (problem,) = problems("budget.restart=5", given)
    for word in words:
        assert word in problem


def test_each_change_goes_on_from_the_one_before() -> None:
    store = MemoryStore()
    first = live_policy.set_policy(store, RECORD, ["hang.factor=20"], "slow disks")
    second = live_policy.set_policy(store, RECORD, ["mode=observe"], "a week")
    assert (first.version, second.version) == (1, 2)
    item = store.get(keys.policy("run"))
    assert item is not None
    assert decode(item.value, PolicySet) == second
    assert (second.policy.hang.factor, second.policy.mode, second.because) == (20.0, "observe", "a week")


def test_what_was_set_before_is_kept_with_why() -> None:
    store = MemoryStore()
    for number in range(live_policy.KEPT + 3):
        done = live_policy.set_policy(store, RECORD, [f"hang.factor={10 + number}"], f"why {number}")
    first, *_, last = done.earlier
    assert (len(done.earlier), first.version, last.version) == (live_policy.KEPT, 3, live_policy.KEPT + 2)
    assert (first.changes, first.because) == (["hang.factor=12"], "why 2")


def test_a_wrong_change_changes_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(RunFileError):
        live_policy.set_policy(store, RECORD, ["hang.factor=20", "mode=no"], "why")
    assert store.get(keys.policy("run")) is None


def test_of_two_at_once_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    commit = store.commit

    def another_first(*args: object, **kwargs: object) -> int:
        monkeypatch.setattr(store, "commit", commit)
        live_policy.set_policy(store, RECORD, ["hang.factor=30"], "the other")
        return commit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "commit", another_first)
    with pytest.raises(Fatal, match="someone else has set the policy of run meanwhile"):
        live_policy.set_policy(store, RECORD, ["mode=observe"], "why")
    item = store.get(keys.policy("run"))
    assert item is not None
    assert decode(item.value, PolicySet).policy == replace(SPEC.policy, hang=replace(SPEC.policy.hang, factor=30.0))


def test_lines_are_what_set_takes() -> None:
    wanted = replace(
        SPEC.policy, mode="observe", observe=("hang", "crash"), hang=HangSpec(factor=12.5), kind_budget={"crash": 2}
    )
    given = [line for line in live_policy.lines(wanted) if not line.startswith("node_lease_s")]
    assert live_policy.changed(SPEC, given) == wanted


def test_the_leader_decides_by_it_tells_the_nodes_and_journals_it(tmp_path: Path) -> None:
    store = launched(tmp_path)
    leading = _loop(store)
    leading.step()
    item = store.get(keys.spec("run"))
    assert item is not None
    live_policy.set_policy(store, decode(item.value, RunRecord), ["hang.factor=20", "term_grace_s=7"], "slow disks")
    leading.step()
    leading.step()
    desired = [decode(i.value, NodeDesired) for i in store.list(keys.DESIRED).items]
    trainers = [trainer for node in desired for trainer in node.trainers]
    assert trainers
    assert {(t.hang.factor, t.term_grace_s) for t in trainers} == {(20.0, 7.0)}
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    (said,) = [line for line in lines if line.get("event") == "policy"]
    assert (said["version"], said["because"], said["policy"]["hang"]["factor"]) == (1, "slow disks", 20.0)


def test_what_was_replaced_before_a_leader_looked_is_journaled_too(tmp_path: Path) -> None:
    store = launched(tmp_path)
    leading = _loop(store)
    leading.step()
    item = store.get(keys.spec("run"))
    assert item is not None
    record = decode(item.value, RunRecord)
    for number, looked in ((1, False), (2, True), (3, False), (4, False), (5, True)):
        live_policy.set_policy(store, record, [f"hang.factor={10 + number}"], f"why {number}")
        if looked:
            leading.step()
            leading.step()
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    said = [
        (e["version"], e["because"], e["changes"], e.get("replaced", False))
        for e in lines
        if e.get("event") == "policy"
    ]
    assert said == [(n, f"why {n}", [f"hang.factor={10 + n}"], n not in (2, 5)) for n in range(1, 6)]


def test_a_policy_that_cannot_be_read_holds_the_run(tmp_path: Path) -> None:
    store = launched(tmp_path)
    store.put(keys.policy("run"), b"{torn")
    mirror = Mirror(store.list(keys.PREFIX))
    observe.runs(mirror)
    with pytest.raises(observe.Unreadable, match="policy"):
        observe.memory(mirror, "run")


def test_a_bound_below_what_the_run_was_seen_to_take_is_refused() -> None:
    seen = Measured(start_s=120.0)
    assert live_policy.changed(SPEC, ["start_timeout_s=100"]).start_timeout_s == 100
    with pytest.raises(RunFileError, match=r"policy.start_timeout_s = 100 is below 120 s: a start has taken 120 s"):
        live_policy.changed(SPEC, ["start_timeout_s=100"], seen)
    assert live_policy.changed(SPEC, ["start_timeout_s=130"], seen).start_timeout_s == 130


def test_what_was_unsafe_before_does_not_keep_a_run_from_being_observed() -> None:
    outgrown = replace(SPEC, torchft=replace(SPEC.torchft, process_group_timeout_ms=900))
    assert live_policy.changed(outgrown, ["mode=observe"], Measured(start_s=900.0)).mode == "observe"
    with pytest.raises(RunFileError, match=r"policy.hang.at_least_s = 5 is below 5.9 s"):
        live_policy.changed(outgrown, ["hang.at_least_s=5"])


def test_the_command_holds_a_change_against_what_the_leader_has_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for given_s, code in ((100, 2), (130, 0)):
        store = MemoryStore()
        store.commit(run_values(replace(MEMORY, measured=Measured(start_s=120.0))))
        monkeypatch.setattr(common, "connect", lambda *_, store=store, **__: store)
        given = ["policy", "set", f"start_timeout_s={given_s}", "--because", "why", "--etcd", "127.0.0.1:1"]
        result = CliRunner().invoke(cli.app, given)
        assert result.exit_code == code
        assert ("supervisor: policy.start_timeout_s = 100 is below 120 s" in result.output) is (code == 2)
        assert any(keys.policy("run") in puts for puts in store.commits) is (code == 0)
    short = "policy.start_timeout_s = 130 is safe but short: three times the longest start; better 360"
    assert [line for line in result.output.splitlines() if "short" in line] == [f"supervisor: {short}"]


def test_the_command_says_where_the_file_with_the_url_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set all the same: the supervisor may be on another machine."""
    store = MemoryStore()
    store.commit(run_values(MEMORY))
    monkeypatch.setattr(store, "close", lambda: None)
    monkeypatch.setattr(common, "connect", lambda *_, **__: store)

    def said(change: str) -> str:
        given = ["policy", "set", change, "--because", "why", "--etcd", "127.0.0.1:1"]
        result = CliRunner().invoke(cli.app, given)
        assert result.exit_code == 0, result.output
        return result.output

    file = tmp_path / "url"
    assert f"{file} cannot be read here (No such file or directory); each supervisor" in said(f"webhook_file={file}")
    assert "webhook_file" not in said("hang.factor=21"), "what was so before is the doctor's to say"
    assert "cannot be read" not in said("webhook_file=")
    file.write_text("https://chat.example/hook\n")
    assert "cannot be read" not in said(f"webhook_file={file}")
