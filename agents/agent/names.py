"""Names of the processes on a node, as docs/adr/0001-node-protocols.md defines them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache

from supervisor.wire import logged


@dataclass(frozen=True, slots=True, order=True)
class TrainerName:
    """One rank of a generation of a group: `RUN.GROUP.GENERATION.RANK`."""

    run: str
    group: int
    generation: int
    rank: int

    def __str__(self) -> str:
        return f"{self.way}.{self.rank}"

    @property
    def way(self) -> str:
        """Name of the generation's forwarder."""
        return f"{self.run}.{self.group}.{self.generation}"


@dataclass(frozen=True, slots=True, order=True)
class LighthouseName:
    """The process of a gate, whose child the lighthouse is: `lighthouse.RUN.GENERATION`."""

    run: str
    generation: int

    def __str__(self) -> str:
        return f"lighthouse.{self.run}.{self.generation}"


Name = TrainerName | LighthouseName


def about(text: str) -> dict[str, dict[str, object]]:
    """Returns the log fields for a line about this process, for `supervisor.wire.logged`."""
    name = parse(text)
    return logged.about(**asdict(name)) if name is not None else {}


@lru_cache(maxsize=1024)
def parse(text: str) -> Name | None:
    """Returns the parsed name, or None if it is not ours. An agent parses a few names dozens of times a turn."""
    match text.split("."):
        case ["lighthouse", run, generation] if generation.isdigit():
            return LighthouseName(run, int(generation))
        case [run, group, generation, rank] if all(part.isdigit() for part in (group, generation, rank)):
            return TrainerName(run, int(group), int(generation), int(rank))
    return None
