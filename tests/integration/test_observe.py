"""The recommended first week: everything is decided and written down, and nothing is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.core.model import Kind
from tests.helpers.waiting import eventually
from tests.integration.outage import passes
from tests.integration.test_cli import cli
from tests.integration.world import LEASE_S, toy_spec, world

pytestmark = pytest.mark.etcd


def test_a_crash_is_only_observed_until_a_person_asks_for_a_restart(tmp_path: Path) -> None:
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
