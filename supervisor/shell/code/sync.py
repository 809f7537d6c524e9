"""Syncs a folder of code to a run or pool: scan, send to the leader what its store lacks, write one record (ADR 24)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from supervisor.core.model.code import SHOWN
from supervisor.ports.errors import Fatal, Fenced
from supervisor.ports.store import Expect, Store
from supervisor.shell.code.scan import IGNORE_FILE, Scanned, scan
from supervisor.shell.control import observe, pools
from supervisor.shell.control.leader import leader
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import asking, codes
from supervisor.wire import code, keys
from supervisor.wire.code_client import CodeClient, Refused, StoreError
from supervisor.wire.person import who
from supervisor.wire.records import (
    EARLIER_SYNCS,
    LeaderRecord,
    RecordError,
    Registration,
    RunRecord,
    Synced,
    SyncedCode,
    decode,
    encode,
)
from supervisor.wire.security import Security, is_loopback

MOST_MIB = 1024.0
"""Default of the most MiB of a version: far above any code, and below most data sets and checkpoints."""

NAMED = 10
"""Most paths that a note names."""

TRIES = 3
"""Times that a record is tried to be written while others change it, or the leader changes."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A sync that is done."""

    name: str
    """The run or pool."""
    version: str
    folder: str
    files: int
    bytes: int
    sent_files: int
    """Contents that the leader lacked."""
    sent_bytes: int
    seconds: float
    changed: bool
    """False if it had this version already."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"code {self.version[:SHOWN]} of {self.folder}: {self.files} file{'s' if self.files != 1 else ''}, {_mb(self.bytes)}"
        if not self.changed:
            return f"{self.name}: has {what} already"
        sent = (
            f"{self.sent_files} new, {_mb(self.sent_bytes)} sent in {self.seconds:.1f} s"
            if self.sent_files
            else "nothing new to send"
        )
        return f"{self.name}: {what}; {sent}. The next start of a group takes it"


def sync(store: Store, name: str, folder: Path, security: Security, most_mib: float = MOST_MIB) -> Done:
    """Makes a folder the code of a run or pool. Raises Fatal with what must be changed, OSError for what cannot be read."""
    began = time.monotonic()
    mirror = Mirror(store.list(keys.PREFIX))
    record = _record(mirror, name)
    _reachable(mirror, name, record)
    found = scan(folder, most_mib * 2**20)
    body = found.manifest.encode()
    version = code.digest_of(body)
    for _ in range(TRIES):
        lead = _leader(mirror)
        sent = _send(lead, security, found, body)
        synced = Synced(
            version=version, folder=str(found.folder), files=len(found.manifest.files), bytes=found.manifest.size, by=who(),
            at_unix_s=time.time(),
        )  # fmt: skip
        changed = _write(store, mirror, name, synced)
        if changed is not None:
            return Done(
                name=name,
                version=version,
                folder=synced.folder,
                files=synced.files,
                bytes=synced.bytes,
                sent_files=len(sent),
                sent_bytes=sum(sent.values()),
                seconds=time.monotonic() - began,
                changed=changed,
                notes=tuple(_notes(mirror, record, found, version)),
            )
        mirror = Mirror(store.list(keys.PREFIX))
    raise Fatal(
        f"the leader, or the code of {name}, changed again and again meanwhile: repeat this; what was sent is kept"
    )


def _record(mirror: Mirror, name: str) -> RunRecord:
    known = observe.runs(mirror)
    if name not in known:
        raise Fatal(f"there is no run or pool {name!r}; known: {', '.join(sorted(known)) or 'none'}")
    if pools.is_over(mirror, name) and known[name].spec.is_pool:
        raise Fatal(f"pool {name} has ended: hold another (supervisor hold)")
    return known[name]


def _leader(mirror: Mirror) -> LeaderRecord:
    found = leader(mirror)
    if found is None:
        raise Fatal(
            "no supervisor leads, and the leader keeps the code: start one with `supervisor up`, or wait for a standby"
        )
    if not found.page:
        raise Fatal("the leader has no listener that takes code: it is of an older version; upgrade it")
    return found


def _reachable(mirror: Mirror, name: str, record: RunRecord) -> None:
    """Raises Fatal if nodes on other machines cannot fetch from a leader that listens on loopback."""
    lead = _leader(mirror)
    if not is_loopback(urlsplit(lead.page).hostname or ""):
        return
    names = [name, record.spec.allocation.pool] if record.spec.allocation.pool else [name]
    for node in sorted({node for each in names for node in asking.nodes_of(mirror, each)}):
        registration = mirror.record(keys.registration(node), Registration)
        if registration is not None and not is_loopback(registration.address):
            raise Fatal(
                f"the leader listens at {lead.page} alone, and node {node} is at {registration.address}: start supervisors "
                "with --metrics-address, so that nodes reach them"
            )


def _send(lead: LeaderRecord, security: Security, found: Scanned, body: bytes) -> dict[str, int]:
    """Sends the leader what it lacks. Returns the sizes of that, by digest."""
    client, files = CodeClient(lead.page, security), {file.digest: file for file in found.manifest.files}
    try:
        missing = [files[digest] for digest in client.missing(body) if digest in files]
        if missing:
            client.put(found.folder, missing)  # it keeps a content only if it is what its digest says
    except StoreError as error:
        again = "" if isinstance(error, Refused) else "; what was sent is kept: repeat this"
        raise Fatal(f"{error}{again}") from error
    return {file.digest: file.size for file in missing}


def _write(store: Store, mirror: Mirror, name: str, synced: Synced) -> bool | None:
    """Writes the record, for this leader alone. Returns false if it names this version and folder already, None if something
    has changed meanwhile."""
    key, leads = keys.code(name), mirror.items.get(keys.LEADER)
    item = store.get(key)
    before = _decoded(item.value, key) if item is not None else None
    if before is not None and (before.newest.version, before.newest.folder) == (synced.version, synced.folder):
        return False
    earlier = (before.newest, *before.earlier)[:EARLIER_SYNCS] if before is not None else ()
    expect = [
        Expect(key, mod_revision=item.mod_revision if item is not None else 0),
        Expect(keys.LEADER, mod_revision=leads.mod_revision if leads is not None else 0),
    ]
    try:
        store.commit({key: encode(SyncedCode(newest=synced, earlier=earlier))}, expect=expect)
    except Fenced:
        return None
    return True


def _decoded(value: bytes, key: str) -> SyncedCode:
    try:
        return decode(value, SyncedCode)
    except RecordError as error:
        raise Fatal(f"{key} cannot be read and is left alone ({error}); delete it in etcd to go on") from error


def _notes(mirror: Mirror, record: RunRecord, found: Scanned, version: str) -> list[str]:
    """Returns what the person should know: what was left out, and who goes on with other code."""
    notes, name = [], record.spec.name
    if found.secrets:
        notes.append(f"left out, since they look like secrets: {_some(found.secrets)} (docs/CODE.md)")
    if found.others:
        notes.append(f"left out, since they are no files: {_some(found.others)}")
    users = pools.users(mirror, name, observe.runs(mirror), {}) if record.spec.is_pool else (name,)
    own = [run for run in users if run != name and keys.code(run) in mirror.items]
    if own:
        notes.append(f"with code of their own, which goes on: {_some(own)}")
    for run in users:
        if run not in own and (live := codes.others(mirror, run, version)):
            notes.append(
                f"run {run} trains on with other code in group{'s' if len(live) > 1 else ''} {', '.join(map(str, live))}, each until "
                f"its next start, beside groups that have started with this: supervisor relaunch {run} starts all with it"
            )
        if why := _elsewhere(observe.runs(mirror)[run], found.folder):
            notes.append(why)
    return notes


def _elsewhere(record: RunRecord, folder: Path) -> str:
    directory = record.spec.env.directory
    if not directory or Path(directory).is_relative_to(folder):
        return ""
    return (
        f"run {record.spec.name} starts in env.directory = {directory}, which is not in {folder}: what lies there is found "
        f"before the synced code"
    )


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 50_000 else f"{size / 1e3:.1f} kB" if size >= 1000 else f"{size} bytes"


__all__ = ["IGNORE_FILE", "MOST_MIB", "Done", "sync"]
