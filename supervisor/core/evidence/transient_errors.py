"""Recognises errors of what lies outside of a node and its program: a network, a file system or a service that all
nodes use. They may pass.

A bug's message may have the same words in it ("unknown option 'timeout_s'", a size of 500). So words and numbers count
only if the type of the exception is one of input, output or networks. Sentences that only operating systems and network
libraries write count with any type.
"""

from __future__ import annotations

import re

from supervisor.core.evidence.error_text import of_a_lost_peer

_NAMED = r"(?<![\w'\"]){}(?=:|\((?!\))|\)|$| in \w)"
"""Places of an exception's type: `Type: ...`, `(Type)`, `Caught Type in ...`, `Caused by Type(...`, alone on a line."""

_PASSES = re.compile(
    _NAMED.format(
        r"(?:\w*Connection\w*Error|\w*Connect(?:or\w*)?(?:Error|Timeout)|\w*TimeoutE(?:rror|xception|xpired)|[a-z]\w*\.Timeout|\w+Timeout"
        r"|\w*NetworkError|\w*NameResolutionError|gaierror|BrokenPipeError|\w*Disconnect(?:ed)?(?:Error)?|IncompleteRead(?:Error)?"
        r"|ServiceUnavailable(?:Error)?|TooManyRequests|BadGateway|DeadlineExceeded)"
    )
    + r"|\ATimeout:",
    re.MULTILINE,
)
"""Types that suffice alone: of Python, torch (DistNetworkError), requests, urllib3, httpx, aiohttp, fsspec, botocore
and google.api_core."""

_OF_IO = re.compile(
    _NAMED.format(
        r"(?:OSError|IOError|EnvironmentError|BlockingIOError|InterruptedError|LocalEntryNotFoundError|\w*URLError|\w*H(?:TTP|ttp)\w*Error"
        r"|HTTPException|Request(?:Exception|Error)|ServiceRe(?:quest|sponse)Error|ClientResponseError|ClientPayloadError|ChunkedEncodingError"
        r"|\w*ProtocolError|\w*ProxyError|\w*SSL\w*Error|\w*MaxRetryError|RetryError|ClientError|InternalServerError|\w*RpcError"
        r"|Dist(?:Backend|Store)?Error|CheckpointException|CommError|TransportError|ReadError|WriteError|DatasetGenerationError)"
    ),
    re.MULTILINE,
)
"""Types that have other causes too. ClientError is botocore's, RetryError google's, CommError wandb's."""

_WORDS = re.compile(
    r"timed out|time-?out|connection|could ?n[o']t (?:connect|reach)|unreachable|unavailable|name resolution|network|max retries|disconnect"
    r"|too many requests|rate limit|rate exceeded|slow ?down|request rate|throttl|bad gateway|server error|server ?busy|\(InternalError\)"
    r"|deadline|temporar|try again|eof occurred",
    re.IGNORECASE,
)
_CODE = r"(?:429|50[0234])\b"
_IO_CODES = re.compile(
    rf"\b(?:errors?|code|occurred|response)\W{{0,3}}{_CODE}|(?<![\w.]){_CODE}\W{{1,3}}(?:server|client|service|get|post|put|head|message)\b",
    re.IGNORECASE,
)
_CODES = re.compile(
    rf"\bHTTP(?:/[\d.]+)?(?: (?:error|status|code|response))*[ :=]*{_CODE}|\bstatus(?:[ _]?code)?[ :=(]*{_CODE}",
    re.IGNORECASE,
)

_WHOEVER_SAYS_IT = re.compile(
    # the operating system's own sentences (strerror, getaddrinfo), which libraries pass on in errors of any type
    r"connection (?:refused|reset by|timed out|aborted)|(?:network|host) is (?:unreachable|down)|no route to host"
    r"|name resolution|name or service not known|input/output error|stale file handle|transport endpoint is not connected"
    r"|after transport endpoint shutdown|remote i/o error|timer expired|link has been severed|communication error on send"
    r"|no space left on device|disk quota exceeded|read-only file system"
    # gloo, TCPStore, and TorchFT's clients: a RuntimeError each
    r"|connect timeout|socket timeout|timed out waiting \d+ ?ms for|wait timeout after|failed to connect to|quorum timeout"
    r"|status: (?:unavailable|deadlineexceeded|cancelled)\b|deadline has elapsed|timeout expired"
    # torch's DataLoader; urllib3's last words in any error that is raised from it
    r"|dataloader timed out|max retries exceeded with url",
    re.IGNORECASE,
)

_PLACES = re.compile(r"\b\w+://[^\s'\"]+|(?<![\w.])(?:\.{0,2})/[^\s'\",:;)\]]+")
"""Addresses and paths, which do not count: a file may have any name."""


def of_what_is_shared(error: str) -> bool:
    """True if an error may come from a network, a file system or a service that all nodes use, and so may pass."""
    if of_a_lost_peer(error) or _PASSES.search(error):
        return True
    said = _PLACES.sub("*", error)
    if _WHOEVER_SAYS_IT.search(said) or _CODES.search(said):
        return True
    return _OF_IO.search(error) is not None and (_WORDS.search(said) or _IO_CODES.search(said)) is not None
