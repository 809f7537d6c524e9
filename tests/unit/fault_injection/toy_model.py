"""A model of one number, trained by groups that come and go, with its step records; and its twin.

The groups' part knows nothing of the plan that is made from the records, and the twin nothing of the groups.
"""

from __future__ import annotations

import zlib
from typing import Any

from fault_injection.parity.twin import Retrained
from supervisor.core.model.spec import TitanSpec
from supervisor.shell.history.files import History, Steps
from tests.unit.fault_injection.broken import SETTING
from titan_actor.twin import BEGINNING, EVERYBODY, Plan

FIRST = 8.0
RATE = 0.1
FLIP = 0.5
"""The change of state by a flipped bit."""


def pull(state: float, sample: str) -> float:
    """The gradient of one sample."""
    return state - zlib.crc32(sample.encode()) % 1000 / 100


def loss(state: float, samples: list[str]) -> float:
    return sum(pull(state, sample) ** 2 for sample in samples) / 2


class ToyRun:
    """A run that makes steps on request, of the requested groups."""

    def __init__(self, titan: dict[str, Any] | None = None, device: str = "cpu") -> None:
        self.titan, self.device = {"steps": 100} if titan is None else titan, device
        self.state, self.number, self.quorum, self.t = FIRST, 0, 1, 1.0
        self.own: dict[int, float] = {}
        """State of each group in which a bit is flipped."""
        self.saved: dict[int, float] = {}
        self.records: dict[tuple[int, int], list[dict[str, Any]]] = {}
        self.generation: dict[int, int] = {}
        self.read: dict[int, int] = {}
        for group in (0, 1):
            self.start(group)

    def start(self, group: int, resumed: int | None = None) -> None:
        """Starts a new generation, which heals or (resumed) has loaded the checkpoint of a step."""
        self.generation[group] = self.generation.get(group, 0) + 1
        self.own.pop(group, None)
        lines = [{"event": "constructed", "device": self.device, "groups": 2, "titan": self.titan}]
        if resumed is not None:
            self.state, self.number = self.saved[resumed], resumed
            lines.append({"event": "resumed", "step": resumed})
        self.records[group, self.generation[group]] = lines

    def of(self, group: int) -> list[dict[str, Any]]:
        return self.records[group, self.generation[group]]

    def reads(self, group: int) -> list[str]:
        """Reads the group's next batch."""
        at = self.read[group] = self.read.get(group, 0) + 2
        names = [f"g{group}s{at + n}" for n in range(2)]
        self.of(group).append({"event": "batch", "samples": names})
        return names

    def flip(self, group: int) -> None:
        """Flips one bit of the group, in the step that it makes next."""
        self.own[group] = self.own.get(group, self.state) + FLIP
        place = {"step": self.number + 1, "parameter": 3, "element": 0, "bit": 12}
        self.of(group).append({"event": "flipped", "t": self.t, **place})

    def hash(self) -> None:
        """Hashes each group's state, after the step that it has made."""
        for group in (0, 1):
            value = repr(self.own.get(group, self.state))
            self.of(group).append({"event": "digest", "step": self.number, "value": value})

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(
        self,
        *took: int,
        heal: tuple[int, ...] = (),
        silent: tuple[int, ...] = (),
        failed: tuple[int, ...] = (),
        divided_by: int = 0,
        wrongly_counted: tuple[int, ...] = (),
    ) -> None:
        """Makes one step of the groups that took part. Some heal, and take part in it or not. Some that took part are killed
        before they record it (silent), or do not commit it themselves (failed)."""
        took = took or (0, 1)
        every, sources = list(dict.fromkeys((*took, *heal))), [group for group in took if group not in heal]
        quorum: dict[str, Any] = {"event": "quorum", "quorum_id": self.quorum, "step": self.number}
        batches = {}
        for group in every:
            self.of(group).append({**quorum, "participating_rank": group if group in took else None})
            batches[group] = self.reads(group)
        counted = [batches[group] for group in (*took, *wrongly_counted)]
        if len(sources) == 1 and sources[0] in self.own:  # a group that heals has its state
            self.state = self.own[sources[0]]
            self.own.clear()
        for group in heal:
            self.own.pop(group, None)
        of = [self.own.get(group, self.state) for group in (*took, *wrongly_counted)]
        mean = sum(loss(state, samples) for state, samples in zip(of[: len(took)], counted, strict=False)) / len(took)
        pulls = [pull(state, sample) for state, samples in zip(of, counted, strict=True) for sample in samples]
        gradient = sum(pulls) / (divided_by or len(took))
        self.own = {group: state - RATE * gradient for group, state in self.own.items()}
        self.state, self.number, self.t = self.state - RATE * gradient, self.number + 1, self.t + 1
        self.saved[self.number] = self.state
        for group in every:
            if group in heal:
                self.of(group).append({"event": "heal", "t": self.t, "step": self.number - 1})
            if group not in silent:
                made = group not in failed
                self.of(group).append(
                    {
                        "event": "step", "start": self.t - 1, "t": self.t + group / 100, "step": self.number - (not made),
                        "committed": made, "participants": len(took), "quorum_id": self.quorum, "healed": group in heal,
                        "participating_rank": group if group in took else None, "loss": mean if made else None,
                        "gradient_norm": abs(gradient),
                    }
                )  # fmt: skip
        if failed or silent:
            self.quorum += 1

    def fails(self) -> None:
        """Makes a step that both tried and neither committed."""
        for group in (0, 1):
            self.reads(group)
            self.of(group).append(
                {
                    "event": "step", "start": self.t, "t": self.t, "step": self.number, "committed": False, "participants": 2,
                    "quorum_id": self.quorum, "healed": False, "participating_rank": group, "loss": None,
                }
            )  # fmt: skip
        self.quorum += 1

    def history(self) -> History:
        history = History("run", setting=SETTING)
        history.steps = [
            Steps(group, generation, 0, f"n{group}", tuple(lines))
            for (group, generation), lines in self.records.items()
        ]
        return history


def again(plan: Plan, seconds: float) -> Retrained:
    """Trains the twin of such a model."""
    assert plan.titan == TitanSpec(steps=100)
    states, losses, norms = {BEGINNING: FIRST}, [], []
    hashes: list[dict[int, str]] = []
    own: dict[int, tuple[float, int]] = {}
    for at, step in enumerate(plan.steps):
        state = states[step.after]
        own = {group: own.get(group, (state, 0)) for group in step.flips}
        for group, flips in step.flips.items():
            own[group] = own[group][0] + FLIP * (len(flips) - own[group][1]), len(flips)
        if step.taken is not None:
            state, own = own[step.taken][0], {}
        groups = {
            group: [sample for batches in ranks for batch in batches for sample in batch]
            for group, ranks in step.parts.items()
        }
        of = {group: own.get(group, (state, 0))[0] for group in groups}
        losses.append(sum(loss(of[group], samples) for group, samples in groups.items()) / len(groups))
        gradient = sum(pull(of[group], s) for group, samples in groups.items() for s in samples) / len(groups)
        norms.append(abs(gradient))
        own = {group: (value - RATE * gradient, flips) for group, (value, flips) in own.items()}
        states[at] = state - RATE * gradient
        of_groups = {group: repr(value) for group, (value, _) in own.items()}
        hashes.append({EVERYBODY: repr(states[at]), **of_groups} if step.hashed else {})
    return Retrained(tuple(losses), tuple(norms), tuple(hashes))
