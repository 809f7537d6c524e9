"""Allows a manager's requests to the lighthouse: a quorum, and heartbeats, of its own replica id.

TorchFT's lighthouse serves any id, a dashboard and a kill endpoint, to all that connect. So the gate reads each manager's
HTTP/2 frames, and passes them unchanged once it knows what they ask.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from google.protobuf.wrappers_pb2 import StringValue
from hpack import Decoder, HPACKError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of an HTTP/2 client (RFC 9113, 3.4)."""

HEARTBEAT = b"/torchft.LighthouseService/Heartbeat"
QUORUM = b"/torchft.LighthouseService/Quorum"

FRAME_BYTES = 16_384
"""Longest frame that the lighthouse's HTTP/2 accepts by default (RFC 9113, 4.2)."""
MESSAGE_BYTES = 65_536
"""Longest message: a quorum's request has a few hundred bytes, and what a trainer adds to it."""
STREAMS = 100
"""Most requests at once. A manager has one heartbeat and one quorum."""

SHRINK_ONLY = 6
"""Number of that field of a quorum's member in TorchFT's protocol."""

DATA, HEADERS, RST_STREAM, CONTINUATION = 0, 1, 3, 9
"""Kinds of frames (RFC 9113, 6)."""
END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
"""Flags of DATA and HEADERS (6.1, 6.2)."""

_HEAD = 9
"""Bytes before a frame: 3 of its length, its kind, its flags, 4 of its stream (4.1)."""
_PREFIX = 5
"""Bytes before a gRPC message: whether it is compressed, and its length."""


class _Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    whole: bytes

    @property
    def body(self) -> bytes:
        return self.whole[_HEAD:]


def _take_frame(unread: bytearray) -> _Frame | None:
    """Takes the first frame out, if it is whole. Raises Refused for one that is too long."""
    if len(unread) < _HEAD:
        return None
    length = int.from_bytes(unread[:3])
    if length > FRAME_BYTES:
        raise Refused(f"a frame of {length} bytes")
    if len(unread) < _HEAD + length:
        return None
    whole = bytes(unread[: _HEAD + length])
    del unread[: _HEAD + length]
    return _Frame(whole[3], whole[4], int.from_bytes(whole[5:_HEAD]) & 0x7FFFFFFF, whole)


class Refused(ValueError):
    """The manager asked for what it may not; the text says for what."""


