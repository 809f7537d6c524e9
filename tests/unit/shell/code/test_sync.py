"""A sync: what is sent, the one record that is written, and what the person is warned of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.core.model.code import CodeVersion
from supervisor.core.model.observed import Grant
from supervisor.core.model.spec import AllocationSpec, EnvSpec, GroupsSpec, RunSpec
from supervisor.ports.errors import Fatal
from supervisor.shell.code import sync as module
from supervisor.shell.code.local import tree_of
from supervisor.shell.code.sync import Done, sync
from supervisor.shell.control import observe
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import client, codes, relaunch
from supervisor.wire import keys
from supervisor.wire.code_client import Refused, StoreError
from supervisor.wire.records import EARLIER_SYNCS, LeaderRecord, RunRecord, SyncedCode, decode, encode
from supervisor.wire.security import Security
from tests.helpers.code_site import CodeSite, code_site, written
from tests.unit.shell.records import SPEC, registration, run_values


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CodeSite]:
    with code_site(tmp_path / "system") as made:
        yield made


@pytest.fixture
def store(site: CodeSite) -> MemoryStore:
    made = MemoryStore()
    made.commit({**run_values(), keys.LEADER: encode(LeaderRecord(host="h", pid=1, home="", page=site.url))})
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "code", {"a.py": "1", "b.py": "2", ".env": "K=1"})


def synced(store: MemoryStore, folder: Path, name: str = "run") -> Done:
    return sync(store, name, folder, Security())


def record(store: MemoryStore, name: str = "run") -> SyncedCode | None:
    item = store.get(keys.code(name))
    return decode(item.value, SyncedCode) if item is not None else None


def test_the_first_and_one_edit_later(store: MemoryStore, folder: Path, site: CodeSite) -> None:
    first = synced(store, folder)
    assert (first.files, first.sent_files, first.changed) == (2, 2, True)
    (folder / "a.py").write_text("3")
    second = synced(store, folder)
    assert (second.sent_files, second.sent_bytes, second.changed) == (1, 1, True)
    found = record(store)
    assert found is not None
    assert (found.newest.version, found.newest.folder) == (second.version, str(folder))
    assert [each.version for each in found.earlier] == [first.version]
    assert observe.code(Mirror(store.list(keys.PREFIX)), "run") == CodeVersion(
        version=second.version, folder=str(folder)
    )
    again = synced(store, folder)
    assert (again.changed, again.version, again.sent_files) == (False, second.version, 0)
    assert record(store) == found
    (folder / "a.py").write_text("1")
    assert synced(store, folder).sent_files == 0, "the store has it still"


def test_a_secret_is_named(store: MemoryStore, folder: Path) -> None:
    assert synced(store, folder).notes[0].startswith("left out, since they look like secrets: .env (")


def test_few_earlier_ones_are_kept(store: MemoryStore, folder: Path) -> None:
    for number in range(EARLIER_SYNCS + 3):
        (folder / "a.py").write_text(f"{number}")
        synced(store, folder)
    found = record(store)
    assert found is not None
    assert len(found.earlier) == EARLIER_SYNCS


def test_another_leader_in_between_gets_it_too(
    store: MemoryStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes ask the one that leads."""
    with code_site(tmp_path / "other") as other:
        real, times = module._send, []

        def send(*arguments: object) -> dict[str, int]:
            sent = real(*arguments)  # type: ignore[arg-type]
            if not times:
                store.put(keys.LEADER, encode(LeaderRecord(host="h2", pid=2, home="", page=other.url)))
            times.append(1)
            return sent

        monkeypatch.setattr(module, "_send", send)
        synced(store, folder)
        assert len(times) == 2
        assert len(other.blobs) == 2
    assert record(store) is not None


def test_a_client_that_ends_before_the_record_loses_nothing(
    store: MemoryStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = synced(store, folder)
    (folder / "a.py").write_text("3")
    with monkeypatch.context() as planted:
        planted.setattr(module, "_write", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            synced(store, folder)
    found = record(store)
    assert found is not None
    assert found.newest.version == first.version
    assert synced(store, folder).sent_files == 0, "what was sent is kept"


def test_groups_that_go_on_with_other_code_are_named(store: MemoryStore, folder: Path) -> None:
    notes = synced(store, folder).notes
    assert any("run run trains on with other code in group 0, each until its next start" in note for note in notes)
    assert "; group 0: what its node has" in codes.line(Mirror(store.list(keys.PREFIX)), "run")


def test_a_run_that_starts_elsewhere_is_named(store: MemoryStore, folder: Path) -> None:
    spec = replace(SPEC, env=EnvSpec(directory="/elsewhere"))
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir="/runs/run", launched_unix_s=1.0)))
    assert any("starts in env.directory = /elsewhere" in note for note in synced(store, folder).notes)
    store.put(
        keys.spec("run"),
        encode(RunRecord(spec=replace(spec, env=EnvSpec(directory=str(folder))), run_dir="/r", launched_unix_s=1.0)),
    )
    (folder / "a.py").write_text("3")
    assert not any("env.directory" in note for note in synced(store, folder).notes)


