"""`supervisor backup` and `restore`: save all that the supervisors know to one file, and load it into an empty etcd.

Keys on a lease or owned by an agent are left out, since they come back by themselves. Failed checks are kept: their
node may be gone.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import os
import shlex
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.core.model.decision import Action, Decision
from supervisor.core.model.memory import Memory
from supervisor.core.model.observed import Checkpoint, Observed
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import RunSpec
from supervisor.core.remediation.restore import ENDED, GENERATIONS, closed, restored
from supervisor.core.report.visible import visible
from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Expect, Item, Snapshot, Store
from supervisor.shell.control import cordons, observe, projection
from supervisor.shell.control.journal import Journal
from supervisor.shell.control.state_cache import Mirror, sort_of
from supervisor.wire import checkpoints, keys
from supervisor.wire.private_file import private_file
from supervisor.wire.records import (
    EpochsBefore,
    LeaderRecord,
    NodeCheck,
    NodeDesired,
    RecordError,
    Removed,
    Restoring,
    decode,
    encode,
    newer,
)
from supervisor.wire.version import version

FORMAT = 1
WHAT = "supervisor-backup"

KEYED = "hmac_sha256"
"""Name of the digest by a key, over all else in the file."""

EPOCHS = 1_000_000_000
"""Distance between old and new epochs. A backup misses later revisions, and an epoch is a revision. At 1000 writes a
second, etcd needs 11 days to make this many."""

CHUNK_BYTES = 1 << 20
"""Most bytes of one transaction; etcd takes 1.5 MiB by default."""


@dataclass(frozen=True, kw_only=True)
class Backup:
    """Everything under our prefix, except the agents' keys, at one revision."""

    revision: int
    epochs_before: int
    """As recorded in the etcd that was backed up."""
    records: dict[str, bytes]
    program: str = ""
    """Version of the program that wrote it."""
    made: str = ""
    """Wall clock of the machine that made it, for people only."""

    @property
    def runs(self) -> list[str]:
        return sorted(k[len(keys.RUNS) : -len("/spec")] for k in self.records if _is_spec(k))


def _is_spec(key: str) -> bool:
    return key.startswith(keys.RUNS) and key.endswith("/spec")


def _is_state(key: str) -> bool:
    """Returns true if a backup holds the key: keys of the leader, of agents and of gates are left out."""
    return key.startswith(keys.PREFIX) and key not in (keys.LEADER, keys.RESTORING) and not key.startswith(keys.NODES)


# --- the file ---


def take(store: Store) -> Backup:
    """Takes a backup of what etcd holds now. Raises Fatal if etcd holds half a restore."""
    mirror = Mirror(store.list(keys.PREFIX))
    if keys.RESTORING in mirror.items:
        raise Fatal("a restore into this etcd was interrupted: run `supervisor restore` again first")
    return Backup(
        revision=mirror.revision,
        epochs_before=observe.epochs_before(mirror),
        records={key: item.value for key, item in mirror.items.items() if _is_state(key)} | _failed_checks(mirror),
        program=version(),
        made=time.strftime("%Y-%m-%d %H:%M:%S %z"),
    )


def _failed_checks(mirror: Mirror) -> dict[str, bytes]:
    """Returns the newest failed check of each host, without its revision: another etcd counts its own."""
    found = (of_host for of_host in cordons.newest_checks(mirror).values() if of_host[1].stands == "failed")
    return {key: encode(replace(check, state="failed", began=0)) for key, check in found}


def write(backup: Backup, out: Path, key: bytes = b"") -> None:
    """Writes the file completely or not at all, for its owner only; a name in .gz compresses it. A key adds a digest that
    no one makes without it. Raises OSError."""
    records = [_as_json(name, value) for name, value in sorted(backup.records.items())]
    body = {
        "what": WHAT,
        "format": FORMAT,
        "program": backup.program,
        "made": backup.made,
        "revision": backup.revision,
        "epochs_before": backup.epochs_before,
        "sha256": _digest(records),
        "records": records,
    }
    if key:
        body[KEYED] = _keyed_digest(body, key)
    content = json.dumps(body, indent=1).encode()
    with private_file(out, "the backup") as file:
        file.write(gzip.compress(content, mtime=0) if out.suffix == ".gz" else content)


