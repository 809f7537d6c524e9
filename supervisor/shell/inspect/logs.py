"""Reads the output of hooks and supervisors, as far as this machine has it, with only one block in memory at a time."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.report.visible import visible
from supervisor.shell.dev.home import system_folder
from supervisor.wire import rotated

BLOCK_BYTES = 64 * 1024
LINE_CHARACTERS = 2**20
"""Longest line as JSON, which must be in memory as a whole. As text, each line is shown to its end."""

_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,29})?\Z")
"""A colour sequence that continues in the next block."""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The last lines of one log, across its rotated files."""

    node: str
    path: str
    begins: tuple[tuple[Path, int], ...] = ()
    """The files that hold them, oldest first, and the byte of each at which to begin."""
    given: str = ""
    """The lines themselves, where the node gave them instead of this machine's files."""

    def text(self) -> Iterator[str]:
        """Yields the text in blocks that are safe for a terminal. Carriage returns end lines, as in progress bars."""
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        rest = ""
        for block in self._blocks():
            text = rest + decoder.decode(block)
            cut = _UNFINISHED.search(text, max(0, len(text) - 32))
            text, rest = (text[: cut.start()], cut[0]) if cut else (text, "")
            yield visible(text)
        yield visible(rest + decoder.decode(b"", final=True))

    def lines(self) -> Iterator[str]:
        """Yields lines of at most LINE_CHARACTERS, with a note on what is left out."""
        held, more = "", 0
        for block in self.text():
            first, *others = block.split("\n")
            for at, piece in enumerate([first, *others]):
                if at:
                    yield _whole(held, more)
                    held, more = "", 0
                room = LINE_CHARACTERS - len(held)
                held, more = held + piece[:room], more + max(0, len(piece) - room)
        if held:
            yield _whole(held, more)

    def _blocks(self) -> Iterator[bytes]:
        yield self.given.encode(errors="replace")
        for path, offset in self.begins:
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    while block := file.read(BLOCK_BYTES):
                        yield block
            except OSError:
                continue  # its node has removed or rotated it


@dataclass(frozen=True, kw_only=True)
class HookTail(Tail):
    """The last lines of a hook's output when it ran last on its node."""

    hook: str
    """before or after."""


@dataclass(frozen=True, kw_only=True)
class SupervisorTail(Tail):
    """The last lines of a supervisor's own log. `node`: the leader's host, if that gave them; else empty."""


def kept_in(home: Path) -> Path:
    """Returns the folder that holds `nodes/`: that of `supervisor up`, or an agent's home under an engine."""
    return home if (home / "nodes").is_dir() else system_folder(home)


def of_hooks(system: Path, run: str, lines: int) -> list[HookTail]:
    """Returns the tails of a run's hooks, by node, `before` first."""
    found = []
    for which in ("before", "after"):
        for path in system.glob(f"nodes/*/hooks/{run}/{which}.log"):
            begins = tuple(_last_lines([path], lines))
            found.append(HookTail(node=path.parts[-4], hook=which, path=str(path), begins=begins))
    return sorted(found, key=lambda t: t.node)


def of_supervisors(system: Path, lines: int) -> list[SupervisorTail]:
    """Returns the tails of the logs of this machine's supervisors, by name."""
    paths = sorted(system.glob("supervisor*.log"))
    return [
        SupervisorTail(node="", path=str(path), begins=tuple(_last_lines([*rotated.parts(path), path], lines)))
        for path in paths
    ]


def none_below(home: Path, run: str) -> str:
    """Returns a sentence for a machine that has no log of a run."""
    return f"no logs of run {run} below {home}: look on a node that ran it, with the --home of its agent"


def head(tail: Tail) -> str:
    """Returns the line above a tail's text."""
    if isinstance(tail, SupervisorTail):
        return f"== supervisor{f' on {tail.node}' if tail.node else ''}: {tail.path}"
    assert isinstance(tail, HookTail)
    return f"== hook {tail.hook} on {tail.node}: {tail.path}"


def _last_lines(paths: list[Path], lines: int) -> list[tuple[Path, int]]:
    """Finds where the last lines begin. Reads backwards, block by block, until it has seen enough line ends."""
    found: list[tuple[Path, int]] = []
    left = lines
    at_end = True  # the end of the last line begins no further line
    for path in reversed(paths):
        try:
            with path.open("rb") as file:
                end = file.seek(0, io.SEEK_END)
                while end:
                    start = max(0, end - BLOCK_BYTES)
                    file.seek(start)
                    # a progress bar's lines end with \r alone; the block must keep its length
                    block = file.read(end - start).replace(b"\r\n", b" \n").replace(b"\r", b"\n")
                    stop = len(block) - (at_end and block.endswith(b"\n"))
                    at_end = False
                    while (stop := block.rfind(b"\n", 0, stop)) >= 0:
                        left -= 1
                        if not left:
                            return [(path, start + stop + 1), *found]
                    end = start
        except OSError:
            continue
        found.insert(0, (path, 0))
    return found


def _whole(line: str, more: int) -> str:
    return f"{line} ... {more} more characters" if more else line