def test_the_code_of_a_run_counts_before_that_of_its_pool(store: MemoryStore, folder: Path) -> None:
    pool = RunSpec(name="lab", groups=GroupsSpec(count=0))
    store.put(keys.spec("lab"), encode(RunRecord(spec=pool, run_dir="/runs/lab", launched_unix_s=1.0)))
    spec = replace(SPEC, allocation=AllocationSpec(engine="pool", pool="lab", nodes=2))
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir="/runs/run", launched_unix_s=1.0)))
    of_pool = synced(store, folder, "lab")
    mirror = Mirror(store.list(keys.PREFIX))
    assert observe.code(mirror, "run") == observe.code(mirror, "lab")
    (folder / "a.py").write_text("3")
    own = synced(store, folder, "run")
    mirror = Mirror(store.list(keys.PREFIX))
    assert [observe.code(mirror, each).version for each in ("lab", "run")] == [of_pool.version, own.version]  # type: ignore[union-attr]
    (folder / "a.py").write_text("4")
    assert any("with code of their own, which goes on: run" in note for note in synced(store, folder, "lab").notes)


def test_what_cannot_be_synced_has_a_sentence(store: MemoryStore, folder: Path) -> None:
    with pytest.raises(Fatal, match="there is no run or pool 'none'; known: run"):
        synced(store, folder, "none")
    store.put(keys.LEADER, encode(LeaderRecord(host="h", pid=1, home="")))
    with pytest.raises(Fatal, match="has no listener that takes code"):
        synced(store, folder)
    store.commit({}, [keys.LEADER])
    with pytest.raises(Fatal, match="no supervisor leads, and the leader keeps the code"):
        synced(store, folder)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(Refused("you may not"), "you may not"), (StoreError("it broke"), "it broke; what was sent is kept: repeat this")],
)
def test_a_refusal_is_not_to_be_repeated(
    store: MemoryStore, folder: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError, sentence: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module.CodeClient, "missing", fail)
    with pytest.raises(Fatal) as failed:
        synced(store, folder)
    assert str(failed.value) == sentence
    assert record(store) is None


def test_a_leader_on_loopback_and_a_node_elsewhere_are_refused_before_anything_is_sent(
    store: MemoryStore, folder: Path, site: CodeSite
) -> None:
    grant = Grant(key="run-a1", state="granted", nodes=("n1",))
    store.commit({**registration("n1", address="10.0.0.7"), keys.grant("run", "run-a1"): encode(grant)})
    with pytest.raises(Fatal, match="--metrics-address"):
        synced(store, folder)
    assert site.blobs == []


def test_a_record_that_cannot_be_read_is_left_alone(store: MemoryStore, folder: Path) -> None:
    store.put(keys.code("run"), b"{}")
    with pytest.raises(Fatal, match="cannot be read and is left alone"):
        synced(store, folder)


def test_a_check_on_this_machine_has_the_synced_code(store: MemoryStore, folder: Path) -> None:
    with tree_of(store, "run", Security()) as tree:
        assert tree is None
    synced(store, folder)
    with tree_of(store, "run", Security()) as tree:
        assert tree is not None
        assert tree.folder == folder, "it is here, as it was synced"
    (folder / "a.py").write_text("later")
    with tree_of(store, "run", Security()) as tree:
        assert tree is not None
        assert (tree.folder / "a.py").read_text() == "1"
    assert not tree.folder.exists()


def test_a_relaunch_that_says_nothing_new_starts_all_groups_with_new_code(store: MemoryStore, folder: Path) -> None:
    def mirror() -> Mirror:
        return Mirror(store.list(keys.PREFIX))

    record = client.choose_run(mirror(), "run")
    with pytest.raises(Fatal, match="has this spec already"):
        relaunch.refuse(mirror(), record, record.spec)
    synced(store, folder)
    relaunch.refuse(mirror(), record, record.spec)
    assert "Then all start again" in relaunch.relaunch(store, mirror(), record, record.spec, "new code")
    asked = observe.observed(mirror(), "run", observe.memory(mirror(), "run"), 0.0, 0.0).relaunch
    assert asked is not None
    assert not asked.scales
    with pytest.raises(Fatal, match="has this spec already"):
        relaunch.sized(record.spec, record.spec.groups.count, None)
