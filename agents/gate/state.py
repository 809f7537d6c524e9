"""The gate's rules: what it knows of each group, and what follows. Pure: the time is an argument.

A generation never has two owners. It passes only while etcd names exactly it, and once an older one is cut it never
returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from supervisor.core.model.observed import DEPARTED_S
from supervisor.wire.records import Admission, GateGroup

Hearing = Literal["absent", "holding", "beating", "silent", "gone"]
Verdict = Literal["admit", "hold", "cut"]

SAMPLE_BYTES = 8192

Link = tuple[int, int, str]
"""Group, generation, node."""


@dataclass
class Generation:
    """One generation of a group, as far as the gate has met it."""

    replica_id: str = ""
    """Set once the generation has reported that it is built."""
    spoken: bool = False
    """True once its manager has used that very id; until then it is held. Beats under an id that never asks for a
    quorum would block everyone forever. A manager without beats comes and goes with its own heartbeats."""
    sample: bytes = b""
    """Its latest bytes until it has spoken: the id is in every heartbeat, as plain text."""
    came: bool = False
    gone: bool = False
    heard_at: float = 0.0
    nodes_heard_at: dict[str, float] = field(default_factory=dict)
    """When each of its nodes last asked for this gate."""
    loss_confirmed: bool = False
    """True once etcd has answered after it fell silent: etcd's side of a split network goes on without it."""

    def hear(self, data: bytes, now: float) -> bool:
        """Records bytes of its manager; true when they hold its replica id for the first time."""
        self.heard_at = now
        if self.spoken:
            return False
        self.sample = (self.sample + data)[-SAMPLE_BYTES:]
        self.spoken = bool(self.replica_id) and self.replica_id.encode() in self.sample
        return self.spoken