class Requests:
    """One connection of a manager to the lighthouse."""

    def __init__(self, replica_id: str) -> None:
        self._replica_id = replica_id
        self._headers = Decoder(max_header_list_size=FRAME_BYTES)
        self._began = False
        self._unread = bytearray()
        self._ready = bytearray()
        self._asks: dict[int, tuple[bytes, bytearray]] = {}
        """Stream -> what it asks for, and what has come of its message."""

    def passing(self, data: bytes) -> bytes:
        """Returns what may pass now that `data` has come. A frame passes whole, a message with its last frame.

        Raises Refused.
        """
        self._unread += data
        if not self._began and not self._begin():
            return b""
        while (frame := _take_frame(self._unread)) is not None:
            self._read(frame)
            self._ready += frame.whole
        if any(message for _, message in self._asks.values()):
            if len(self._ready) > 2 * MESSAGE_BYTES:
                raise Refused("a message that does not end")
            return b""
        ready, self._ready = bytes(self._ready), bytearray()
        return ready

    def _begin(self) -> bool:
        if not self._unread.startswith(PREFACE[: len(self._unread)]):
            raise Refused(f"it does not speak HTTP/2: {bytes(self._unread[:40])!r}")
        if len(self._unread) >= len(PREFACE):
            self._ready += PREFACE
            del self._unread[: len(PREFACE)]
            self._began = True
        return self._began

    def _read(self, frame: _Frame) -> None:
        if frame.kind in (DATA, HEADERS) and frame.flags & (PADDED | PRIORITY):
            raise Refused("a padded frame")
        if frame.kind == HEADERS:
            self._open(frame)
        elif frame.kind == CONTINUATION:
            raise Refused("headers in several frames")
        elif frame.kind == DATA:
            self._take(frame.stream, frame.body)
            if frame.flags & END_STREAM:
                self._asks.pop(frame.stream, None)
        elif frame.kind == RST_STREAM:
            self._asks.pop(frame.stream, None)

    def _open(self, frame: _Frame) -> None:
        try:
            paths = [value for name, value in self._headers.decode(frame.body, raw=True) if name == b":path"]
        except HPACKError as error:
            raise Refused(f"headers that cannot be read: {error}") from error
        if not frame.flags & END_HEADERS or frame.stream in self._asks:
            raise Refused("headers in several frames")
        if paths not in ([HEARTBEAT], [QUORUM]):
            raise Refused(f"it asks for {paths!r}")
        if len(self._asks) >= STREAMS:
            raise Refused(f"more than {STREAMS} requests at once")
        if not frame.flags & END_STREAM:
            self._asks[frame.stream] = paths[0], bytearray()

    def _take(self, stream: int, data: bytes) -> None:
        path, message = self._asks.get(stream, (b"", bytearray()))
        message += data
        if not path or len(message) > MESSAGE_BYTES:
            raise Refused(f"{len(message)} bytes that belong to no request")
        if len(message) < _PREFIX or len(message) < _PREFIX + int.from_bytes(message[1:_PREFIX]):
            return
        if message[0] or len(message) > _PREFIX + int.from_bytes(message[1:_PREFIX]):
            raise Refused("a compressed message, or two in one request")
        if (claimed := _replica_id(path, bytes(message[_PREFIX:]))) != self._replica_id:
            raise Refused(f"it speaks for {claimed!r}, and is {self._replica_id!r}")
        message.clear()


class Answers:
    """Reads the numbers of quorums from the lighthouse's answers to a manager."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._begun: set[int] = set()
        """Streams whose answer has begun."""

    def quorum_id(self, data: bytes) -> int:
        """Returns the number of the newest quorum that begins in `data`; 0 if none does. The lighthouse is our own: its
        frames are in order."""
        self._unread += data
        newest = 0
        while (frame := _take_frame(self._unread)) is not None:
            if frame.kind == DATA and frame.stream not in self._begun:
                self._begun.add(frame.stream)
                newest = max(newest, _quorum_id(frame.body[_PREFIX:]))
            if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM:
                self._begun.discard(frame.stream)
        return newest


def _quorum_id(answer: bytes) -> int:
    """Returns field 1 (a number) of field 1 (the quorum) of an answer that may be cut off after them; 0 if it has none."""
    try:
        if answer[0] != 0x0A:
            return 0
        _, at = _varint(answer, 1)
        return _varint(answer, at + 1)[0] if answer[at] == 0x08 else 0
    except IndexError:
        return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value, shift, at, more = value | (data[at] & 0x7F) << shift, shift + 7, at + 1, data[at] & 0x80
        if not more:
            return value, at


def _replica_id(path: bytes, message: bytes) -> str:
    """Returns whom a request speaks for: field 1 of a heartbeat, or of the member that is field 1 of a quorum's request. A
    repeated text counts by its last. Raises Refused for several members, which the lighthouse would merge, and for one that
    asks to shrink the quorum: it would keep out every group that was not in the last one."""
    try:
        if path == QUORUM:
            members = [field.data for field in _fields(message) if field.field_number == 1]
            if len(members) != 1:
                raise Refused(f"it asks for {len(members)} members of a quorum, and a group is one")
            message = members[0]
            if any(field.field_number == SHRINK_ONLY and field.data for field in _fields(message)):
                raise Refused("it asks for a quorum that only shrinks: leave out `shrink_only`")
        return str(StringValue.FromString(message).value)
    except (DecodeError, TypeError) as error:
        raise Refused("a message that cannot be read") from error


def _fields(message: bytes) -> UnknownFieldSet:
    """Returns all fields of a message as they stand in it, repeated ones too."""
    return UnknownFieldSet(Empty.FromString(message))
