"""The metrics that a node's agent exports of its groups and ranks, and those that it drops when a group leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.agent.exporter import Exporter
from agents.agent.node_view import View
from agents.agent.reporter import Standing
from agents.shim.settings import Settings
from supervisor.shell.metrics.catalogue import CATALOGUE
from supervisor.wire.records import Healing, Health, ProcessRecord, Progress


class Node:
    """One agent's exporter, and what its node runs."""

    def __init__(self, tmp_path: Path) -> None:
        self.exporter = Exporter("n1", "0.1.0")
        self.view = View(Settings(node="n1", home=tmp_path, etcd=("127.0.0.1:1",)))
        self.tmp_path = tmp_path

    def run(self, name: str, **about: Any) -> ProcessRecord:
        record = ProcessRecord(name=name, pid=1, start_ticks=1, folder=str(self.tmp_path / name), **about)
        self.view.put(record)
        return record

    def tell(self, group: int = 0, generation: int = 1, rank: int = 0, **about: Any) -> None:
        name = f"run.{group}.{generation}.{rank}"
        if name not in self.view.processes:
            self.run(name)
        fields = {"phase": "step", "step": 9, "commits": 4, **about}
        self.exporter.progress(
            name, Progress(run="run", group=group, generation=generation, rank=rank, pid=1, sequence=1, **fields)
        )

    def drop(self, name: str) -> None:
        self.view.drop(name)
        self.exporter.dropped(name)

    def look(self) -> None:
        health = Health(
            node="n1", sequence=1, warm="ready", disk_free_bytes=7, memory_available_bytes=8, load_1m=0.1, problems=("a",)
        )  # fmt: skip
        self.exporter.node(self.view, health, Standing(store_up=True, lease_held=True, written=3))

    def value(self, name: str, **labels: object) -> float | None:
        return self.exporter._metrics.registry.get_sample_value(name, {k: str(v) for k, v in labels.items()})

    def names(self) -> set[str]:
        return {
            f.name + ("_total" if f.type == "counter" else "")
            for f in self.exporter._metrics.registry.collect()
            if f.samples
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


GROUP = {"run": "run", "group": 0}
RANK = {**GROUP, "rank": 1}


def test_all_of_the_nodes_metrics_are_exported(node: Node) -> None:
    record = node.run("run.0.1.0", warm=True)
    node.exporter.started(record)
    node.run("lighthouse.run.1")
    node.view.hearing["run"] = {"0": "beating", "1": "silent"}
    node.tell(commits=1, loss=2.5, gradient_norm=1.25, mfu=0.4, seconds={"heal": 0.5, "productive": 3.0}, healed=True)
    node.exporter.ended(record)
    node.exporter.reported(0.004)
    node.look()
    assert node.names() == {m.name for m in CATALOGUE if m.name.startswith(("agent_", "trainer_"))}
    assert node.value("agent_info", node="n1", version="0.1.0") == 1
    assert node.value("agent_gate_groups", node="n1", run="run", hearing="silent") == 1
    assert node.value("agent_report_seconds_count", node="n1") == 1
    assert node.value("agent_reports_total", node="n1") == 3
    assert node.value("trainer_gradient_norm", **GROUP) == 1.25
    assert node.value("trainer_mfu_ratio", **GROUP, rank=0) == 0.4
    assert node.value("trainer_heal_seconds_sum", run="run") == 0.5
    assert node.value("trainer_seconds_total", **GROUP, cause="productive") == 3.0


def test_a_groups_numbers_are_told_by_its_rank_0_alone(node: Node) -> None:
    node.tell(rank=1, loss=2.5, tokens_per_s=100.0, step_s=2.0, compute_s=1.25, data_s=0.5)
    assert node.value("trainer_loss", **GROUP) is None
    assert node.value("trainer_commits_total", **GROUP) is None
    assert node.value("trainer_tokens_per_second", **RANK) == 100.0
    phases = {p: node.value("trainer_step_seconds", **RANK, phase=p) for p in ("data", "compute", "wait")}
    assert phases == {"data": 0.5, "compute": 1.25, "wait": 0.25}


def test_who_stands_still_has_no_throughput(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    at = [0.0]
    monkeypatch.setattr("agents.agent.exporter.time.monotonic", lambda: at[0])

    def told(group: int = 0) -> tuple[float | None, float | None]:
        labels = {"run": "run", "group": group, "rank": 0}
        return node.value("trainer_tokens_per_second", **labels), node.value("trainer_mfu_ratio", **labels)

    ordinary = {"tokens_per_s": 500.0, "mfu": 0.4, "step_s": 5.0}
    node.tell(step=10, **ordinary)
    at[0] = 14.0
    node.look()
    assert told() == (500.0, 0.4)
    at[0] = 15.1
    node.look()
    assert told() == (0.0, 0.0)
    node.tell(step=10, phase="checkpoint", **ordinary)
    assert told() == (0.0, 0.0), "it says something else, and makes no step"
    node.tell(step=11, **ordinary)
    node.look()
    assert told() == (500.0, 0.4)
    node.run("run.0.1.0", exited=True)
    node.look()
    assert told() == (0.0, 0.0), "it has ended"
    node.tell(generation=2, step=12, **ordinary)
    node.look()
    assert told() == (500.0, 0.4), "of the older process nothing is told any more"


def test_counters_go_on_over_generations(node: Node) -> None:
    node.tell(commits=1, failed_commits=1, seconds={"productive": 8.0})
    node.tell(commits=6, failed_commits=1, seconds={"productive": 12.0, "data": 1.0})
    node.tell(generation=2, commits=1, seconds={"start": 5.0, "productive": 2.0})
    assert node.value("trainer_commits_total", **GROUP) == 7
    assert node.value("trainer_failed_commits_total", **GROUP) == 1
    assert node.value("trainer_seconds_total", **GROUP, cause="productive") == 14.0
    assert node.value("trainer_seconds_total", **GROUP, cause="start") == 5.0


def test_an_agent_that_starts_again_counts_from_there(tmp_path: Path) -> None:
    """Prometheus takes the lower counters for a reset, so their new values are an increase."""
    first = Node(tmp_path)
    first.tell(commits=0, failed_commits=0)
    first.tell(commits=5000, failed_commits=70, seconds={"productive": 5000.0, "failed_step": 70.0})
    first.tell(generation=2, commits=0, failed_commits=0)
    first.tell(generation=2, commits=4000, failed_commits=50, seconds={"productive": 4000.0, "failed_step": 50.0})
    assert first.value("trainer_commits_total", **GROUP) == 9000
    node, told = Node(tmp_path), {"generation": 2, "failed_commits": 50}
    seconds = {"productive": 4001.0, "failed_step": 50.0}
    node.tell(**told, commits=4001, seconds=seconds)
    names = ("trainer_commits_total", "trainer_failed_commits_total")
    assert [node.value(name, **GROUP) for name in names] == [0, 0], "from 0 on, so that the next is an increase"
    assert [node.value("trainer_seconds_total", **GROUP, cause=cause) for cause in seconds] == [0, 0]
    node.tell(**told, commits=4003, seconds={**seconds, "productive": 4003.5, "data": 0.5})
    assert [node.value(name, **GROUP) for name in names] == [2, 0]
    causes = (*seconds, "data")
    assert [node.value("trainer_seconds_total", **GROUP, cause=cause) for cause in causes] == [2.5, 0, 0.5]
    node.tell(generation=3, commits=1, seconds={"productive": 1.0})
    assert node.value("trainer_commits_total", **GROUP) == 3, "of what starts under it nothing is left out"


def test_so_it_does_of_one_that_has_committed_nothing(node: Node) -> None:
    node.tell(commits=0, failed_commits=300, seconds={"failed_step": 300.0})
    node.tell(commits=0, failed_commits=301, seconds={"failed_step": 301.0})
    assert node.value("trainer_failed_commits_total", **GROUP) == 1
    assert node.value("trainer_seconds_total", **GROUP, cause="failed_step") == 1.0


def test_a_heal_is_that_of_a_groups_start(node: Node) -> None:
    node.tell(commits=0, step=0)
    node.tell(commits=1, seconds={"heal": 0.5}, healed=True)
    node.tell(commits=2, seconds={"heal": 0.7}, healed=True)  # it gave its state to another
    assert node.value("trainer_heal_seconds_count", run="run") == 1
    assert node.value("trainer_heal_seconds_sum", run="run") == 0.5
    assert node.value("trainer_seconds_total", **GROUP, cause="heal") == pytest.approx(0.7)


def test_a_heal_in_progress_has_the_bytes_that_came(node: Node) -> None:
    node.tell(healing=Healing(source="10.0.0.2:43", bytes=7_000, for_s=1.5))
    assert node.value("trainer_heal_bytes", **GROUP, rank=0) == 7_000
    node.tell(healing=None)
    assert node.value("trainer_heal_bytes", **GROUP, rank=0) == 0


def test_an_agent_that_starts_again_counts_no_heal_of_long_ago(node: Node) -> None:
    node.tell(commits=900, seconds={"heal": 7.5}, healed=True)
    node.tell(commits=901, seconds={"heal": 7.6}, healed=True)
    assert node.value("trainer_heal_seconds_count", run="run") is None
    node.tell(group=1, commits=1, seconds={"heal": 0.5}, healed=True)
    assert node.value("trainer_heal_seconds_sum", run="run") == 0.5, "it has just healed"


def test_who_had_nobody_to_heal_from_has_not_healed(node: Node) -> None:
    """The first group gives its state to the others at their start, and records a millisecond of `heal` for that."""
    node.tell(commits=0, step=0)
    node.tell(commits=1, seconds={"heal": 0.001})
    assert node.value("trainer_heal_seconds_count", run="run") is None
    assert node.value("trainer_seconds_total", **GROUP, cause="heal") == pytest.approx(0.001)


def test_an_older_generation_says_nothing_any_more(node: Node) -> None:
    node.tell(generation=2, loss=2.0, commits=2)
    node.tell(generation=1, loss=9.0, commits=50)
    node.tell(generation=1, loss=9.0, commits=60)
    assert node.value("trainer_loss", **GROUP) == 2.0
    assert node.value("trainer_commits_total", **GROUP) == 2


def test_a_group_that_left_is_told_no_more(node: Node) -> None:
    """It trains elsewhere, and its old numbers would stand beside its current ones."""
    for rank in (0, 1):
        node.tell(rank=rank, loss=2.0)
        node.tell(group=1, rank=rank, loss=3.0)
    node.look()
    node.drop("run.0.1.1")
    assert node.value("trainer_up", **RANK) is None
    assert node.value("trainer_loss", **GROUP) == 2.0
    node.drop("run.0.1.0")
    node.look()
    of_group = [
        s for f in node.exporter._metrics.registry.collect() for s in f.samples if s.labels.get("group") == "0"
    ]  # fmt: skip
    assert of_group == []
    assert node.value("trainer_loss", run="run", group=1) == 3.0


def test_a_generation_that_follows_on_the_same_node_keeps_its_series(node: Node) -> None:
    node.tell(loss=2.0)
    node.tell(generation=2, loss=2.5)
    node.drop("run.0.1.0")
    assert node.value("trainer_loss", **GROUP) == 2.5


def test_a_gate_that_has_ended_hears_nothing(node: Node) -> None:
    node.run("lighthouse.run.1")
    node.view.hearing["run"] = {"0": "beating"}
    node.look()
    assert node.value("agent_gate_groups", node="n1", run="run", hearing="beating") == 1
    node.run("lighthouse.run.1", exited=True, exit_code=0)
    node.look()
    assert node.value("agent_gate_groups", node="n1", run="run", hearing="beating") is None


def test_the_first_start_and_the_first_end_are_an_increase(node: Node) -> None:
    """Prometheus counts no increase for a counter that appears with 1."""
    before = node.value("agent_process_exits_total", node="n1", kind="trainer", how="signal")
    node.exporter.ended(ProcessRecord(name="run.0.1.0", pid=1, start_ticks=1, folder="", exited=True, signal=9))
    after = node.value("agent_process_exits_total", node="n1", kind="trainer", how="signal")
    assert (before, after) == (0, 1)
    assert node.value("agent_process_starts_total", node="n1", kind="lighthouse", how="cold") == 0


def test_a_cause_of_a_newer_trainer_is_other(node: Node) -> None:
    node.tell(commits=1, seconds={"dreaming": 2.0})
    assert node.value("trainer_seconds_total", **GROUP, cause="other") == 2.0
