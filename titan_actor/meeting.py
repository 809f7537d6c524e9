"""Meets the other groups of a new quorum before a process group is made with them.

A group that dies between its request for a quorum and the answer is a member of it. TorchFT and Gloo (or NCCL) then
wait for that peer in native code, for the whole process group timeout, and obey no abort meanwhile. Here the peers are
first waited for in small parts: a peer's closed port, or an abort, ends the wait at once.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from titan_actor import torchft_names

FIRST_PAUSE_S, LOOK_S = 0.002, 0.1
"""Seconds between two looks at which peers are missing (all of a quorum usually come within milliseconds), and for a
host's answer."""
STORE_PAUSE_S = 0.02
"""Most seconds between two looks whether the store of this rank's own group listens."""
CONNECTS_S = 1.0
"""Seconds for one try to connect to a store that listens."""
STRANGERS_S = 3.0
"""Seconds to wait for a peer that was never met: its version may not use meetings. On a busy machine those who know it
take more than a second to write that it is gone."""
RETURNS_S = 0.2
"""Seconds for which a peer whose port is closed may come under its id again: a group's next process on its node takes it
again, and is there within milliseconds of its quorum. Twice as long after each that did not, up to STRANGERS_S: on a busy
machine it is only late."""
VERDICT, HERE = "verdict", b"all"
"""Key that the first rank writes which knows whether all are here, and what it writes if they are: all go by it, where
a peer comes just as another gives it up."""
GONE = "gone"
"""Key under which a rank that knows a missing peer writes that it is gone: ranks that do not know it then stop waiting
too."""


class Meeting:
    """One rank's meetings with its peers."""

    def __init__(self, manager: Any, timeout_s: float) -> None:
        """Takes the place of the manager's client and of its process group's `configure`."""
        self._own = torchft_names.heal_address(manager)
        self._timeout_s = timeout_s
        self._met: dict[str, str] = {}
        """Replica id -> the address of this rank's peer there. The peer's heal server listens for as long as its
        process lives."""
        self._returns_s = RETURNS_S
        self._aborted = threading.Event()
        self._members: list[str] = []
        """Replica ids of the newest quorum."""
        torchft_names.notice_members(manager, self._take_members)
        groups = torchft_names.process_group(manager)
        self._configure, groups.configure = groups.configure, self._meet_and_configure

    def abort(self) -> None:
        """Ends the wait in progress. From any thread."""
        self._aborted.set()

    def _take_members(self, ids: list[str]) -> None:
        self._members = ids

    def _meet_and_configure(self, store: str, replica_id: str, rank: int, world_size: int, *more: Any) -> None:
        self._aborted.clear()
        if len(self._members) == world_size > 1:
            self._meet(store, rank, self._members)
        self._configure(store, replica_id, rank, world_size, *more)

    def _meet(self, store_address: str, rank: int, ids: list[str]) -> None:
        """Waits for all peers. Raises ConnectionError when a peer is gone, TimeoutError when one that was met before
        does not come."""
        began = time.monotonic()
        store = self._store(f"{store_address}/met", began)
        store.set(str(rank), self._own)
        everyone, pause_s = list(map(str, range(len(ids)))), FIRST_PAUSE_S
        while not store.check(everyone):
            missing = [ids[int(n)] for n in everyone if not store.check([n])]
            self._go_on(began, f"{', '.join(missing)} did not come to this quorum")
            known = {_place(self._met[id_]): id_ for id_ in missing if id_ in self._met}
            gone = [known[each] for each, open_ in knock(known, LOOK_S).items() if not open_]
            if gone and time.monotonic() - began > self._returns_s:
                self._returns_s = min(2 * self._returns_s, STRANGERS_S)
                _judge(store, ", ".join(gone).encode())
            if store.check([GONE]):
                raise _ended(store.get(GONE))
            if missing and not known and time.monotonic() - began > STRANGERS_S:
                return
            self._aborted.wait(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
        if (verdict := _judge(store, HERE)) != HERE:
            raise _ended(verdict)
        if store.check([GONE]):  # by a version that knows no verdict
            raise _ended(store.get(GONE))
        self._returns_s = RETURNS_S
        self._met = {id_: told.decode() for id_, told in zip(ids, store.multi_get(everyone), strict=True)}

    def _store(self, address: str, began: float) -> Any:
        """Connects to the quorum's store in short tries: the client alone would retry for its whole timeout, even where
        no one listens."""
        from torch.distributed import DistError
        from torchft.process_group import create_store_client

        place = _place(address)
        while True:
            open_ = knock([place], LOOK_S).get(place)
            if open_ is False:
                raise ConnectionError("a group has ended since it asked for this quorum: it held the quorum's store")
            self._go_on(began, "the store of this quorum does not answer")
            if open_:
                with suppress(DistError):
                    store = create_store_client(address, timeout=timedelta(seconds=CONNECTS_S))
                    store.set_timeout(timedelta(seconds=self._timeout_s))
                    return store

    def _go_on(self, began: float, otherwise: str) -> None:
        """Raises what ends the wait from outside: an abort, or the timeout."""
        if self._aborted.is_set():
            raise ConnectionError(f"aborted: {otherwise}")
        if time.monotonic() - began > self._timeout_s:
            raise TimeoutError(f"{otherwise} for {self._timeout_s:g} s")


def await_store(host: str, port: int, timeout_s: float) -> None:
    """Waits until a group's store listens: once refused, torch's client pauses for half a second. Raises TimeoutError."""
    began, place, pause_s = time.monotonic(), (host, port), FIRST_PAUSE_S
    while not knock([place], LOOK_S).get(place):
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"rank 0 of this group did not serve its store at {host}:{port} for {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, STORE_PAUSE_S)


def _judge(store: Any, verdict: bytes) -> bytes:
    """Writes a verdict unless there is one; returns the one that counts."""
    found: bytes = store.compare_set(VERDICT, "", verdict)
    if found != HERE:
        store.set(GONE, found)
    return found


def _ended(gone: bytes) -> ConnectionError:
    return ConnectionError(f"{gone.decode()} has ended since it asked for this quorum")


def knock(places: Iterable[tuple[str, int]], within_s: float) -> dict[tuple[str, int], bool]:
    """Returns whether something listens at each place: a live process accepts, even a stopped one. Hosts without an
    answer are left out."""
    found: dict[tuple[str, int], bool] = {}
    asked: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
    poll, until = select.poll(), time.monotonic() + within_s
    for place in places:
        asking = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET, socket.SOCK_STREAM)
        asking.setblocking(False)
        asked[asking.fileno()] = asking, place
        if (said := asking.connect_ex(place)) == errno.ECONNREFUSED:
            found[place] = False
        elif said in (0, errno.EINPROGRESS):
            poll.register(asking, select.POLLOUT)
    try:
        while len(found) < len(asked) and (left_s := until - time.monotonic()) > 0:
            for number, _ in poll.poll(1000 * left_s):
                asking, place = asked[number]
                poll.unregister(asking)
                error = asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error in (0, errno.ECONNREFUSED):
                    found[place] = error == 0
    finally:
        for asking, _ in asked.values():
            asking.close()
    return found


def _place(address: str) -> tuple[str, int]:
    """Returns host and port of `http://host:port/path` or `host:port/path`; an IPv6 host may stand without brackets."""
    host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)
