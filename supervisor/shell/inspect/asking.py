"""Asks the agents of nodes for something, through etcd, and collects their answers.

The requests are under a lease of ours: when this program ends, in whatever way, they go, and with them the answers.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from supervisor.core.model.memory import GroupMemory
from supervisor.core.model.observed import Grant
from supervisor.ports.errors import Fatal, Fenced, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Changes, Store
from supervisor.shell.control.leader import leader
from supervisor.shell.control.state_cache import Mirror
from supervisor.wire import keys, node_requests
from supervisor.wire.node_requests import AnswerPart, Item, NodeRequest
from supervisor.wire.records import NodeObserved, RecordError, Registration, decode, encode
from supervisor.wire.version import version

LEASE_S = 5
"""Seconds after which a request goes whose asker was killed. Below this a loaded machine loses leases."""
ANSWERS_WITHIN_S = 10.0
"""Seconds until the first part of an answer, which an agent writes at once."""
BEYOND_S = 15.0
"""Seconds beyond the limit of a request: the agent ends what takes too long, and says so."""
CHUNK_BYTES = 2**20
"""Most bytes of records that are written at once: etcd takes 1.5 MiB for a request by default."""
LOOK_S = 0.25

NOT_READ = "its answer cannot be read: install the same version there and here"


@dataclass(frozen=True, slots=True)
class Said:
    """A node's newest words: items, or at the end why there are no more."""

    node: str
    items: tuple[Item, ...] = ()
    last: bool = False
    error: str = ""
    """Why it did not do it, or not all of it, as a sentence without the node; empty: it did."""


def registered(mirror: Mirror) -> dict[str, Registration]:
    """Returns the nodes whose agents live, by name."""
    found = {}
    for node in mirror.nodes():
        if (record := mirror.record(keys.registration(node), Registration)) is not None:
            found[node] = record
    return found


def answers(
    store: Store, mirror: Mirror, requests: Mapping[str, NodeRequest], missing: dict[str, str]
) -> Iterator[tuple[str, list[Item]]]:
    """Asks each node, and yields its items once it has given its last; the list of a node that did not do all of it has
    what it did. `missing`: gets its sentence. Raises as `ask`."""
    items: dict[str, list[Item]] = {}
    with closing(ask(store, mirror, requests)) as said:
        for each in said:
            items.setdefault(each.node, []).extend(each.items)
            if each.error:
                missing[each.node] = each.error
            if each.last:
                yield each.node, items.pop(each.node)


def nodes_of(mirror: Mirror, run: str) -> list[str]:
    """Returns the nodes that have processes of a run, or that an engine has given for it, sorted."""
    found = {
        node
        for node in mirror.nodes()
        if (seen := mirror.record(keys.observed(node), NodeObserved)) is not None
        and any(trainer.run == run for trainer in seen.trainers)
    }
    for _, grant in mirror.records(keys.grant(run, ""), Grant):
        found.update(grant.nodes if grant.state != "gone" else ())
    return sorted(found)


def ranks(
    mirror: Mirror, run: str, group: int | None = None, rank: int | None = None
) -> dict[tuple[int, int], tuple[str, int]]:
    """Returns the running ranks of a run: (group, rank) -> node and newest generation. Only a group's own nodes count: any
    other may claim to run it."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    groups = mirror.table(keys.memory(run, "group-"), GroupMemory).values()
    seats = {(seat.node, of.group) for of in groups for seat in (*of.seats, *of.left)}
    for node in sorted({node for node, _ in seats}):
        seen = mirror.record(keys.observed(node), NodeObserved)
        for trainer in seen.trainers if seen is not None else ():
            key = trainer.group, trainer.rank
            if (
                trainer.run != run
                or (node, trainer.group) not in seats
                or trainer.state == "exited"
                or group not in (None, key[0])
                or rank not in (None, key[1])
            ):
                continue
            if key not in found or found[key][1] < trainer.generation:
                found[key] = node, trainer.generation
    return found


def node_of(mirror: Mirror, run: str, group: int, rank: int) -> str:
    """Returns the node on which a rank runs. Raises Fatal if it runs on none."""
    found = ranks(mirror, run, group, rank)
    if not found:
        raise Fatal(f"rank {rank} of group {group} of run {run} does not run now: see `supervisor status {run}`")
    return found[group, rank][0]


def ask(
    store: Store,
    mirror: Mirror,
    requests: Mapping[str, NodeRequest],
    lease_s: int = LEASE_S,
    over: threading.Event | None = None,
) -> Generator[Said, None, None]:
    """Asks each node, and yields what they say as it comes; each has one `last`. Close it to end the requests, or set
    `over` in another thread. `lease_s`: seconds after which they go when this program was killed.

    Raises Fatal if this user may not ask; Retryable if etcd is away.
    """
    agents = {node: record.version for node, record in registered(mirror).items()}
    if (leads := leader(mirror)) is not None:
        agents[node_requests.LEADER] = leads.version
    for node in requests.keys() - agents.keys():
        why = "it is not registered: its agent does not run, or does not reach etcd"
        yield Said(node, last=True, error="no supervisor leads" if node == node_requests.LEADER else why)
    wanted = {node: requests[node] for node in requests if node in agents}
    if not wanted:
        return
    request, lease = secrets.token_hex(8), store.lease(lease_s)
    puts = {node_requests.asked(node, request): encode(record) for node, record in wanted.items()}
    chunks = [*_chunks(puts)]
    try:
        revision = _first(store, chunks[0], lease.id)
        # one watch for all: there may be thousands of nodes
        with closing(store.watch(node_requests.ANSWERS, revision)) as watch:
            for chunk in chunks[1:]:
                store.commit(chunk, lease=lease.id)
            answers = _Answers(request, wanted, agents)
            while answers.left and not (over is not None and over.is_set()):
                if lease.lost:
                    raise Retryable("etcd was away for too long: the requests are gone; ask again")
                yield from answers.take(watch.poll(LOOK_S))
                yield from answers.late()
    except Fenced as error:  # this program stood still for longer than the lease
        raise Retryable(str(error)) from error
    finally:
        lease.revoke()


def _chunks(puts: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yields records that etcd takes at once: a follower's position may have kilobytes for each node."""
    chunk, size = dict[str, bytes](), 0
    for key, value in puts.items():
        if chunk and (len(chunk) == MAX_OPERATIONS or size + len(value) > CHUNK_BYTES):
            yield chunk
            chunk, size = {}, 0
        chunk[key], size = value, size + len(value)
    yield chunk


