"""Takes the requests to a node, or to the leader, from etcd, does a few at once, each in a thread of its own, and writes
the answers.

Nothing here touches the loop of the agent or leader. A request that was there before this process is not done: an earlier
one may have begun it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from supervisor.ports.errors import PortError, Retryable
from supervisor.ports.store import MAX_OPERATIONS, Item, Lease, Store
from supervisor.shell.etcd.threads import EtcdThread, pause_after
from supervisor.wire import keys, node_requests
from supervisor.wire.node_requests import AnswerPart, NodeRequest
from supervisor.wire.records import RecordError, decode, encode
from supervisor.wire.security import Security

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Requests that are done at once; the others wait."""
WAITING = 64
"""Most requests that wait; a further one is refused."""
LONGEST_S = 3600.0
"""Most seconds for a request, whatever it says, but for a mesh."""
PART_EVERY_S = 0.25
"""Seconds after which a part is written although more would fit into it."""
ENDS_WITHIN_S = 5.0
"""Seconds that the end of the agent waits for what is being done."""
LOOK_S = 0.5
"""Seconds between two looks if this agent is registered."""
LEASE_S = 30
"""Lease of the answers: they go when this agent dies. An etcd that is away for less loses none."""


@dataclass
class Job:
    """A request that is being done, or waits."""

    id: str
    request: NodeRequest
    until: float
    """Time by the monotonic clock at which it must have ended."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set once no one waits for the answer any more."""
    parts: int = 0
    begun: bool = False
    ended: bool = False

    @property
    def over(self) -> bool:
        """True once there is no time left, or no one waits."""
        return self.gone.is_set() or self.left_s <= 0

    @property
    def left_s(self) -> float:
        return self.until - time.monotonic()


class CannotDo(Exception):
    """The request cannot be done; the text says why, and what to do."""


Answer = Generator[node_requests.Item | None, None, None]
"""Yields the items of an answer. None: there is nothing new, but what there is must not wait. Raises CannotDo."""


