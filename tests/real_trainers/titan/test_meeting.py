"""The groups of a quorum meet before their process group is made, without those that died since or are given up."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from fault_injection.testbed.waiting import eventually
from supervisor.core.model.spec import TorchFTSpec
from supervisor.wire.address import free_port
from tests.real_trainers.titan.groups import Groups
from titan_actor import address, meeting, torchft_names
from titan_actor.meeting import HERE, LOOK_S, STRANGERS_S, VERDICT, Meeting, await_store, knock

TIMEOUT_S = 60.0
AT_ONCE_S = TIMEOUT_S / 4


class Peer:
    """One rank with a heal server, whose process group notes each configuration."""

    def __init__(self, name: str, server: str, timeout_s: float = TIMEOUT_S) -> None:
        self.name, self.configured = name, 0
        self.quorum: list[str] = []
        client = SimpleNamespace(
            _quorum=lambda: SimpleNamespace(
                replica_ids=self.quorum,
                replica_rank=0,
                replica_world_size=len(self.quorum),
                max_world_size=len(self.quorum),
                heal=False,
                recover_dst_replica_ranks=[],
            )
        )
        transport = SimpleNamespace(address=lambda: server)
        self._manager: Any = SimpleNamespace(
            _client=client, _checkpoint_transport=transport, _pg=SimpleNamespace(configure=self._configure)
        )
        self.meeting = Meeting(self._manager, timeout_s)

    def _configure(self, *_: object) -> None:
        self.configured += 1

    def join(self, store: str, quorum: list[str]) -> None:
        self.quorum = quorum
        self._manager._client._quorum()
        self._manager._pg.configure(store, self.name, quorum.index(self.name), len(quorum), 1, 0, 1, [])


class Site:
    """A store, and peers whose servers listen until they die."""

    def __init__(self, stack: ExitStack) -> None:
        from torch.distributed import TCPStore

        self._pool = stack.enter_context(ThreadPoolExecutor())
        self._stack, self._servers = stack, dict[str, socket.socket]()
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.store = f"127.0.0.1:{self._store.port}/torchft"

    def peer(self, name: str, timeout_s: float = TIMEOUT_S) -> Peer:
        server = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._servers[name] = server
        return Peer(name, f"http://127.0.0.1:{server.getsockname()[1]}/checkpoint/", timeout_s)

    def dies(self, peer: Peer) -> None:
        self._servers[peer.name].close()

    def store_of(self, number: int) -> Any:
        """The store in which the peers of a quorum meet."""
        from torch.distributed import PrefixStore

        return PrefixStore(f"torchft/{number}/0/met", self._store)

    def join(self, number: int, *peers: Peer, of: tuple[Peer, ...] = ()) -> list[Future[None]]:
        quorum = [peer.name for peer in of or peers]
        return [self._pool.submit(peer.join, f"{self.store}/{number}/0", quorum) for peer in peers]


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack)


def test_those_who_all_come_are_configured(site: Site) -> None:
    peers = [site.peer(name) for name in "abc"]
    for number in range(2):
        for future in site.join(number, *peers):
            future.result(TIMEOUT_S)
    assert [peer.configured for peer in peers] == [2, 2, 2]


@pytest.mark.parametrize(("ids", "all_count"), [(("a:1-counts", "b:2-counts"), True), (("a:1-counts", "b:2"), False)])
def test_a_healed_group_counts_where_all_ids_have_the_mark(ids: tuple[str, ...], all_count: bool) -> None:
    """An older rank adds zeros as it heals, and divides by fewer: so then must all."""
    peer = Peer("a", "")
    peer.quorum = list(ids)
    peer._manager._client._quorum()
    assert torchft_names.all_count(peer._manager) == all_count


def test_one_that_has_died_since_is_not_waited_for(site: Site) -> None:
    a, b, c = peers = (site.peer("a"), site.peer("b"), site.peer("c"))
    for future in site.join(0, *peers):
        future.result(TIMEOUT_S)
    site.dies(b)
    began = time.monotonic()
    for future in site.join(1, a, c, of=peers):
        with pytest.raises(ConnectionError, match="b has ended since it asked for this quorum"):
            future.result(TIMEOUT_S)
    assert time.monotonic() - began < AT_ONCE_S
    assert (a.configured, c.configured) == (1, 1)


def test_the_next_process_of_a_group_is_met_under_the_same_id(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "RETURNS_S", TIMEOUT_S)  # on a busy machine it may come late
    a, before = site.peer("a"), site.peer("b")
    for future in site.join(0, a, before):
        future.result(TIMEOUT_S)
    site.dies(before)
    (waits,) = site.join(1, a, of=(a, before))
    time.sleep(3 * LOOK_S)
    assert not waits.done(), "the closed port alone says nothing yet"
    again = site.peer("b")
    for future in (waits, *site.join(1, again, of=(a, before))):
        future.result(TIMEOUT_S)
    assert (a.configured, again.configured) == (2, 1)


def test_one_that_comes_when_it_was_given_up_is_sent_away_at_once(site: Site) -> None:
    """Else it would wait in the process group for those who have left."""
    a, before = site.peer("a"), site.peer("b")
    for future in site.join(0, a, before):
        future.result(TIMEOUT_S)
    site.dies(before)
    (gave_up,) = site.join(1, a, of=(a, before))
    with pytest.raises(ConnectionError, match="b has ended"):
        gave_up.result(TIMEOUT_S)
    again = site.peer("b")
    (late,) = site.join(1, again, of=(a, before))
    with pytest.raises(ConnectionError, match="b has ended"):
        late.result(AT_ONCE_S)
    assert again.configured == 0


@pytest.mark.parametrize("first", [HERE, b"b"])
def test_one_verdict_counts_for_all(site: Site, first: bytes) -> None:
    """A peer comes in the moment in which another gives it up."""
    a, b = peers = (site.peer("a"), site.peer("b"))
    store = site.store_of(0)
    store.set(VERDICT, first)
    outcomes = [future.exception(TIMEOUT_S) for future in site.join(0, *peers)]
    assert [type(outcome) for outcome in outcomes] == [type(None) if first == HERE else ConnectionError] * 2
    assert (a.configured, b.configured) == ((1, 1) if first == HERE else (0, 0))


def test_a_newcomer_hears_it_from_those_who_knew_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "STRANGERS_S", TIMEOUT_S)  # its own patience, which on a busy machine ends sooner
    a, b, new = site.peer("a"), site.peer("b"), site.peer("c", TIMEOUT_S)
    for future in site.join(0, a, b):
        future.result(TIMEOUT_S)
    site.dies(b)
    for future in site.join(1, a, new, of=(a, b, new)):
        with pytest.raises(ConnectionError, match="b has ended"):
            future.result(TIMEOUT_S)


def test_a_store_that_has_died_is_not_waited_for(site: Site) -> None:
    peer = site.peer("b")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="held the quorum's store"):
        peer.join(f"127.0.0.1:{free_port()}/torchft/1/0", ["a", "b"])
    assert time.monotonic() - began < AT_ONCE_S


def test_an_order_to_abort_frees_it_of_one_that_is_silent(site: Site) -> None:
    a, b = site.peer("a"), site.peer("b")
    for future in site.join(0, a, b):
        future.result(TIMEOUT_S)
    (waiting,) = site.join(1, a, of=(a, b))
    eventually(lambda: waiting.running(), 10, "it waits")

    def abort_until_over() -> bool:
        a.meeting.abort()
        return waiting.done()

    eventually(abort_until_over, AT_ONCE_S, "it is free")
    with pytest.raises(ConnectionError, match="aborted: "):
        waiting.result(0)
    b.meeting.abort()
    for future in site.join(2, a, b):
        future.result(TIMEOUT_S)
    assert (a.configured, b.configured) == (2, 2), "an order that came too late means no later meeting"


def test_one_that_was_never_met_is_left_to_the_process_group(site: Site) -> None:
    """Its version may be one that meets no one."""
    a, old = site.peer("a"), site.peer("b")
    began = time.monotonic()
    (future,) = site.join(0, a, of=(a, old))
    future.result(TIMEOUT_S)
    assert (a.configured, time.monotonic() - began >= STRANGERS_S) == (1, True)


def test_one_that_lives_and_does_not_come_is_given_the_timeout(site: Site) -> None:
    a, b = site.peer("a", 2 * STRANGERS_S), site.peer("b")
    for future in site.join(0, a, b):
        future.result(TIMEOUT_S)
    began = time.monotonic()
    (future,) = site.join(1, a, of=(a, b))
    with pytest.raises(TimeoutError, match="b did not come to this quorum"):
        future.result(TIMEOUT_S)
    assert time.monotonic() - began >= 2 * STRANGERS_S


@pytest.mark.trainers
@pytest.mark.parametrize(("victim", "how"), [(0, "with"), (1, "beside")])
def test_a_real_trainer_does_not_wait_out_the_timeout_for_one_that_died_in_its_quorum(
    groups: Groups, victim: int, how: str
) -> None:
    recipe, patient = f"tests.real_trainers.titan.recipes:that_dies_{how}_the_store_of_its_quorum", 20.0
    torchft = TorchFTSpec(process_group_timeout_ms=int(1000 * patient))
    ranks = [groups.start(group, recipe=recipe, torchft=torchft) for group in (0, 1)]
    assert ranks[victim].exit_code() == 1
    survivor = ranks[1 - victim]
    step = survivor.step
    survivor.reached(step + 3)
    commits = [line["t"] for line in survivor.lines("step") if line["committed"]]
    longest_s = max(after - before for before, after in itertools.pairwise(commits))
    assert longest_s < patient / 2, survivor.log()[-4000:]


def test_a_knock_tells_closed_open_and_no_answer_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_, closed = ("127.0.0.1", server.getsockname()[1]), ("127.0.0.1", free_port())
        assert knock([open_, closed], 10.0) == {open_: True, closed: False}
    assert knock([("255.255.255.255", 9)], 0.1) == {}, "no route leads there"
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # no one accepts, so the next ones get no answer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert knock([full.getsockname()], 0.1) == {}


def test_a_rank_that_comes_before_its_groups_store_is_there_as_soon_as_that_listens() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        listens = pool.submit(await_store, "127.0.0.1", port, AT_ONCE_S)
        assert not wait([listens], timeout=LOOK_S).done
        store = address.serve_store("127.0.0.1", port, AT_ONCE_S)
        listens.result(AT_ONCE_S)
        store.set("key", "value")  # which a look that said nothing has not broken


def test_a_store_that_never_comes_is_an_error_that_names_it() -> None:
    port = free_port()
    with pytest.raises(TimeoutError, match=f"did not serve its store at 127.0.0.1:{port} for 0.1 s"):
        await_store("127.0.0.1", port, 0.1)
