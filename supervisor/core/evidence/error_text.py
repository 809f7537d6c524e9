"""Reads the text of errors and logs: where an error was raised, its last words, and whether two errors are the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

SAME_CHARACTERS = 240
"""Characters of an error that are compared: the rest is tables, stacks and the like."""

WORDS_CHARACTERS = 300
WORDS_LINES = 20
"""Lines from the end of a log that are searched: an error that was logged long before has another cause."""

_FOR_A_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # a colour, a move of the cursor
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])(?:[^\x07\x1b\n\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c))?"  # a title, a link; or no end of it
    r"|\x1b[ -/]*[0-~]?"
)
"""Whole sequences of ECMA-48: removing only their first byte would leave the rest, as `[31m`."""

_CONTROL = re.compile(r"[^\n\t -~\xa0-\U0010ffff]")

_DIFFERS: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "*"),  # uuid
        (r"\b0x[0-9a-f]+\b", "*"),
        (r"(?<![\w.])[a-z][\w-]*(\.\d+){2,3}(?![\w.])", "*"),  # a rank's folder, a generation's way
        (r"/tmp/[^\s'\",:;)\]]+", "/tmp/*"),
        (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "*"),  # IPv4
        (r"\[[0-9a-f]*:[0-9a-f:]+(%\w+)?\](:\d+)?", "*"),  # IPv6
        (r"(?<=[\w\]]):\d{4,5}\b", ":*"),  # a port
        (r"\b\d{4}-\d\d-\d\d\b", "*"),
        (r"\b\d\d:\d\d:\d\d([.,]\d+)?(z|[+-]\d\d:?\d\d)?\b", "*"),
        (
            r"\b(pid|tid|process|thread|port|gen|generation|attempt|fd|rank|group|replica|device|gpu|cuda)"
            r"((?: id)?[\s=:#_-]*)\d+\b",
            r"\1\2*",
        ),
        (r"\b\d+(\.\d+)?(?=\s*(ns|us|ms|s|sec|secs|seconds?|min|minutes?|h|hours?|[kmgt]i?b|bytes?)\b)", "*"),
        (r"\b\d+\.\d+(e[+-]?\d+)?\b", "*"),  # measured
        (r"\b\d{9,}\b", "*"),  # unix times, large ids
        (r"\s+", " "),
    )
)

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+?)\s*$', re.MULTILINE)
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<frozen|^<string>")

_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(: |$)")
_TRACEBACK = "Traceback (most recent call last):"

_TELLING = re.compile(
    r"Fatal Python error|terminate called|^\s*what\(\):|assert|abort|segmentation fault|bus error|out of memory"
    r"|\b(error|exception|failed|fatal|panic|killed)\b|(Error|Exception)\b",
    re.IGNORECASE,
)
_FATAL = "Fatal Python error"
_STACK = "most recent call first"
_CURRENT = re.compile(rf"^Current thread .*{_STACK}.*$(\n  .*$)*", re.MULTILINE)
"""The stack of the thread that a fatal signal ended."""

_OF_THE_MACHINE = re.compile(
    r"\b(OSError|IOError|FileNotFoundError|PermissionError|BlockingIOError|ImportError|ModuleNotFoundError"
    r"|DistBackendError)\b|CUDA|cuDNN|cuBLAS|NCCL|NVML|\bECC\b|\bXid\b|driver|uncorrectable|cannot allocate|bus error",
    re.IGNORECASE,
)
_OF_A_LOST_PEER = re.compile(
    r"transport error|tcp connect error|connection (was )?(closed|reset) by (peer|remote)|remote process exited"
    r"|failed to recv, got 0 bytes"
    r"|broken pipe",
    re.IGNORECASE,
)
"""Messages by TorchFT's and TCPStore's clients, gloo and NCCL about a peer that is no longer there."""


def printable(text: str) -> str:
    """Removes colours, cursor moves and titles of a terminal. Lines and tabs stay; a carriage return ends a line."""
    text = _FOR_A_TERMINAL.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(" ", text)


def normal(text: str) -> str:
    """Replaces what differs between two errors of a kind: addresses, ports, process ids, times, sizes, folders."""
    for pattern, instead in _DIFFERS:
        text = pattern.sub(instead, text)
    return text.strip()[:SAME_CHARACTERS]


def signature(error: str, trace: str) -> str:
    """Text that is equal for two errors of the same type, message and place; empty without an error."""
    if not error:
        return ""
    place = where(trace)
    return normal(f"{error} ({place})" if place and len(error) < SAME_CHARACTERS else error)


def where(trace: str) -> str:
    """File, line and function of the last frame outside of libraries (else of the last one); empty without frames."""
    frames = list(_FRAME.finditer(trace))
    own = [f for f in frames if not _LIBRARY.search(f["file"])] or frames
    if not own:
        return ""
    # Python's own handler of fatal signals writes the newest frame first.
    frame = own[0] if _STACK in trace else own[-1]
    return f"{frame['file']}, line {frame['line']}, in {frame['function']}"


def raised(log: str) -> tuple[str, str]:
    """Returns the error and the traceback with which a log ends; two empty texts if it does not end with one."""
    at = log.rfind(_TRACEBACK)
    if at < 0:
        return "", ""
    lines = log[at:].splitlines()
    ends = next((n for n, line in enumerate(lines[1:], 1) if line and not line[0].isspace()), None)
    if ends is None or not _RAISED.match(lines[ends]):
        return "", ""
    return "\n".join(lines[ends:]).strip(), "\n".join(lines[: ends + 1])


def last_words(log: str) -> str:
    """Returns the last lines of a log that report an error, else its last line."""
    fatal = log.rfind(_FATAL)
    end = log.find("\n", fatal) if fatal >= 0 else -1
    head, stacks = (log[:end], log[end:]) if end >= 0 else (log, "")
    lines = [line.strip() for line in head.splitlines() if re.search(r"\w", line)][-WORDS_LINES:]
    if not lines:
        return ""
    telling = {n for n, line in enumerate(lines) if _TELLING.search(line)}
    last = first = max(telling, default=len(lines) - 1)
    while first - 1 in telling and last - first < 2:
        first -= 1
    words = " / ".join(lines[first : last + 1])[-WORDS_CHARACTERS:]
    current = _CURRENT.search(stacks)
    place = where(current[0]) if current is not None else ""
    return f"{words} ({place})" if place else words


def of_the_machine(text: str) -> bool:
    """Returns true if an error may be the fault of its node: of its devices, files or libraries."""
    return _OF_THE_MACHINE.search(text) is not None


def of_a_lost_peer(text: str) -> bool:
    """Returns true if an error reports that another process went away: the end of that one is its cause."""
    return _OF_A_LOST_PEER.search(text) is not None
