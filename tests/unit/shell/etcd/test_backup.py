"""The backup file, the refusals of a restore, and its writes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fault_injection.doubles.memory_store import MemoryStore
from supervisor.cli import app
from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Checkpoint
from supervisor.core.model.spec import (
    AllocationSpec,
    EnvSpec,
    HooksSpec,
    RunSpec,
    SlurmSpec,
    TitanSpec,
    TrainerSpec,
)
from supervisor.core.remediation.restore import DECISIONS, GENERATIONS
from supervisor.ports.errors import Fatal, Retryable
from supervisor.ports.store import MAX_OPERATIONS
from supervisor.shell.control import cordons, journal, observe, projection
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.control.version_guard import why_not
from supervisor.shell.etcd import backup
from supervisor.wire import checkpoints, keys
from supervisor.wire.checks import CheckResult
from supervisor.wire.records import (
    CheckpointMark,
    Control,
    EpochsBefore,
    LeaderRecord,
    NodeCheck,
    NodeDesired,
    Registration,
    Removed,
    RunRecord,
    decode,
    encode,
)
from supervisor.wire.security import SecurityError, secret_in
from tests.unit.shell.records import INCIDENT, MEMORY, SPEC

NO_ETCD = "127.0.0.1:9"

ODD = keys.PREFIX + "runs/run/odd\udcff"
LEADER = encode(LeaderRecord(host="h", pid=3, home=""))


def _state(run_dir: str, **changes: Any) -> dict[str, bytes]:
    memory = replace(MEMORY, **changes)
    return {
        keys.spec("run"): encode(RunRecord(spec=SPEC, run_dir=run_dir, launched_unix_s=0.0)),
        keys.control("run"): encode(Control(restarts={0: 2})),
        keys.desired("gone", "run"): encode(NodeDesired(node="gone")),
        ODD: b"\xff\xfe",
        **projection.memory_records(SPEC, memory, (INCIDENT,)),
        **projection.intent_records(SPEC, run_dir, memory),
    }


def test_a_removed_runs_numbers_are_not_used_again_after_a_restore() -> None:
    """Its name may have been used since the backup."""
    store = _filled()
    removed = Removed(run_dir="/r", generation=4, lighthouse=2, allocations=7, incidents=3)
    store.put(keys.removed("old"), encode(removed))
    written = backup.plan(backup.take(store)).records[keys.removed("old")]
    after = decode(written, Removed)
    assert after == Removed(
        run_dir="/r",
        generation=4 + GENERATIONS,
        lighthouse=2 + GENERATIONS,
        allocations=7 + GENERATIONS,
        incidents=3 + GENERATIONS,
    )


def _filled(run_dir: str = "/nowhere", **changes: Any) -> MemoryStore:
    store = MemoryStore()
    store.commit(_state(run_dir, **changes))
    store.put(keys.LEADER, LEADER)
    store.put(keys.registration("n1"), b"an agent's")
    return store


def _mark(run_dir: Path, step: int, group: int, generation: int, complete: bool = True) -> str:
    folder = checkpoints.folder_of(str(run_dir)) / f"step-{step}.g{group}.gen{generation}"
    folder.mkdir(parents=True)
    if complete:
        mark = CheckpointMark(step=step, path=str(folder), group=group, generation=generation)
        (folder / checkpoints.MARKER).write_bytes(encode(mark))
    return str(folder)


def _held(store: MemoryStore) -> dict[str, bytes]:
    return {item.key: item.value for item in store.list("").items}


@pytest.mark.parametrize("name", ["state.json", "state.json.gz"])
def test_the_file_gives_back_what_was_taken_and_is_its_owners_alone(name: str, tmp_path: Path) -> None:
    made = backup.take(_filled())
    backup.write(made, tmp_path / name)
    assert backup.read(tmp_path / name) == made
    assert made.runs == ["run"]
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [name]


KEY = b"0123456789abcdef"


def test_a_keyed_backup_is_read_with_its_key_alone(tmp_path: Path) -> None:
    made, file, plain = backup.take(_filled()), tmp_path / "b.json", tmp_path / "plain.json"
    backup.write(made, file, KEY)
    backup.write(made, plain)
    assert backup.read(file, KEY) == made
    with pytest.raises(Fatal, match=r"b\.json was made with --key: give the same file"):
        backup.read(file)
    with pytest.raises(Fatal, match=r"b\.json is not what was written with this key: .* another backup"):
        backup.read(file, KEY[::-1])
    with pytest.raises(Fatal, match=r"plain\.json has no digest by a key"):
        backup.read(plain, KEY)


@pytest.mark.parametrize("name", ["revision", "epochs_before", "made", "records"])
def test_a_keyed_backup_that_another_changed_is_refused(name: str, tmp_path: Path) -> None:
    """Its sha256 does not help: one who changes the records makes a new one."""
    file = tmp_path / "b.json"
    backup.write(backup.take(_filled()), file, KEY)
    body = json.loads(file.read_text())
    if name == "records":
        body["records"] = body["records"][1:]
        body["sha256"] = backup._digest(body["records"])
    else:
        body[name] = "1"
    file.write_text(json.dumps(body))
    with pytest.raises(Fatal, match="is not what was written with this key"):
        backup.read(file, KEY)


def test_a_file_of_another_in_the_way_is_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    """Else a folder that others may write into gives them the backup, or another file of ours."""
    out, other = tmp_path / "b.json", tmp_path / "other"
    other.write_text("mine")
    out.symlink_to(other)
    (tmp_path / f".b.json.{os.getpid()}.tmp").symlink_to(other)  # a name that can be guessed
    backup.write(backup.take(_filled()), out)
    assert other.read_text() == "mine"
    assert not out.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o600


def test_what_nodes_would_run_is_shown_and_acts_on_no_terminal(tmp_path: Path) -> None:
    slurm = SlurmSpec(setup="module load x\nrun me: nothing", agent_command="box agent", flags=("--a b",))
    spec = RunSpec(
        name="run",
        trainer=TrainerSpec(command=("python", "a b.py")),
        allocation=AllocationSpec(engine="slurm", slurm=slurm),
        env=EnvSpec(set={"LD_PRELOAD": "/x\x1b[2J.so"}),
        hooks=HooksSpec(before=("stage",), after=("tidy", "-f")),
    )
    store = MemoryStore()
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir="/r", launched_unix_s=0.0)))
    assert backup.commands(backup.take(store)) == [
        "run run has nodes run or load:",
        "  trainer.command:",
        "    python 'a b.py'",
        "  hooks.before:",
        "    stage",
        "  hooks.after:",
        "    tidy -f",
        "  allocation.slurm.setup:",
        "    module load x",
        "    run me: nothing",
        "  allocation.slurm.agent_command:",
        "    box agent",
        "  allocation.slurm.flags:",
        "    '--a b'",
        "  env.set:",
        "    LD_PRELOAD=/x␛[2J.so",
    ]


def test_restore_shows_it_before_it_asks_etcd_and_a_dry_run_asks_none(tmp_path: Path) -> None:
    file, key = tmp_path / "b.json", tmp_path / "key"
    spec = replace(SPEC, titan=TitanSpec(recipe="mine:model"))
    store = _filled()
    store.put(keys.spec("run"), encode(RunRecord(spec=spec, run_dir="/nowhere", launched_unix_s=0.0)))
    backup.write(backup.take(store), file)
    dry = CliRunner().invoke(app, ["restore", str(file), "--dry-run", "--etcd", NO_ETCD])
    assert dry.exit_code == 0, dry.output
    assert "  titan.recipe:\n    mine:model\n" in dry.output
    assert "run run: starts again" in dry.output
    assert "has no digest by a key" in dry.output
    assert "nothing is written" in dry.output
    wet = CliRunner().invoke(app, ["restore", str(file), "--etcd", NO_ETCD])
    assert wet.exit_code == 1
    assert "    mine:model\n" in wet.output
    key.write_bytes(KEY + b"\n")
    key.chmod(0o644)
    for command in (["restore", str(file)], ["backup", "--out", str(tmp_path / "c.json")]):
        told = CliRunner().invoke(app, [*command, "--key", str(key), "--etcd", NO_ETCD])
        assert (told.exit_code, told.output) == (
            2,
            f"supervisor: others than its owner may use the key {key}: run `chmod 600 {key}`\n",
        )
    key.chmod(0o600)
    key.write_bytes(b"\n")
    with pytest.raises(SecurityError, match="has fewer than 16 bytes"):
        secret_in(key)
    key.write_bytes(KEY + b"\n")
    assert secret_in(key) == KEY


def test_what_hangs_on_a_lease_or_is_an_agents_is_left_out() -> None:
    assert set(backup.take(_filled()).records) == set(_state("/nowhere"))


def _lose(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _swap(content: bytes) -> bytes:
    return content.replace(b"a person", b"nobody").replace(b'\\"decisions\\":4', b'\\"decisions\\":5')


@pytest.mark.parametrize(
    ("name", "harm", "why"),
    [
        ("a.json", _lose, "torn, or not a backup"),
        ("a.json.gz", _lose, "torn, or not a backup"),
        ("a.json", _swap, "do not match its sha256"),
        ("a.json", lambda _: b"[]", "not a backup of this program"),
        ("a.json", lambda _: b'{"what":"supervisor-backup"}', "of a newer program"),
        ("a.json", lambda c: c.replace(b'"format": 1', b'"format": 2'), "of a newer program"),
        ("a.json", lambda c: c.replace(b'"revision"', b'"revisions"'), "torn, or not a backup"),
        ("a.json", lambda _: b"\xff\xfe", "torn, or not a backup"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(name: str, harm: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / name
    backup.write(backup.take(_filled()), path)
    harmed = harm(path.read_bytes())
    assert harmed != path.read_bytes()
    path.write_bytes(harmed)
    with pytest.raises(Fatal, match=why):
        backup.read(path)


def test_a_record_of_a_newer_version_is_refused_by_its_key(tmp_path: Path) -> None:
    store = _filled()
    store.put(keys.control("run"), b'{"$kind":"Control","$version":2}')
    backup.write(backup.take(store), tmp_path / "b.json")
    with pytest.raises(Fatal, match=r"runs/run/control: version 2 is newer"):
        backup.read(tmp_path / "b.json")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    out.mkdir()  # a folder, which no file can replace
    with pytest.raises(OSError):
        backup.write(backup.take(_filled()), out)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["", "no/such/file.json"])
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    with pytest.raises(OSError, match="the backup cannot be written") as error:
        backup.write(backup.take(_filled()), out)
    assert error.value.filename == str(out)
    assert list(tmp_path.iterdir()) == []


def test_every_number_grows_and_the_epoch_with_them(tmp_path: Path) -> None:
    made = backup.take(_filled())
    fresh = MemoryStore()
    backup.restore(fresh, made, tmp_path / "b")
    mirror = Mirror(fresh.list(keys.PREFIX))
    after = observe.memory(mirror, "run")
    assert observe.epochs_before(mirror) == made.revision + backup.EPOCHS
    assert after.phase == "new"
    assert {g: m.generation for g, m in after.groups.items()} == {0: 1 + GENERATIONS, 1: 2 + GENERATIONS}
    assert after.decisions > MEMORY.decisions
    assert after.incidents == {}
    assert decode(mirror.items[keys.incident("run", "i1")].value, Incident).state == "halted"
    again = backup.take(fresh)
    second = MemoryStore()
    backup.restore(second, again, tmp_path / "b")
    base = decode(_held(second)[keys.EPOCHS_BEFORE], EpochsBefore)
    assert base.count == observe.epochs_before(mirror) + again.revision + backup.EPOCHS


def test_the_journal_of_a_run_that_starts_again_says_why(tmp_path: Path) -> None:
    made = backup.take(_filled(str(tmp_path)))
    fresh = MemoryStore()
    backup.restore(fresh, made, tmp_path / "b")
    intent, outcome = journal.read(tmp_path / "journal.jsonl")
    base = observe.epochs_before(Mirror(fresh.list(keys.PREFIX)))
    assert (intent["entry"], intent["epoch"], outcome["entry"], outcome["epoch"]) == ("intent", base, "outcome", base)
    assert intent["decision"] == outcome["decision"] == MEMORY.decisions + DECISIONS
    assert [a["verb"] for a in intent["actions"]] == ["resume"]
    assert "restored from a backup" in intent["actions"][0]["reason"]


def test_nodes_are_told_that_nothing_is_wanted_of_them_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    store = _filled()
    fresh = MemoryStore()
    backup.restore(fresh, backup.take(store), tmp_path / "b")
    held = _held(fresh)
    for node in ("gone", "n1"):
        assert decode(held[keys.desired(node, "run")], NodeDesired) == NodeDesired(node=node)
    assert held[ODD] == b"\xff\xfe"
    assert held[keys.control("run")] == _held(store)[keys.control("run")]
    assert held[keys.spec("run")] == _held(store)[keys.spec("run")]
    assert keys.RESTORING not in held
    assert keys.LEADER not in held


def test_a_run_whose_memory_cannot_be_read_is_restored_as_it_is_and_named(tmp_path: Path) -> None:
    store = _filled()
    store.put(keys.memory("run", "run"), b"{torn")
    fresh = MemoryStore()
    plan = backup.restore(fresh, backup.take(store), tmp_path / "b")
    assert _held(fresh)[keys.memory("run", "run")] == b"{torn"
    assert any("run is left alone" in sentence for sentence in plan.sentences)


# --- checkpoints ---


def test_the_newest_complete_checkpoint_on_disk_wins(tmp_path: Path) -> None:
    old = _mark(tmp_path, 5, 0, 1)
    new = _mark(tmp_path, 9, 1, 3)
    _mark(tmp_path, 12, 1, 4, complete=False)
    found, said = backup.newest_checkpoint(str(tmp_path), Checkpoint(5, old, 0, 1))
    assert found == Checkpoint(9, new, 1, 3)
    assert "step 9" in said
    assert "the backup says step 5" in said


def test_a_pointer_that_is_still_the_newest_is_kept(tmp_path: Path) -> None:
    path = _mark(tmp_path, 5, 0, 1)
    pointer = Checkpoint(5, path, 0, 1)
    assert backup.newest_checkpoint(str(tmp_path), pointer) == (pointer, "step 5, as the backup says")


def test_a_pointer_that_was_purged_gives_way_to_what_is_there(tmp_path: Path) -> None:
    path = _mark(tmp_path, 4, 0, 1)
    found, _ = backup.newest_checkpoint(
        str(tmp_path), Checkpoint(5, str(tmp_path / "checkpoints/step-5.g0.gen1"), 0, 1)
    )
    assert found == Checkpoint(4, path, 0, 1)


def test_with_nothing_complete_or_nothing_to_see_the_pointer_is_kept_and_it_is_said(tmp_path: Path) -> None:
    pointer = Checkpoint(5, "/elsewhere/step-5.g0.gen1", 0, 1)
    found, said = backup.newest_checkpoint(str(tmp_path), pointer)
    assert found == pointer
    assert "cannot be seen from here" in said
    _mark(tmp_path, 4, 0, 1, complete=False)
    found, said = backup.newest_checkpoint(str(tmp_path), pointer)
    assert found == pointer
    assert "no complete checkpoint" in said


def test_generations_of_torn_checkpoints_count_too(tmp_path: Path) -> None:
    _mark(tmp_path, 12, 1, 44, complete=False)
    fresh = MemoryStore()
    backup.restore(fresh, backup.take(_filled(str(tmp_path))), tmp_path / "b")
    assert observe.memory(Mirror(fresh.list(keys.PREFIX)), "run").groups[1].generation == 44 + GENERATIONS


# --- obstacles to a restore ---


def test_a_leader_and_a_state_that_is_there_are_in_the_way(tmp_path: Path) -> None:
    made = backup.take(_filled())
    led = MemoryStore()
    led.put(keys.LEADER, LEADER)
    with pytest.raises(Fatal, match=r"the supervisor h:3 leads: stop every supervisor"):
        backup.restore(led, made, tmp_path / "b")
    full = _filled()
    full.commit({}, [keys.LEADER])
    with pytest.raises(Fatal, match=r"holds \d+ keys of this program already \(runs run\)"):
        backup.restore(full, made, tmp_path / "b")
    assert full.revision == 5, "nothing was written"


def test_agents_that_have_come_back_first_are_not_in_the_way(tmp_path: Path) -> None:
    fresh = MemoryStore()
    registration = encode(
        Registration(node="n1", address="a", role="trainer", allocation="x", slots=1, agent_pid=1, version="")
    )
    fresh.put(keys.registration("n1"), registration)
    backup.restore(fresh, backup.take(_filled()), tmp_path / "b")
    assert _held(fresh)[keys.registration("n1")] == registration


class Dying(MemoryStore):
    """Goes away after some transactions, as when the restoring process is killed."""

    left = 0

    def commit(self, *arguments: Any, **others: Any) -> int:
        if not self.left:
            raise Retryable("gone")
        self.left -= 1
        return super().commit(*arguments, **others)


def _large() -> backup.Backup:
    groups = {g: GroupMemory(group=g, generation=1) for g in range(250)}
    store = _filled()
    store.put(keys.memory("run", "run"), encode(Memory(phase="running")))
    for g, group in groups.items():
        store.put(keys.memory("run", f"group-{g}"), encode(group))
    return backup.take(store)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_restore_that_died_half_way_is_seen_and_made_whole_by_the_same_command(after: int, tmp_path: Path) -> None:
    made = _large()
    store = Dying()
    store.left = after
    with pytest.raises(Fatal, match="half way"):
        backup.restore(store, made, tmp_path / "b")
    mirror = Mirror(store.list(keys.PREFIX))
    assert "was interrupted" in why_not(mirror, mirror.items)
    assert keys.spec("run") not in mirror.items, "the run's own record comes last"
    with pytest.raises(Fatal, match="was interrupted"):
        backup.take(store)
    store.left = 99
    store.put(keys.control("other"), b"left by another, older file")
    backup.restore(store, made, tmp_path / "b")
    whole = MemoryStore()
    plan = backup.restore(whole, made, tmp_path / "b")
    assert _held(store) == _held(whole) == plan.records
    mirror = Mirror(store.list(keys.PREFIX))
    assert why_not(mirror, mirror.items) == ""


def test_a_supervisor_that_comes_in_between_stops_the_restore(tmp_path: Path) -> None:
    class Led(MemoryStore):
        def commit(self, puts: Any, deletes: Any = (), expect: Any = (), lease: int = 0) -> int:
            revision = super().commit(puts, deletes, expect, lease)
            if keys.RESTORING in puts:
                self.put(keys.LEADER, LEADER)
            return revision

    store = Led()
    with pytest.raises(Fatal, match="wrote to it meanwhile"):
        backup.restore(store, _large(), tmp_path / "b")
    assert keys.spec("run") not in _held(store)


def test_chunks_are_transactions_by_number_and_by_size() -> None:
    most = MAX_OPERATIONS - 1
    small = backup._chunks({f"k{n}": b"x" for n in range(2 * most + 52)} | {keys.spec("r"): b"s"})
    assert [len(part) for part in small] == [most, most, 53]
    assert keys.spec("r") in small[-1]
    large = backup._chunks({f"k{n}": b"x" * 400_000 for n in range(5)})
    assert [len(part) for part in large] == [2, 2, 1]
    assert backup._chunks({}) == [{}]


def _checked(node: str, state: Any, host: str = "", began: int = 0) -> dict[str, bytes]:
    said = CheckResult(name="disk", outcome=state, evidence="it is a disk")
    record = NodeCheck(node=node, host=host or node, state=state, why="by hand", began=began, results=(said,))
    return {keys.check(node): encode(record)}


def test_failed_checks_come_back_and_no_others(tmp_path: Path) -> None:
    store = _filled()
    checks = (
        _checked("n1", "failed", began=7), _checked("n2", "passed"), _checked("n3", "failed"),
        _checked("n3.9", "passed", host="n3"),
    )  # fmt: skip
    for found in checks:
        store.commit(found)
    taken = backup.take(store)
    fresh = MemoryStore()
    backup.restore(fresh, taken, tmp_path / "file")
    there = Mirror(fresh.list(keys.PREFIX))
    assert there.of_sort("check") == [keys.check("n1")]
    assert cordons.by_host(there)["n1"].why == "its checks failed on node n1 (by hand): disk: it is a disk"
    assert cordons.newest_checks(there)["n1"][1].began == 0, "no suspicion here is older than it"


@pytest.mark.parametrize("node", ["n1", "n1.8"])
def test_what_an_agents_checks_say_in_the_new_etcd_is_newer(node: str, tmp_path: Path) -> None:
    store = _filled()
    store.commit(_checked("n1", "failed"))
    fresh = MemoryStore()
    fresh.commit(_checked(node, "passed", host="n1"))
    backup.restore(fresh, backup.take(store), tmp_path / "file")
    assert "n1" not in cordons.by_host(Mirror(fresh.list(keys.PREFIX)))


def test_the_systems_name_comes_back_and_alone_is_no_state(tmp_path: Path) -> None:
    """A scheduler knows its jobs by it; and a supervisor that was started once in the new etcd has made another."""
    old = _filled()
    old.put(keys.SYSTEM, b"abc")
    made = backup.take(old)
    fresh = MemoryStore()
    fresh.put(keys.SYSTEM, b"other")
    backup.restore(fresh, made, tmp_path / "file")
    item = fresh.get(keys.SYSTEM)
    assert item is not None
    assert item.value == b"abc"
    # one from before there were names changes none
    bare = MemoryStore()
    bare.put(keys.SYSTEM, b"other")
    backup.restore(bare, backup.take(_filled()), tmp_path / "file")
    item = bare.get(keys.SYSTEM)
    assert item is not None
    assert item.value == b"other"