def read(path: Path, key: bytes = b"") -> Backup:
    """Reads a backup. Raises Fatal if it is torn, none, of a newer version, or not what was written with the key; OSError
    if it is unreadable."""
    content = path.read_bytes()
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        body = json.loads(content)
    except (ValueError, EOFError, OSError, RecursionError) as error:
        raise Fatal(f"{path} is torn, or not a backup: {error}") from error
    if not isinstance(body, dict) or body.get("what") != WHAT:
        raise Fatal(f"{path} is not a backup of this program")
    if not isinstance(body.get("format"), int) or body["format"] > FORMAT:
        raise Fatal(f"{path} is of a newer program ({body.get('program')}): restore it with that one")
    _check_key(path, body, key)
    try:
        if _digest(body["records"]) != body["sha256"]:
            raise Fatal(f"{path} is torn: its records do not match its sha256")
        records = dict(_from_json(entry) for entry in body["records"])
        backup = Backup(
            revision=int(body["revision"]), epochs_before=int(body["epochs_before"]), records=records,
            program=str(body["program"]), made=str(body["made"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise Fatal(f"{path} is torn, or not a backup: {error!r}") from error
    for name, value in backup.records.items():
        why = newer(value)
        if why:
            raise Fatal(f"{path} is of a newer program ({backup.program}): {name}: {why}; restore it with that one")
    return backup


def _as_json(key: str, value: bytes) -> dict[str, str]:
    try:
        return {"key": key, "value": value.decode()}
    except UnicodeDecodeError:  # foreign or corrupt: kept as it is
        return {"key": key, "base64": base64.b64encode(value).decode()}


def _from_json(entry: dict[str, str]) -> tuple[str, bytes]:
    value = entry["value"].encode() if "value" in entry else base64.b64decode(entry["base64"], validate=True)
    return entry["key"], value


def _check_key(path: Path, body: dict[str, Any], key: bytes) -> None:
    found = body.pop(KEYED, None)
    if found is None and key:
        raise Fatal(
            f"{path} has no digest by a key: it was made without --key, or another took it out. Restore it without --key only "
            "if you know who could write it"
        )
    if found is not None and not key:
        raise Fatal(f"{path} was made with --key: give the same file")
    if key and not hmac.compare_digest(str(found).encode(), _keyed_digest(body, key).encode()):
        raise Fatal(
            f"{path} is not what was written with this key: another changed it, or the key is another. Give the key of that day, or "
            "another backup"
        )


def _keyed_digest(body: dict[str, Any], key: bytes) -> str:
    return hmac.new(key, json.dumps(body, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _digest(records: list[Any]) -> str:
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


# --- back into etcd ---


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The records that a restore writes, and what becomes of each run, as sentences."""

    records: dict[str, bytes]
    sentences: tuple[str, ...]
    epoch: int
    """Above every earlier epoch, below every later one."""
    decisions: dict[Path, Decision]
    """Decisions for the journal of each run that starts again: they explain why its remaining processes are ended."""


def commands(backup: Backup) -> list[str]:
    """Returns lines that show what the backup's runs have nodes run or load. They act on no terminal, and none looks like
    one of ours: each is indented."""
    lines = []
    mirror = _mirror(backup)
    for run, record in observe.runs(mirror).items():
        asked = observe.asked_relaunch(mirror, run)
        name = repr(run) if "\n" in run else run
        specs = [(name, record.spec)] + ([(f"{name}, as it is relaunched,", asked.spec)] if asked is not None else [])
        for whose, spec in specs:
            lines.append(visible(f"run {whose} has nodes run or load:"))
            for key, text in _program_text(spec).items():
                if text:
                    lines += [f"  {key}:", *(f"    {line}" for line in visible(text).split("\n"))]
    return lines


def _program_text(spec: RunSpec) -> dict[str, str]:
    slurm = spec.allocation.slurm
    return {
        "titan.recipe": "" if spec.trainer.command else spec.titan.recipe,
        "trainer.command": shlex.join(spec.trainer.command),
        "hooks.before": shlex.join(spec.hooks.before),
        "hooks.after": shlex.join(spec.hooks.after),
        "allocation.slurm.setup": slurm.setup,
        "allocation.slurm.agent_command": slurm.agent_command,
        "allocation.slurm.flags": shlex.join(slurm.flags),
        "env.set": "\n".join(f"{name}={value}" for name, value in sorted(spec.env.set.items())),
    }


def _mirror(backup: Backup) -> Mirror:
    items = tuple(Item(key, value, 1, 1) for key, value in backup.records.items())
    return Mirror(Snapshot(backup.revision, items))


def plan(backup: Backup) -> Plan:
    """Plans a restore: raises every number that must only grow, and resumes unfinished runs from checkpoints."""
    mirror = _mirror(backup)
    records = {key: value for key, value in backup.records.items() if not key.startswith(keys.DESIRED)}
    sentences: list[str] = []
    decisions: dict[Path, Decision] = {}
    for run, record in observe.runs(mirror).items():
        try:
            memory = observe.memory(mirror, run)
        except observe.Unreadable as error:
            sentences.append(f"{error}; restored as it is")
            continue
        checkpoint, said = newest_checkpoint(record.run_dir, memory.checkpoint)
        after = restored(memory, record.spec.groups, checkpoint, checkpoints.generations(record.run_dir))
        records |= projection.memory_records(record.spec, after, tuple(map(closed, memory.incidents.values())))
        records |= projection.intent_records(record.spec, record.run_dir, after)
        # Nodes that still run a part of the run must end it. A missing key would not say so.
        for key in mirror.keys(keys.DESIRED):
            if key.endswith(f"/{run}"):
                records[key] = encode(NodeDesired(node=key[len(keys.DESIRED) :].split("/", 1)[0]))
        sentences.append(_sentence(run, after, said))
        if after.phase not in ENDED:
            reason = Reason.of(Code.BACKUP_RESTORED, made=backup.made, checkpoint=said)
            action = Action(verb="resume", key=f"restore:{after.decisions}", reason=reason)
            decisions[Path(record.run_dir)] = Decision(memory=after, actions=(action,))
    for key in mirror.of_sort("removed"):
        # the name may have been used again since the backup
        if (removed := mirror.record(key, Removed)) is not None:
            numbers = ("generation", "lighthouse", "allocations", "incidents")
            records[key] = encode(replace(removed, **{n: getattr(removed, n) + GENERATIONS for n in numbers}))
    epoch = backup.epochs_before + backup.revision + EPOCHS
    records[keys.EPOCHS_BEFORE] = encode(EpochsBefore(count=epoch))
    return Plan(records=records, sentences=tuple(sentences), epoch=epoch, decisions=decisions)


def newest_checkpoint(run_dir: str, pointer: Checkpoint | None) -> tuple[Checkpoint | None, str]:
    """Returns the newest complete checkpoint that exists, and a sentence that names it. The backup's pointer may be
    older than the disk, and purged since."""
    folder = checkpoints.folder_of(run_dir)
    kept = f"the backup's pointer is kept: step {pointer.step}" if pointer is not None else "the backup names none"
    if not folder.is_dir():
        return pointer, f"its checkpoints in {folder} cannot be seen from here; {kept}"
    marks = [mark for _, _, mark in checkpoints.listed(run_dir) if mark is not None]
    if pointer is not None:
        own = checkpoints.mark_of(Path(pointer.path))
        marks += [own] if own is not None else []
    if not marks:
        return pointer, f"no complete checkpoint is in {folder}; {kept}"
    best = max(marks, key=lambda mark: (mark.step, mark.generation))
    found = Checkpoint(best.step, best.path, best.group, best.generation)
    if pointer is not None and (found.step, found.path) == (pointer.step, pointer.path):
        return found, f"step {found.step}, as the backup says"
    before = f"the backup says step {pointer.step}" if pointer is not None else "the backup names none"
    return found, f"step {found.step}, the newest complete one in {folder}; {before}"


def _sentence(run: str, memory: Memory, checkpoint: str) -> str:
    if memory.phase in ENDED:
        return f"run {run}: it had {'ended' if memory.phase == 'finished' else memory.phase}, and stays so"
    if memory.phase == "stopping":
        return f"run {run}: it was stopping, and will stop"
    generations = ", ".join(str(g.generation) for _, g in sorted(memory.groups.items()))
    return f"run {run}: starts again with generations {generations} of its groups; checkpoint: {checkpoint}"


def restore(store: Store, backup: Backup, file: Path) -> Plan:
    """Writes the plan into an etcd that holds nothing of ours. Raises Fatal if something is in the way.

    A marker keeps every supervisor from leading meanwhile, and vanishes with the last transaction. So an interrupted
    restore is detected, and the same command completes it.
    """
    found = store.list(keys.PREFIX)
    _refuse(found)
    wanted = _without_what_nodes_say(plan(backup), Mirror(found))
    there = {item.key: item for item in found.items}
    mark = encode(Restoring(file=str(file.resolve()), host=socket.gethostname(), pid=os.getpid()))
    known = there[keys.RESTORING].mod_revision if keys.RESTORING in there else 0
    nobody = Expect(keys.LEADER, create_revision=0)
    try:
        revision = store.commit({keys.RESTORING: mark}, expect=[nobody, Expect(keys.RESTORING, mod_revision=known)])
        ours = [nobody, Expect(keys.RESTORING, mod_revision=revision)]
        stale = [key for key in there if _is_state(key) and key not in wanted.records and key != keys.SYSTEM]
        for start in range(0, len(stale), MAX_OPERATIONS):
            store.commit({}, stale[start : start + MAX_OPERATIONS], ours)
        journals = _begin_journals(backup, wanted)
        parts = _chunks(wanted.records)
        for part in parts[:-1]:
            store.commit(part, (), ours)
        revision = store.commit(parts[-1], [keys.RESTORING], ours)
        for journal, decision in journals:
            journal.outcome(wanted.epoch, decision.memory.decisions, revision)
    except Fenced as error:
        raise Fatal(
            f"a supervisor or another restore wrote to it meanwhile ({error}): stop it, then restore again"
        ) from error
    except Retryable as error:
        raise Fatal(
            f"the restore stopped half way: {error}. No supervisor leads until you run the same command again"
        ) from error
    return wanted


def _without_what_nodes_say(wanted: Plan, there: Mirror) -> Plan:
    """Drops old checks from the plan: agents may have reached the new etcd first, and their checks are newer."""
    told = cordons.newest_checks(there)

    def older(key: str, value: bytes) -> bool:
        if sort_of(key) != "check":
            return False
        return key in there.items or decode(value, NodeCheck).host in told

    return replace(wanted, records={key: value for key, value in wanted.records.items() if not older(key, value)})


def _begin_journals(backup: Backup, wanted: Plan) -> list[tuple[Journal, Decision]]:
    """Journals the restore before it writes to etcd, because agents end unwanted processes as soon as they read of
    them. Runs whose folder is not on this machine are skipped."""
    found = [(Journal(d / "journal.jsonl"), decision) for d, decision in wanted.decisions.items() if d.is_dir()]
    for journal, decision in found:
        journal.intent(
            wanted.epoch, Observed(revision=backup.revision, now=decision.memory.clock, store_stable_s=0.0), decision
        )
    return found


def _refuse(found: Snapshot) -> None:
    there = {item.key: item for item in found.items}
    if keys.LEADER in there:
        try:
            leader = decode(there[keys.LEADER].value, LeaderRecord)
            who = f"the supervisor {leader.host}:{leader.pid} leads"
        except RecordError:
            who = "a supervisor leads"
        raise Fatal(f"{who}: stop every supervisor of this etcd first")
    # our name alone is no state: a started supervisor, or a mere query for one, leaves it behind
    state = [key for key in there if _is_state(key) and key != keys.SYSTEM]
    if state and keys.RESTORING not in there:
        runs = sorted(k[len(keys.RUNS) : -len("/spec")] for k in state if _is_spec(k))
        what = f"runs {', '.join(runs)}" if runs else f"{state[0]} and the like"
        raise Fatal(
            f"this etcd holds {len(state)} keys of this program already ({what}), and a restore overwrites nothing: give an empty "
            f"etcd, or delete them with `etcdctl del --prefix {keys.PREFIX}`"
        )


def _chunks(records: dict[str, bytes]) -> list[dict[str, bytes]]:
    """Splits the records into transactions; those that make a run exist come last. Never empty."""
    parts: list[dict[str, bytes]] = [{}]
    size = 0
    for key in sorted(records, key=lambda key: (_is_spec(key), key)):
        size += len(key) + len(records[key])
        # one operation is left for the marker
        if parts[-1] and (len(parts[-1]) >= MAX_OPERATIONS - 1 or size > CHUNK_BYTES):
            parts.append({})
            size = len(key) + len(records[key])
        parts[-1][key] = records[key]
    return parts