class Inbox(EtcdThread):
    """Follows the requests to this node."""

    def __init__(
        self,
        node: str,
        etcd: Sequence[str],
        do: Callable[[NodeRequest, Job], Answer],
        registered: Callable[[], bool],
        security: Security | None = None,
        record: str = "",
    ) -> None:
        """`registered`: true once this process is the one of its name. Until then it answers nothing. `record`: the key that
        it writes when it becomes so; empty: a node's registration."""
        super().__init__("requests", "requests are taken again", etcd, security)
        self._node = node
        self._record = record or keys.registration(node)
        self._do = do
        self._registered = registered
        self._since: int | None = None
        """Revision at which this agent registered: no earlier one has begun what was asked since."""
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._running = 0
        self._lease: Lease | None = None

    def _turn(self, store: Store) -> None:
        if not self._registered():
            self._stop_now.wait(LOOK_S)
            return
        prefix = node_requests.asked(self._node, "")
        snapshot = store.list(prefix)
        self._said.well()
        if self._since is None or snapshot.revision < self._since:  # etcd counts anew after a restore
            ours = store.get(self._record)
            self._since = ours.mod_revision if ours is not None else snapshot.revision
        watch = store.watch(prefix, snapshot.revision)
        try:
            self._take(store, snapshot.items, reset=True)
            while not self._stop_now.is_set():
                changes = watch.poll(0.5)
                if not self._registered():
                    self._since = None  # another agent of this name may do what is asked meanwhile
                    return
                if changes is not None:
                    self._take(store, changes.puts, changes.deletes, changes.reset)
        finally:
            watch.close()

    def _finish(self, store: Store) -> None:
        for job in list(self._jobs.values()):
            job.gone.set()
        with self._some:  # a command must not go on without this agent
            self._some.wait_for(lambda: not self._running, ENDS_WITHIN_S)
        if self._lease is not None:
            self._lease.revoke()

    # --- requests come and go ---

    def _take(self, store: Store, puts: Sequence[Item], deletes: Sequence[str] = (), reset: bool = False) -> None:
        prefix = node_requests.asked(self._node, "")
        if reset:
            there = {item.key for item in puts}
            deletes = [prefix + name for name in self._jobs if prefix + name not in there]
        for key in deletes:
            self._end(store, key.removeprefix(prefix))
        for item in puts:
            if (name := item.key.removeprefix(prefix)) not in self._jobs:
                self._begin(store, name, item)

    def _begin(self, store: Store, name: str, item: Item) -> None:
        assert self._since is not None
        why, request = "", NodeRequest(node=self._node, what="stacks", by="", limit_s=0.0)
        try:
            request = decode(item.value, NodeRequest)
            if request.node != self._node:
                why = f"it names the node {request.node!r}"
        except RecordError as error:
            why = f"its agent cannot read the request ({error}): install the same version there and here"
        if not why and item.create_revision <= self._since:
            why = "its agent has just started, and does not know what was done of this: ask again"
        if not why and len(self._waiting) >= WAITING:
            why = f"{WAITING} requests to it wait already: ask again later"
        limit_s = request.limit_s if request.what == "mesh" else min(request.limit_s, LONGEST_S)
        job = Job(name, request, time.monotonic() + limit_s, ended=bool(why))
        self._write(store, job, (), last=bool(why), error=why)
        self._jobs[name] = job  # not before: a request whose first part is not written is taken again
        if why:
            return
        again = bool(request.position)  # a follower asks each second: its first request is worth a line
        log.log(logging.DEBUG if again else logging.INFO, "%s is asked by %s (%s)", request.what, request.by, name)
        with self._some:
            self._waiting.append(job)
        self._start_some(store)

    def _end(self, store: Store, name: str) -> None:
        job = self._jobs.pop(name, None)
        if job is None:
            return
        with self._some:
            job.gone.set()
            ours = job.ended or not job.begun
        if ours:
            self._remove(store, job)

    def _start_some(self, store: Store) -> None:
        with self._some:
            while self._waiting and self._running < AT_ONCE:
                job = self._waiting.popleft()
                if job.gone.is_set():
                    continue
                job.begun = True
                self._running += 1
                # a daemon: what hangs in the kernel must not keep the agent from its end
                threading.Thread(target=self._run_job, args=(store, job), name="request", daemon=True).start()

    # --- one request, in its own thread ---

    def _run_job(self, store: Store, job: Job) -> None:
        try:
            self._answer(store, job)
        except PortError as error:
            log.warning("the answer to request %s is not written: %s", job.id, error)
        except Exception:
            log.exception("request %s has failed", job.id)
        with self._some:
            self._running -= 1
            self._some.notify_all()
            job.ended = True
            gone = job.gone.is_set()
        try:
            if gone:
                self._remove(store, job)
        except PortError as error:  # its lease will delete it
            log.info("the answer to request %s is not deleted: %s", job.id, error)
        self._start_some(store)

    def _answer(self, store: Store, job: Job) -> None:
        held: list[node_requests.Item] = []
        held_bytes = written_bytes = 0
        written_at, error = time.monotonic(), ""
        answer: Answer | None = None
        try:
            if job.over:
                raise CannotDo("it waited longer than its limit for others before it: nothing was done")
            answer = self._do(job.request, job)
            for item in answer:
                more = 0 if item is None else node_requests.size([item])
                if held_bytes + written_bytes + more > node_requests.ANSWER_BYTES:
                    error = f"the answer is cut after {node_requests.ANSWER_BYTES // 2**20} MiB: ask for less"
                    break
                late = bool(held) and time.monotonic() - written_at >= PART_EVERY_S
                if held and (late or held_bytes + more > node_requests.PART_BYTES * 3 // 4):
                    self._write(store, job, held)
                    written_bytes, held_bytes, held, written_at = written_bytes + held_bytes, 0, [], time.monotonic()
                if item is not None:
                    held.append(item)
                    held_bytes += more
                if job.gone.is_set():
                    return
        except CannotDo as sorry:
            error = str(sorry)
        except Exception as wrong:  # whatever it is: who asks must not wait for the limit
            log.exception("request %s has failed", job.id)
            error = f"its agent has failed at it: {type(wrong).__name__}: {wrong}"[:500]
        finally:
            if answer is not None:
                answer.close()  # ends a command of which nothing more is wanted
        if not job.gone.is_set():
            self._write(store, job, held, last=True, error=error)

    # --- etcd ---

    def _write(
        self, store: Store, job: Job, items: Sequence[node_requests.Item], last: bool = False, error: str = ""
    ) -> None:
        part = encode(AnswerPart(node=self._node, number=job.parts, items=tuple(items), last=last, error=error))
        while True:
            try:
                store.put(node_requests.answer(self._node, job.id, job.parts), part, lease=self._leased(store))
                break
            except Retryable as away:  # it may be repeated: the same part under the same key
                if not job.begun or job.over:
                    raise
                job.gone.wait(pause_after(away))
        job.parts += 1

    def _leased(self, store: Store) -> int:
        with self._some:
            if self._lease is None or self._lease.lost:
                self._lease = store.lease(LEASE_S)
            return self._lease.id

    def _remove(self, store: Store, job: Job) -> None:
        keys = [node_requests.answer(self._node, job.id, number) for number in range(job.parts)]
        for at in range(0, len(keys), MAX_OPERATIONS):
            store.commit({}, deletes=keys[at : at + MAX_OPERATIONS])
