"""A watch's place in the history, and how each response moves it. No I/O: it turns responses into changes."""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from typing import Any

from supervisor.ports.store import Changes, Snapshot
from supervisor.shell.etcd.convert import item_of, key_of


class Doubt(Enum):
    """Why the stream cannot go on before the prefix is listed."""

    COMPACTED = "the history from here on is gone"
    BEHIND = "the member knows less than we have seen, or does not say why it ended the watch"


class Place:
    """The place of a watch. `next` is the first revision not seen yet: a new stream starts there."""

    def __init__(self, after_revision: int) -> None:
        self.next = after_revision + 1
        self.doubt: Doubt | None = None
        self._fragments: list[Any] = []

    def new_stream(self) -> None:
        """Drops the fragments of a lost stream: they come again on the next."""
        self._fragments = []

    def take(self, response: Any) -> list[Changes]:
        """Returns the changes in a WatchResponse; sets `doubt` if the prefix must be listed first."""
        if response.canceled:
            self.doubt = Doubt.COMPACTED if response.compact_revision else Doubt.BEHIND
            return []
        if response.created and response.header.revision < self.next - 1:
            # This member lags, or the store has lost revisions that we saw (a restored or damaged data folder). Only a
            # linearizable read can tell which.
            self.doubt = Doubt.BEHIND
            return []
        # The revision of a response without events must not become our place, because the answer to a progress request
        # may overtake events (etcd #15220).
        self._fragments.extend(response.events)
        if response.fragment:
            return []
        events, self._fragments = self._fragments, []
        # one Changes per revision: a transaction is whole, and puts and deletes of the same key keep their order
        found = []
        for revision, group in groupby(events, key=lambda event: int(event.kv.mod_revision)):
            if revision >= self.next:
                found.append(_changes(revision, list(group)))
                self.next = revision + 1
        return found

    def listed(self, snapshot: Snapshot) -> Changes | None:
        """Settles the doubt: returns a reset, or None if nothing was lost and the watch may go on (elsewhere)."""
        doubt, self.doubt = self.doubt, None
        if doubt is Doubt.BEHIND and snapshot.revision >= self.next - 1:
            return None
        self.next = snapshot.revision + 1
        return Changes(snapshot.revision, snapshot.items, reset=True)


def _changes(revision: int, events: list[Any]) -> Changes:
    puts = tuple(item_of(event.kv) for event in events if event.type == 0)
    deletes = tuple(key_of(event.kv.key) for event in events if event.type != 0)
    return Changes(revision, puts, deletes)
