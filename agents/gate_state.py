"""What the gate knows of each group, and what follows from it. Pure: the time is an argument.

Two owners never: a generation is let through only while it is the very one that etcd names, and once an older one is
cut nothing brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from supervisor.wire.records import Admission, GateGroup

Hearing = Literal["absent", "holding", "beating", "silent", "gone"]
Verdict = Literal["admit", "hold", "cut"]

SAMPLE_BYTES = 8192


@dataclass
class Generation:
    """One generation of a group, as far as the gate has met it."""

    replica_id: str = ""
    """Set once it said that it is built."""
    spoken: bool = False
    """Whether its manager has used that very id. Beats under an id that never asks for a quorum block everyone for
    ever, and a manager that is not beaten for comes and goes with its own heartbeats: so it is held until they agree."""
    sample: bytes = b""
    """The latest of its bytes, until it has spoken: the id is in every heartbeat, as plain text."""
    came: bool = False
    gone: bool = False
    heard_at: float = 0.0
    answered_at: float = 0.0
    """When the lighthouse last said something to it. A manager that waits for an answer says nothing."""

    loss_confirmed: bool = False
    """etcd has answered since it fell silent: what happens without it is on the side of etcd."""

    def hear(self, data: bytes, now: float) -> bool:
        """True when it has just spoken for the first time."""
        self.heard_at = now
        self.loss_confirmed = False
        if self.spoken:
            return False
        self.sample = (self.sample + data)[-SAMPLE_BYTES:]
        self.spoken = bool(self.replica_id) and self.replica_id.encode() in self.sample
        return self.spoken


@dataclass
class GateState:
    """All groups."""

    heartbeat_timeout_s: float
    gather_s: float
    """A gate that has just opened waits this long for the other groups once the first one is built: whoever comes
    first to a fresh lighthouse would commit alone."""
    etcd_silence_s: float
    lighthouse_patience_s: float = 0.0
    """So much longer a group may be silent while the lighthouse owes it an answer: it is not the group that is late. Not for
    ever, since its last words may have been half a request."""
    admitted: dict[int, int] = field(default_factory=dict)
    """group -> the generation that etcd names as current."""
    homes: dict[int, str] = field(default_factory=dict)
    """group -> the node of that generation: nobody else may speak for it."""
    generations: dict[tuple[int, int], Generation] = field(default_factory=dict)
    opened: bool = False
    first_built_at: float | None = None
    closed: bool = False
    """No etcd and a loss: nothing passes until etcd is back."""
    retired: bool = False
    """Nothing passes any more: another has this lighthouse's seat."""
    _said: dict[int, GateGroup] = field(default_factory=dict, repr=False, compare=False)
    """What was said of each group last: of a thousand few change."""

    # --- what happens ---

    def admit(self, admissions: Mapping[int, Admission], now: float) -> set[tuple[int, int]]:
        """Take what etcd says; returns the generations that are stale from now on. An admission never goes back."""
        for group, admission in admissions.items():
            generation = admission.generation
            if generation >= self.admitted.get(group, 0) and admission.node:
                self.homes[group] = admission.node
            if generation > self.admitted.get(group, 0):
                self.admitted[group] = generation
                if not admission.node:
                    self.homes.pop(group, None)
                # what was held could not be heard: its time begins now
                self.heard(group, generation, b"", now)
        stale = {key for key in self.generations if self.is_stale(*key)}
        for key in stale:
            del self.generations[key]
        return stale

    def came(self, group: int, generation: int) -> None:
        if not self.is_stale(group, generation):
            self._of(group, generation).came = True

    def built(self, group: int, generation: int, replica_id: str, now: float) -> None:
        if self.is_stale(group, generation):
            return
        entry = self._of(group, generation)
        entry.came, entry.replica_id = True, replica_id
        entry.hear(b"", now)
        if self.first_built_at is None:
            self.first_built_at = now

    def gone(self, group: int, generation: int) -> None:
        if not self.is_stale(group, generation):
            self._of(group, generation).gone = True

    def heard(self, group: int, generation: int, data: bytes, now: float) -> bool:
        """True when that may let it through: its manager has used its id for the first time."""
        entry = self.generations.get((group, generation))
        return entry is not None and entry.hear(data, now)

    def answered(self, group: int, generation: int, now: float) -> None:
        entry = self.generations.get((group, generation))
        if entry is not None:
            entry.answered_at = now

    def speaks_otherwise(self, group: int, generation: int) -> bool:
        """It is built and its manager calls, but never under the id that it gave."""
        entry = self.generations.get((group, generation))
        return entry is not None and bool(entry.replica_id and entry.sample) and not entry.spoken

    # --- what follows ---

    def is_stale(self, group: int, generation: int) -> bool:
        return generation < self.admitted.get(group, 0)

    def passage(self, group: int, generation: int, node: str) -> Verdict:
        """What is to be done with a connection of this generation from this node."""
        entry, newest = self.generations.get((group, generation)), self.admitted.get(group)
        if self.retired or self.closed or (entry is not None and entry.gone):
            return "cut"
        if newest != generation:
            return "cut" if self.is_stale(group, generation) else "hold"
        home = self.homes.get(group)
        if home is not None and home != node:
            return "cut"  # it is foreign
        ready = entry is not None and entry.spoken
        return "admit" if home is not None and ready and self.opened else "hold"

    def is_foreign(self, group: int, generation: int, node: str) -> bool:
        """It speaks for a generation that lives elsewhere."""
        return self.admitted.get(group) == generation and self.homes.get(group, node) != node

    def hearing(self, group: int, now: float) -> Hearing:
        """Of the admitted generation of a group."""
        entry = self.generations.get((group, self.admitted[group]))
        if entry is None or not (entry.came or entry.gone):
            return "absent"
        if entry.gone:
            return "gone"
        if not entry.spoken or not self.opened:
            return "holding"
        patience_s = self.heartbeat_timeout_s
        if entry.answered_at < entry.heard_at:
            patience_s += self.lighthouse_patience_s
        return "beating" if now - entry.heard_at <= patience_s else "silent"

    def groups(self, now: float) -> tuple[GateGroup, ...]:
        for group, generation in self.admitted.items():
            hearing, said = self.hearing(group, now), self._said.get(group)
            if said is None or said.generation != generation or said.hearing != hearing:
                self._said[group] = GateGroup(group=group, generation=generation, hearing=hearing)
        return tuple(self._said[group] for group in sorted(self.admitted))

    def beats(self, now: float) -> tuple[str, ...]:
        """The replica ids that the lighthouse is to count as alive."""
        if self.closed or self.retired:
            return ()
        return tuple(
            self.generations[group, generation].replica_id
            for group, generation in sorted(self.admitted.items())
            if self.hearing(group, now) == "beating"
        )

    def doubted(self, now: float) -> tuple[tuple[int, int], ...]:
        """Generations that fell silent or are gone, and of which it is not known on whose side of a split network they are: until etcd
        answers, nobody may go on without them, else both sides would train, one after the other."""
        if self.closed or not self.opened:
            return ()
        lost = [key for key in self.admitted.items() if self.hearing(key[0], now) in ("silent", "gone")]
        return tuple(key for key in lost if not self.generations[key].loss_confirmed)

    def confirm(self, keys: Iterable[tuple[int, int]]) -> None:
        """etcd has answered a question that was asked after these had fallen silent."""
        for key in keys:
            if key in self.generations:
                self.generations[key].loss_confirmed = True

    def may_open(self, now: float) -> bool:
        """Whether every admitted group has said how it is, or has had its time to."""
        if self.first_built_at is None or not self.admitted:
            return False
        settled = all(
            (entry := self.generations.get((group, generation))) is not None and (entry.gone or entry.spoken)
            for group, generation in self.admitted.items()
        )
        return settled or now - self.first_built_at >= self.gather_s

    def open(self, now: float) -> None:
        """From now on the lighthouse is reached. What was held could not be heard meanwhile: its time begins now."""
        self.opened = True
        for entry in self.generations.values():
            entry.heard_at = now

    def judge_etcd(self, silent_s: float, read_again: bool, now: float) -> bool:
        """Close by how long etcd has been silent, or open again once it is back and everything was read again since
        the closing; True when that changes anything.

        Cut off from etcd, the gate cannot know whether a group that it does not hear was started again elsewhere. So
        it goes on only while it hears every admitted generation.
        """
        if self.closed:
            closed = silent_s > self.etcd_silence_s or not read_again
        else:
            deaf = any(self.hearing(group, now) != "beating" for group in self.admitted)
            closed = silent_s > self.etcd_silence_s and (deaf or not self.opened)
        changed = closed != self.closed
        self.closed = closed
        if changed and not closed:
            for entry in self.generations.values():
                entry.heard_at = now
        return changed

    def _of(self, group: int, generation: int) -> Generation:
        return self.generations.setdefault((group, generation), Generation())
