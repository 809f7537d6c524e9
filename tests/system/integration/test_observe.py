"""The recommended first week: everything is decided and written down, and nothing is done."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from fault_injection.testbed.waiting import eventually
from fault_injection.testbed.world import LEASE_S, toy_spec, world
from supervisor.core.model.kinds import Kind, Rung
from supervisor.shell.control import journal
from tests.real_trainers.test_lighthouse import joint, quorum_spec, trains
from tests.system.integration.outage import passes
from tests.system.integration.test_cli import cli

pytestmark = pytest.mark.etcd


@pytest.mark.long
def test_a_crash_is_a_shadow_until_a_person_asks_for_a_restart(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        w.supervisor()
        record = w.launch(toy_spec(mode="observe"))
        eventually(w.running(record, 1, 1), 60, "both groups run")
        w.kill_trainer(record, 1)
        eventually(lambda: w.incidents(record), 30, "it is seen")
        passes(2 * LEASE_S)
        assert [(i.kind, i.shadow, i.state) for i in w.incidents(record)] == [(Kind.CRASH, True, "open")]
        state = w.status(record)
        assert [g.generation for g in state.groups] == [1, 1]
        assert state.budgets_left["restart:1"] == record.spec.policy.budget.restart
        printed = cli("incidents", "--shadow", world=w).stdout
        assert "1 would have been acted on, 0 recovered by themselves, 1 still open" in printed
        assert "(shadow)" in printed
        explained = cli("explain", "i1", world=w)
        assert explained.returncode == 0, explained.stdout + explained.stderr
        assert "would have been done: rung 1 (restart)" in explained.stdout

        assert cli("restart", "1", world=w).returncode == 0
        eventually(w.running(record, 1, 2), 60, "a person's wish is done")
        found = json.loads(cli("incidents", "--shadow", "--json", world=w).stdout)
        assert [(i["id"], i["state"]) for i in found] == [("i1", "halted")]
        w.check(record)


@pytest.mark.long
def test_by_a_policy_set_on_a_live_run_a_stopped_rank_is_a_shadow_that_recovers_by_itself(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        record = trains(w, quorum_spec(groups=2, mode="quorum"))
        assert "toy: as launched" in cli("policy", "show", world=w).stdout
        said = cli("policy", "set", "mode=observe", "silent_timeout_s=3", "--because", "the first week", world=w)
        assert (said.returncode, said.stdout) == (0, "toy: policy version 1: mode=observe, silent_timeout_s=3\n")
        shown = cli("policy", "show", world=w).stdout
        for words in ("toy: version 1, because: the first week", 'mode = "observe"', "silent_timeout_s = 3.0"):
            assert words in shown

        def journaled() -> list[tuple[int, str, str]]:
            lines = journal.read(Path(record.run_dir) / "journal.jsonl")
            told = [line for line in lines if line.get("event") == "policy"]
            return [(line["version"], line["because"], line["policy"]["mode"]) for line in told]

        eventually(journaled, 30, "the leader has it")
        assert journaled() == [(1, "the first week", "observe")]

        pid = w.trainer(record, 1).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: any(i.shadow for i in w.incidents(record)), 60, "it is stopped for too long")
            passes(LEASE_S)
            printed = cli("incidents", "--shadow", world=w).stdout
            assert "1 would have been acted on, 0 recovered by themselves, 1 still open" in printed
        finally:
            os.kill(pid, signal.SIGCONT)
        joint(w, record, time.time())
        eventually(lambda: not w.status(record).incidents_open, 30, "it is over")
        printed = cli("incidents", "--shadow", world=w).stdout
        assert "1 would have been acted on, 1 recovered by themselves, 0 still open" in printed
        (incident,) = (i for i in w.incidents(record) if i.shadow)
        assert (incident.kind, incident.group, incident.rung) == (Kind.HANG, 1, Rung.RESTART)
        assert [g.generation for g in w.status(record).groups] == [1, 1]
        assert w.trainer(record, 1).pid == pid
        w.check(record)