def _first(store: Store, puts: dict[str, bytes], lease: int) -> int:
    try:
        return store.commit(puts, lease=lease)
    except Fatal as error:
        raise Fatal(
            f"{error}; if etcd checks permissions: only the users `supervisor` and `root` may ask nodes, and only since "
            "`supervisor init-auth` ran in this version"
        ) from error


class _Answers:
    """The answers to one request as far as they have come."""

    def __init__(self, request: str, wanted: Mapping[str, NodeRequest], agents: Mapping[str, str]) -> None:
        """`agents`: the version of each."""
        self._request = request
        self._agents = agents
        self._began = time.monotonic()
        self._limits = {node: record.limit_s for node, record in wanted.items()}
        self._next = dict.fromkeys(wanted, 0)
        """Node -> the number of the part that comes next."""

    @property
    def left(self) -> Collection[str]:
        return self._next.keys()

    def take(self, changes: Changes | None) -> Iterator[Said]:
        if changes is None:
            return
        # those of one node come in order, after a reset too: a listing is sorted
        for item in changes.puts:
            if (node := self._node_at(item.key)) in self._next:
                yield from self._part(node, item.value)
        gone = {self._node_at(key) for key in changes.deletes}
        if changes.reset:
            there = {self._node_at(item.key) for item in changes.puts}
            gone = {node for node, number in self._next.items() if number and node not in there}
        for node in sorted(gone & self._next.keys()):
            del self._next[node]
            yield Said(node, last=True, error="its agent has ended meanwhile: ask again")

    def late(self) -> Iterator[Said]:
        """Yields an end for each node that has had its time."""
        waited_s = time.monotonic() - self._began
        for node, number in list(self._next.items()):
            if not number and waited_s > ANSWERS_WITHIN_S:
                del self._next[node]
                yield Said(node, last=True, error=self._no_answer(node))
            elif waited_s > self._limits[node] + BEYOND_S:
                del self._next[node]
                yield Said(node, last=True, error=f"it has not ended within {self._limits[node]:g} s")

    def _no_answer(self, node: str) -> str:
        theirs, ours = self._agents[node] or "unknown", version()
        who = "the leader" if node == node_requests.LEADER else "its agent"
        if theirs != ours:
            return f"{who} does not answer: it has version {theirs}, and this program {ours}; install the same there"
        return f"{who} does not answer: see its log there, and `supervisor doctor`"

    def _node_at(self, key: str) -> str:
        node, _, rest = key.removeprefix(node_requests.ANSWERS).partition("/")
        return node if rest.startswith(f"{self._request}/") else ""

    def _part(self, node: str, value: bytes) -> Iterator[Said]:
        try:
            part = decode(value, AnswerPart)
            wrong = "" if part.node == node else f"it answers in the name of {part.node!r}"
        except RecordError as error:
            part, wrong = AnswerPart(node=node, number=self._next[node]), f"its answer cannot be read: {error}"
        if wrong or part.number > self._next[node]:
            del self._next[node]
            yield Said(node, last=True, error=wrong or "a part of its answer is missing: ask again")
        elif part.number == self._next[node]:
            self._next[node] += 1
            if part.last:
                del self._next[node]
            if part.items or part.last:
                yield Said(node, part.items, part.last, part.error)
