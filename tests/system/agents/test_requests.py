"""The contract of requests to a node against a real etcd: the answer's order, its bounds, and what is cleaned up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.dev.etcd_server import EtcdServer
from supervisor.shell.etcd import EtcdStore, inbox
from supervisor.shell.etcd.inbox import Answer, CannotDo, Inbox, Job
from supervisor.shell.inspect import asking
from supervisor.shell.inspect.asking import Said
from supervisor.wire import keys, node_requests
from supervisor.wire.node_requests import NodeRequest, size
from supervisor.wire.records import Registration, encode

pytestmark = pytest.mark.etcd

ASK = NodeRequest(node="n1", what="logs", by="ann@desk", limit_s=20.0)

Doer = Callable[[NodeRequest, Job], Answer]


@pytest.fixture
def mirror(store: EtcdStore) -> Mirror:
    """A system whose node n1 is registered."""
    register(store)
    return Mirror(store.list(keys.PREFIX))


def register(store: EtcdStore) -> None:
    record = Registration(
        node="n1", address="127.0.0.1", role="trainer", allocation="", slots=1, agent_pid=1, version="0.0"
    )
    store.put(keys.registration("n1"), encode(record))


@contextmanager
def agent(server: EtcdServer, do: Doer) -> Iterator[Inbox]:
    """Runs the part of an agent that answers, until the end of the block."""
    made = Inbox("n1", [server.endpoint], do, lambda: True)
    made.start()
    eventually(lambda: made._since, 10, "it follows the requests")
    try:
        yield made
    finally:
        made.stop()
        made.join(10)


def asked(store: EtcdStore, mirror: Mirror, request: NodeRequest = ASK) -> list[Said]:
    with closing(asking.ask(store, mirror, {request.node: request})) as answers:
        return list(answers)


def answers(store: EtcdStore) -> list[str]:
    return [item.key for item in store.list(node_requests.ANSWERS).items]


def test_a_long_answer_comes_in_order_in_bounded_parts(
    store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_requests, "PART_BYTES", 4096)
    longest: list[int] = []
    put = EtcdStore.put

    def measured(self: EtcdStore, key: str, value: bytes, lease: int = 0) -> int:
        longest.append(len(value))
        return put(self, key, value, lease)

    monkeypatch.setattr(EtcdStore, "put", measured)
    with agent(etcd_server, lambda request, job: ({"n": n, "text": "x" * 100} for n in range(500))):
        said = asked(store, mirror)
    assert [item["n"] for each in said for item in each.items] == list(range(500))
    assert [each.last for each in said] == [False] * (len(said) - 1) + [True]
    assert said[-1].error == ""
    assert max(longest) <= 4096
    assert len(longest) > 10


def test_the_largest_item_fits_into_a_part() -> None:
    worst = {"stream": "stdout", "text": next(node_requests.pieces("\U0001f600" * 100_000))}
    assert size([worst]) < node_requests.PART_BYTES * 9 // 10


def test_an_answer_has_a_bound(
    store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_requests, "ANSWER_BYTES", 2**20)
    ended = threading.Event()

    def endless(request: NodeRequest, job: Job) -> Answer:
        try:
            while True:
                yield {"text": "x" * 1000}
        finally:
            ended.set()

    with agent(etcd_server, endless):
        said = asked(store, mirror)
    assert said[-1].error == "the answer is cut after 1 MiB: ask for less"
    assert 2**20 * 0.9 < sum(size(each.items) for each in said) <= 2**20
    assert ended.is_set(), "nothing more is made"


def test_an_answer_goes_with_who_asked(store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer) -> None:
    ended, going = threading.Event(), threading.Event()

    def slow(request: NodeRequest, job: Job) -> Answer:
        try:
            while not job.over:
                yield {"text": "x"}
                going.wait(0.01)
        finally:
            ended.set()

    with agent(etcd_server, slow):
        assert len(asked(store, mirror, replace(ASK, limit_s=0.5))) > 1
        eventually(lambda: not answers(store), 10, "of one that has ended")
        ended.clear()
        with closing(asking.ask(store, mirror, {"n1": ASK})) as open_one:
            assert next(open_one).items
            assert answers(store)
        assert ended.wait(10), "it is stopped"
        eventually(lambda: not answers(store), 10, "of one that was left in the middle")
        assert store.list(node_requests.PREFIX).items == ()


def test_an_agent_that_ends_leaves_nothing_and_who_asks_learns_it(
    store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer
) -> None:
    def waits(request: NodeRequest, job: Job) -> Answer:
        yield {"text": "x"}
        while not job.over:
            job.gone.wait(0.05)
            yield None

    with agent(etcd_server, waits) as one, closing(asking.ask(store, mirror, {"n1": ASK})) as open_one:
        assert next(open_one).items
        one.stop()
        assert next(open_one) == Said("n1", last=True, error="its agent has ended meanwhile: ask again")
    assert answers(store) == []


def test_what_was_there_before_the_agent_is_not_done(store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer) -> None:
    """An earlier agent may have begun it: a command must not run twice."""
    done: list[str] = []

    def do(request: NodeRequest, job: Job) -> Answer:
        done.append(request.by)
        yield None

    with closing(asking.ask(store, mirror, {"n1": ASK})) as early:
        thread_said: list[Said] = []
        listening = threading.Thread(target=lambda: thread_said.extend(early))
        listening.start()
        eventually(lambda: store.list(node_requests.ASKED).items, 10, "it asks")
        register(store)  # as the next agent does
        with agent(etcd_server, do):
            listening.join(10)
    assert [each.error for each in thread_said] == [
        "its agent has just started, and does not know what was done of this: ask again"
    ]
    assert done == []


def test_what_was_asked_since_it_registered_is_done(store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer) -> None:
    """A program that sees the registration may ask at once, before the agent has begun to look."""
    found: list[Said] = []
    with closing(asking.ask(store, mirror, {"n1": ASK})) as early:
        listening = threading.Thread(target=lambda: found.extend(early))
        listening.start()
        eventually(lambda: store.list(node_requests.ASKED).items, 10, "it asks")
        with agent(etcd_server, lambda request, job: (each for each in [{"by": request.by}])):
            listening.join(10)
    assert [(each.items, each.error) for each in found] == [(({"by": "ann@desk"},), "")]


def test_a_few_at_once_and_the_others_wait(
    store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "WAITING", 2)
    busy, most, go_on, lock = [0], [0], threading.Event(), threading.Lock()

    def do(request: NodeRequest, job: Job) -> Answer:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        go_on.wait(20)
        with lock:
            busy[0] -= 1
        yield {"by": request.by}

    errors: list[str] = []
    with agent(etcd_server, do) as one:
        threads = [
            threading.Thread(target=lambda: errors.append(asked(store, mirror)[-1].error))
            for _ in range(inbox.AT_ONCE + 3)
        ]
        for number, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda number=number: len(one._jobs) == number or errors, 10, "taken one after the other")
        eventually(lambda: errors == ["2 requests to it wait already: ask again later"], 10, "one too many")
        go_on.set()
        for thread in threads:
            thread.join(20)
    assert most[0] == inbox.AT_ONCE
    assert errors[1:] == [""] * (inbox.AT_ONCE + 2), "those that waited were done"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"torn", "its agent cannot read the request (not JSON"),
        (b'{"$kind":"NodeRequest","$version":9}', "version 9 is newer than this program's 1"),
        (encode(replace(ASK, node="n2")), "it names the node 'n2'"),
        (encode(ASK).replace(b'"logs"', b'"dance"'), "its agent cannot read the request (what: "),
    ],
)
def test_a_request_that_is_not_understood_is_refused(
    store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer, value: bytes, why: str
) -> None:
    with agent(etcd_server, lambda request, job: iter(())):  # type: ignore[arg-type,return-value]
        store.put(node_requests.asked("n1", "i"), value)
        eventually(lambda: len(answers(store)) == 1, 10, "answered")
        found = store.get(node_requests.answer("n1", "i", 0))
        assert found is not None
        assert why in found.value.decode()


def test_what_fails_is_a_sentence(store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer) -> None:
    def cannot(request: NodeRequest, job: Job) -> Answer:
        yield {"text": "some"}
        raise CannotDo("the disk is away: look there")

    def breaks(request: NodeRequest, job: Job) -> Answer:
        yield {"text": "some"}
        raise RuntimeError("no idea")

    for do, why in (
        (cannot, "the disk is away: look there"),
        (breaks, "its agent has failed at it: RuntimeError: no idea"),
    ):
        with agent(etcd_server, do):
            assert asked(store, mirror) == [Said("n1", ({"text": "some"},), True, why)]


def test_no_answer_is_named(store: EtcdStore, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWERS_WITHIN_S", 0.5)
    (old,) = asked(store, mirror)
    assert old.error.startswith("its agent does not answer: it has version 0.0, and this program ")
    (unknown,) = asked(store, mirror, replace(ASK, node="n2"))
    assert unknown.error == "it is not registered: its agent does not run, or does not reach etcd"
    assert store.list(node_requests.PREFIX).items == ()


def test_an_agent_that_is_a_second_of_its_name_answers_nothing(
    store: EtcdStore, mirror: Mirror, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWERS_WITHIN_S", 1.5)
    second = Inbox("n1", [etcd_server.endpoint], lambda request, job: (_ for _ in ()), lambda: False)
    second.start()
    try:
        (said,) = asked(store, mirror)
        assert "does not answer" in said.error
    finally:
        second.stop()
        second.join(10)
