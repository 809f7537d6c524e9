"""A run that has ended is removed whole; a live one, and all other runs, are left alone; its numbers are not used again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.incident import Suspicion
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import Lighthouse
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import GroupsSpec
from supervisor.ports.errors import Fatal, Retryable
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, removal
from supervisor.wire import keys
from supervisor.wire.records import (
    Control,
    LeaderRecord,
    NodeDesired,
    NodeObserved,
    RunRecord,
    TrainerObserved,
    encode,
)
from tests.unit.shell.records import INCIDENT, MEMORY, SPEC, run_values

OTHER = "run-2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text("{}\n")
    return tmp_path / "run"


def ended(folder: Path, phase: Any = "halted", **more: Any) -> MemoryStore:
    """A store with the run `run`, which has ended, and another run whose name begins in the same way."""
    store = MemoryStore()
    memory = replace(MEMORY, phase=phase, lighthouse=Lighthouse(generation=3), incidents={}, **more)
    store.commit(run_values(memory))
    store.commit(run_values(replace(MEMORY, phase="running"), OTHER))
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    store.put(keys.spec("run"), encode(RunRecord(spec=SPEC, run_dir=str(folder), launched_unix_s=1.0)))
    for node in ("n1", "n2"):
        for run in ("run", OTHER):
            store.put(keys.desired(node, run), encode(NodeDesired(node=node)))
    for number in range(MAX_OPERATIONS + 5):
        store.put(keys.incident("run", f"i{number}"), encode(replace(INCIDENT, id=f"i{number}", state="recovered")))
    return store


def left(store: MemoryStore) -> list[str]:
    """Returns all keys about the run `run`."""
    found = [item.key for item in store.list(keys.PREFIX).items]
    return [key for key in found if "run" in key.split("/") and OTHER not in key.split("/")]


def test_a_run_is_removed_and_nothing_of_another_one(folder: Path) -> None:
    store = ended(folder)
    others = {item.key: item.value for item in store.list(keys.PREFIX).items if item.key not in left(store)}
    assert removal.remove(store, "run", with_files=False) == ["removed run run", f"its files stay in {folder}"]
    assert left(store) == [keys.removed("run")]
    kept = {item.key: item.value for item in store.list(keys.PREFIX).items}
    assert {key: value for key, value in kept.items() if key != keys.removed("run")} == others
    assert (folder / "journal.jsonl").is_file()
    with pytest.raises(Fatal, match="there is no run 'run'; known: run-2"):
        removal.remove(store, "run", with_files=False)


def test_files_go_with_it_if_that_is_wished(folder: Path) -> None:
    (folder.parent / OTHER).mkdir()
    assert f"its folder {folder} is deleted" in removal.remove(ended(folder), "run", with_files=True)
    assert sorted(path.name for path in folder.parent.iterdir()) == [OTHER]


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("running", "is running: end it first with `supervisor stop run`"),
        ("new", "is new: end it first"),
        ("stopping", "is still stopping: repeat this when"),
    ],
)
def test_a_live_run_is_refused(folder: Path, phase: Any, words: str) -> None:
    store = ended(folder, phase)
    before = store.revision
    with pytest.raises(Fatal, match=words):
        removal.remove(store, "run", with_files=True)
    assert store.revision == before
    assert folder.is_dir()


def test_a_run_that_is_resumed_or_still_holds_nodes_is_refused(folder: Path) -> None:
    store = ended(folder)
    store.put(keys.control("run"), encode(Control(resumes=1)))
    with pytest.raises(Fatal, match="is about to be resumed"):
        removal.remove(store, "run", with_files=False)
    store.put(keys.control("run"), encode(Control()))
    store.put(keys.grant("run", "run-a1"), encode(Grant(key="run-a1", state="granted", nodes=("n1",))))
    with pytest.raises(Fatal, match="its nodes n1 are not given back"):
        removal.remove(store, "run", with_files=False)
    store.put(keys.grant("run", "run-a1"), encode(Grant(key="run-a1", state="gone", nodes=("n1",))))
    assert removal.remove(store, "run", with_files=False)


def test_a_node_that_reports_a_process_keeps_its_order_to_end_it(folder: Path) -> None:
    """Without the order its agent, once it is back, would leave the process alone for ever."""
    store = ended(folder)
    trainer = TrainerObserved(run="run", group=0, generation=1, rank=0, state="running", pid=7)
    store.put(keys.observed("n2"), encode(NodeObserved(node="n2", sequence=1, trainers=(trainer,))))
    removal.remove(store, "run", with_files=False)
    assert left(store) == [keys.desired("n2", "run"), keys.removed("run")]


def test_what_its_incidents_hold_against_a_host_stays_and_is_said(folder: Path) -> None:
    store = ended(folder)
    suspicion = Suspicion(host="n9", run="run", incident="i1", kind=Kind.NODE_LOST, at=5.0)
    store.put(keys.suspicion("n9", "run", "i1"), encode(suspicion))
    said = removal.remove(store, "run", with_files=False)
    assert said[-1].endswith("held against n9, for the other runs: supervisor uncordon n9 ends that")
    assert store.get(keys.suspicion("n9", "run", "i1")) is not None


def test_a_removal_that_was_interrupted_is_completed_before_the_name_is_used(folder: Path) -> None:
    store = ended(folder)
    deletes = [0]
    commit = store.commit

    def twice(*arguments: Any, **more: Any) -> int:
        deletes[0] += 1
        if deletes[0] > 2:
            raise Retryable("the store is away")
        return commit(*arguments, **more)

    store.commit = twice  # type: ignore[method-assign]
    with pytest.raises(Retryable):
        removal.remove(store, "run", with_files=False)
    store.commit = commit  # type: ignore[method-assign]
    assert observe.runs(Mirror(store.list(keys.PREFIX))).keys() == {OTHER}
    with pytest.raises(Fatal, match="not wholly removed: finish that with `supervisor rm run`"):
        client.launch(store, SPEC, folder.parent)
    assert removal.remove(store, "run", with_files=False) == ["removed what was left of run run"]
    assert client.launch(store, SPEC, folder.parent).spec == SPEC


@pytest.mark.parametrize("groups", [2, MAX_OPERATIONS + 20])
def test_the_next_run_of_the_name_has_a_folder_of_its_own_and_goes_on_above_the_numbers(
    folder: Path, groups: int
) -> None:
    store, said = ended(folder), list[str]()
    removal.remove(store, "run", with_files=False)
    spec = replace(SPEC, groups=GroupsSpec(count=groups, ranks_per_group=2, nodes_per_group=2))
    record = client.launch(store, spec, folder.parent, said.append)
    assert (record.run_dir, list(folder.iterdir())) == (str(folder), [])
    assert said == [f"the files of the removed run run are now in {folder}.1"]
    assert (folder.parent / "run.1" / "journal.jsonl").is_file()
    memory = observe.memory(Mirror(store.list(keys.PREFIX)), "run")
    assert memory.phase == "new"
    assert {g: group.generation for g, group in memory.groups.items()} == dict.fromkeys(range(groups), 3)
    assert {group.size for group in memory.groups.values()} == {2}
    assert (memory.allocations_above, memory.incidents_seen, memory.lighthouse.generation) == (2, 1, 3)


def test_a_launch_that_was_killed_before_its_commit_leaves_no_folder_to_set_aside(folder: Path) -> None:
    store, said = ended(folder), list[str]()
    removal.remove(store, "run", with_files=False)
    removal.set_aside(folder)
    folder.mkdir()
    client.launch(store, SPEC, folder.parent, said.append)
    assert said == []
    assert sorted(path.name for path in folder.parent.iterdir()) == ["run", "run.1"]


def test_a_name_that_was_never_used_begins_at_nothing_in_the_folder_that_there_is(folder: Path) -> None:
    """A folder without a removal may hold the checkpoints from which a run of a new etcd resumes."""
    store = MemoryStore()
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    client.launch(store, SPEC, folder.parent)
    assert (folder / "journal.jsonl").is_file()
    assert left(store) == [keys.spec("run")]
