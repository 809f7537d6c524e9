"""Requests to a node, and its answers: the etcd keys and records by which a person asks a node's agent.

They are not under `keys.PREFIX`: every supervisor, page and command holds all of that in memory, and every `reader` reads
it. An answer may have megabytes, and may show what a command printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from supervisor.wire.records import ascii_json

PREFIX = "/supervisor/requests/v1/"

ASKED = PREFIX + "asked/"
ANSWERS = PREFIX + "answers/"

LEADER = "@leader"
"""Name under which the leader is asked for its own log, as a node by its own. No node can have it."""

PART_BYTES = 256 * 1024
"""Most bytes of one part of an answer: etcd takes 1.5 MiB for a request by default."""
ANSWER_BYTES = 16 * 2**20
"""Most bytes of a whole answer."""
TEXT_CHARACTERS = 16 * 1024
"""Most characters of a text in an item. JSON may write 12 bytes for one, and an item must fit into a part."""

UNTIL_CLOSED_S = 10 * 365 * 86400.0
"""Limit of a request that ends with its asker alone."""

Item = dict[str, Any]
"""A piece of an answer; its fields depend on what was asked."""


def asked(node: str, request: str) -> str:
    """A request to the node, under the lease of the program that asks. Written by the CLI."""
    return f"{ASKED}{node}/{request}"


def answer(node: str, request: str, number: int | None = None) -> str:
    """A part of the answer to a request (without a number: the prefix of all). Written by the agent, under its lease;
    deleted by it once the request is gone."""
    return f"{ANSWERS}{node}/{request}/" + ("" if number is None else f"{number:06d}")


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """One request to one node. It ends with the program that asks, at the latest."""

    node: str
    what: Literal["stacks", "exec", "logs", "follow", "hooks", "debug", "mesh"]
    by: str
    """The asker: user@machine, by the asking program's own word."""
    limit_s: float
    """Seconds that the node may take."""
    run: str = ""
    group: int | None = None
    """Only this group; None: all. With a rank: that rank."""
    rank: int | None = None
    command: tuple[str, ...] = ()
    """exec: the program and its arguments."""
    most_bytes: int = ANSWER_BYTES
    """exec: bytes of output after which the command is ended."""
    lines: int = 20
    """logs, and follow without a position: newest lines of all logs together; hooks: of each log."""
    since_s: float | None = None
    """logs, follow: only lines that are not older than these seconds, by the node's clock."""
    grep: str = ""
    """logs, follow, hooks: only lines with this text."""
    position: dict[str, Any] = field(default_factory=dict)
    """follow: where the answer before ended (node_logs.Position); empty: there was none."""
    text: str | None = None
    """debug: a line for the debugger; None: only a look at what it has printed."""
    pems: dict[str, str] = field(default_factory=dict, repr=False)
    """mesh: the files of `monarch.PEMS`, with a private key that serves this mesh alone."""

    def takes(self, t: float, text: str, now: float) -> bool:
        """Returns true if a line with this time is wanted. Both times in Unix seconds, by the same clock."""
        return (self.since_s is None or t >= now - self.since_s) and self.grep in text


@dataclass(frozen=True, kw_only=True)
class AnswerPart:
    """A part of an answer. The first part is empty: it shows that the agent has the request."""

    node: str
    number: int
    """From 0, without gaps."""
    items: tuple[Item, ...] = ()
    last: bool = False
    error: str = ""
    """Why the node could not do it, or not all of it: a sentence. Only in the last part."""


def pieces(text: str) -> Iterator[str]:
    """Yields the text in pieces of at most TEXT_CHARACTERS; a piece for an empty text, too."""
    for at in range(0, max(1, len(text)), TEXT_CHARACTERS):
        yield text[at : at + TEXT_CHARACTERS]


def size(items: Iterable[Item]) -> int:
    """Returns the bytes that these items take in a part."""
    return sum(len(ascii_json(item)) + 1 for item in items)