@dataclass
class GateState:
    """Holds all groups of a run."""

    heartbeat_timeout_s: float
    gather_s: float
    """Seconds that a fresh gate waits for the other groups once the first one is built. The first group to reach a
    fresh lighthouse would commit alone."""
    etcd_silence_s: float
    lighthouse_patience_s: float = 0.0
    """Extra seconds of silence while the lighthouse has long answered no group: a manager that waits for an answer sends
    nothing, so the group is not the late one. Bounded, because its last bytes may have been half a request."""
    admitted: dict[int, int] = field(default_factory=dict)
    """group -> the generation that etcd names as current"""
    homes: dict[int, str] = field(default_factory=dict)
    """group -> the first node of that generation, whose manager speaks for it"""
    others: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """group -> its further nodes, each of which must be heard too"""
    generations: dict[tuple[int, int], Generation] = field(default_factory=dict)
    opened: bool = False
    first_built_at: float | None = None
    closed: bool = False
    """True while etcd is silent and a group is lost: nothing passes until etcd is back."""
    retired: bool = False
    """True once another has this lighthouse's seat: nothing passes any more."""
    answered_at: float = 0.0
    """When the lighthouse last answered any group: it lives."""
    quorum_id: int = 0
    """The newest quorum that the lighthouse has named to a manager; 0: none."""
    links: dict[Link, int] = field(default_factory=dict)
    """Connections that each node of a generation has."""
    unlinked_at: dict[Link, float] = field(default_factory=dict)
    """When a node closed the last of them: the kernel does so for a process that ends."""
    _said: dict[int, GateGroup] = field(default_factory=dict, repr=False, compare=False)
    """The record last made of each group: among a thousand few change."""

    # --- what happens ---

    def admit(self, admissions: Mapping[int, Admission], now: float) -> set[tuple[int, int]]:
        """Takes etcd's admissions; returns the generations that are stale from now on. An admission never goes back."""
        for group, admission in admissions.items():
            generation = admission.generation
            if generation >= self.admitted.get(group, 0) and admission.node:
                self.homes[group], self.others[group] = admission.node, admission.others
            if generation > self.admitted.get(group, 0):
                self.admitted[group] = generation
                if not admission.node:
                    self.homes.pop(group, None)
                    self.others.pop(group, None)
                # while it was held its manager could not be heard, so its time begins now
                self.heard(group, generation, b"", now)
        stale = {key for key in self.generations if self.is_stale(*key)}
        for key in stale:
            del self.generations[key]
        self.unlinked_at = {link: at for link, at in self.unlinked_at.items() if not self.is_stale(*link[:2])}
        return stale

    def came(self, group: int, generation: int) -> None:
        if not self.is_stale(group, generation):
            self._of(group, generation).came = True

    def left(self, group: int, generation: int) -> None:
        """Forgets a generation that etcd has not named, once its last visitor has left: any node may claim any number."""
        if not self.is_admitted(group, generation):
            self.generations.pop((group, generation), None)

    def link(self, group: int, generation: int, node: str) -> None:
        """Counts one more connection of a node."""
        way = group, generation, node
        self.links[way] = self.links.get(way, 0) + 1
        self.unlinked_at.pop(way, None)

    def unlink(self, group: int, generation: int, node: str, now: float) -> None:
        """Counts one connection of a node less."""
        way = group, generation, node
        self.links[way] -= 1
        if not self.links[way]:
            del self.links[way]
            if self.is_admitted(group, generation):
                self.unlinked_at[way] = now

    def is_admitted(self, group: int, generation: int) -> bool:
        return self.admitted.get(group) == generation

    def built(self, group: int, generation: int, replica_id: str, now: float) -> bool:
        """Notes that a generation is built under this id. Returns false if it speaks under another one, or another
        has this: its manager could then speak for that."""
        if self.is_stale(group, generation):
            return True
        entry = self._of(group, generation)
        # the next generation of a group takes its id again where it can
        of_others = {other.replica_id for (its, _), other in self.generations.items() if its != group}
        if replica_id in of_others or (entry.spoken and entry.replica_id != replica_id):
            return False
        entry.came, entry.replica_id, entry.loss_confirmed = True, replica_id, False
        entry.hear(b"", now)
        if self.first_built_at is None:
            self.first_built_at = now
        return True

    def replica_id(self, group: int, generation: int) -> str:
        """Returns the id under which the generation was built; empty if it was not."""
        entry = self.generations.get((group, generation))
        return entry.replica_id if entry is not None else ""

    def gone(self, group: int, generation: int) -> None:
        if not self.is_stale(group, generation):
            self._of(group, generation).gone = True

    def heard(self, group: int, generation: int, data: bytes, now: float) -> bool:
        """Records bytes of a manager; true if the group may pass now, because it has used its id for the first time."""
        entry = self.generations.get((group, generation))
        if entry is None:
            return False
        if not self._silent_node(group, generation, now):
            entry.loss_confirmed = False
        return entry.hear(data, now)

    def asked(self, group: int, generation: int, node: str, now: float) -> None:
        """Records a sign of life of one of the group's nodes."""
        if not self.is_stale(group, generation):
            self._of(group, generation).nodes_heard_at[node] = now

    def answered(self, now: float) -> None:
        self.answered_at = now

    def speaks_otherwise(self, group: int, generation: int) -> bool:
        """Returns true if the group is built and its manager calls, but never under the id that it gave."""
        entry = self.generations.get((group, generation))
        return entry is not None and bool(entry.replica_id and entry.sample) and not entry.spoken

    # --- what follows ---

    def is_stale(self, group: int, generation: int) -> bool:
        return generation < self.admitted.get(group, 0)

    def passage(self, group: int, generation: int, node: str, now: float) -> Verdict:
        """Returns how to treat a connection of this generation from this node."""
        entry, newest = self.generations.get((group, generation)), self.admitted.get(group)
        if self.retired or self.closed or (entry is not None and entry.gone):
            return "cut"
        if newest != generation:
            return "cut" if self.is_stale(group, generation) else "hold"
        if self.is_foreign(group, generation, node):
            return "cut"
        ready = entry is not None and entry.spoken and not self._silent_node(group, generation, now)
        return "admit" if group in self.homes and ready and self.opened else "hold"

    def knows_nodes_of(self, group: int, generation: int) -> bool:
        """Returns true if etcd has named the nodes of this generation, and it is the newest."""
        return self.admitted.get(group) == generation and group in self.homes

    def is_foreign(self, group: int, generation: int, node: str) -> bool:
        """Returns true if other nodes have this generation."""
        return self.admitted.get(group) == generation and node not in (
            self.homes.get(group, node),
            *self.others.get(group, ()),
        )

    def hearing(self, group: int, now: float) -> Hearing:
        """Returns how the admitted generation of a group is heard."""
        entry = self.generations.get((group, self.admitted[group]))
        if entry is None or not (entry.came or entry.gone):
            return "absent"
        if entry.gone:
            return "gone"
        if not entry.spoken or not self.opened:
            return "holding"
        if self.departed(group, now) or self._silent_node(group, self.admitted[group], now):
            return "silent"
        patience_s = self.heartbeat_timeout_s
        # a lighthouse that has just answered another may have stood still before its answer to this one
        if self.answered_at < entry.heard_at + self.heartbeat_timeout_s / 2:
            patience_s += self.lighthouse_patience_s
        return "beating" if now - entry.heard_at <= patience_s else "silent"

    def departed(self, group: int, now: float) -> tuple[str, ...]:
        """Returns the nodes of a group that closed all their connections DEPARTED_S ago, and have made none since. A
        forwarder that lives makes another within RETRY_S."""
        if not self.unlinked_at:
            return ()
        ways = (
            (group, self.admitted[group], node) for node in (self.homes.get(group, ""), *self.others.get(group, ()))
        )
        return tuple(way[2] for way in ways if self._departed(way, now))

    def _tells(self, group: int, hearing: Hearing) -> bool:
        """Returns true if the nodes that departed may be lost: of a group on several, another may have reported that it is
        gone. A gate that is closed has cut all of them."""
        lost = hearing == "silent" or (hearing == "gone" and bool(self.others.get(group)))
        return lost and not (self.closed or self.retired)

    def _departed(self, way: Link, now: float) -> bool:
        return now - self.unlinked_at.get(way, now) >= DEPARTED_S

    def groups(self, now: float) -> tuple[GateGroup, ...]:
        for group, generation in self.admitted.items():
            hearing, said = self.hearing(group, now), self._said.get(group)
            departed = self.departed(group, now) if self._tells(group, hearing) else ()
            if said is None or (said.generation, said.hearing, said.departed) != (generation, hearing, departed):
                self._said[group] = GateGroup(group=group, generation=generation, hearing=hearing, departed=departed)
        return tuple(self._said[group] for group in sorted(self.admitted))

    def beats(self, now: float) -> tuple[str, ...]:
        """Returns the replica ids that the lighthouse must count as alive."""
        if self.closed or self.retired:
            return ()
        return tuple(
            self.generations[group, generation].replica_id
            for group, generation in sorted(self.admitted.items())
            if self.hearing(group, now) == "beating"
        )

    def doubted(self, now: float) -> tuple[tuple[int, int], ...]:
        """Returns lost generations that may be on the other side of a split network. Until etcd answers, no group may
        go on without them: else both sides would train, one after the other."""
        if self.closed or not self.opened:
            return ()
        lost = [key for key in self.admitted.items() if self.hearing(key[0], now) in ("silent", "gone")]
        return tuple(key for key in lost if not self.generations[key].loss_confirmed)

    def confirm(self, keys: Iterable[tuple[int, int]]) -> None:
        """Notes that etcd has answered a question that was asked after these had fallen silent."""
        for key in keys:
            if key in self.generations:
                self.generations[key].loss_confirmed = True

    def may_open(self, now: float) -> bool:
        """Returns true if every admitted group has spoken or is gone, or has had its time."""
        if self.first_built_at is None or not self.admitted:
            return False
        settled = all(
            (entry := self.generations.get((group, generation))) is not None and (entry.gone or entry.spoken)
            for group, generation in self.admitted.items()
        )
        return settled or now - self.first_built_at >= self.gather_s

    def open(self, now: float) -> None:
        """Opens the way to the lighthouse. What was held could not be heard until now, so its time begins now."""
        self.opened = True
        self._begin_to_hear(now)

    def judge_etcd(self, silent_s: float, read_again: bool, now: float) -> bool:
        """Closes after a long silence of etcd, or opens once etcd is back and was read again; true when that changes
        anything.

        Cut off from etcd, the gate cannot know whether a group that it does not hear was started again elsewhere. So it
        goes on only while it hears every admitted generation.
        """
        if self.closed:
            closed = silent_s > self.etcd_silence_s or not read_again
        else:
            deaf = any(self.hearing(group, now) != "beating" for group in self.admitted)
            closed = silent_s > self.etcd_silence_s and (deaf or not self.opened)
        changed = closed != self.closed
        self.closed = closed
        if changed and not closed:
            self._begin_to_hear(now)
        return changed

    def _begin_to_hear(self, now: float) -> None:
        self.unlinked_at.clear()
        for (group, _), entry in self.generations.items():
            entry.heard_at = now
            entry.nodes_heard_at = dict.fromkeys(self.others.get(group, ()), now)

    def silent_nodes(self, now: float) -> tuple[tuple[int, str], ...]:
        """Returns the groups of which a further node is silent, each with the first such node."""
        found = ((group, self._silent_node(group, generation, now)) for group, generation in self.admitted.items())
        return tuple((group, node) for group, node in found if node)

    def _silent_node(self, group: int, generation: int, now: float) -> str:
        """Returns a further node of the group that was not heard for a heartbeat timeout; empty if there is none."""
        entry = self.generations.get((group, generation))
        if entry is None or not entry.spoken:
            return ""
        heard, limit, others = entry.nodes_heard_at, now - self.heartbeat_timeout_s, self.others.get(group, ())
        late = (
            node for node in others if heard.get(node, 0.0) < limit or self._departed((group, generation, node), now)
        )
        return next(late, "")

    def _of(self, group: int, generation: int) -> Generation:
        return self.generations.setdefault((group, generation), Generation())
