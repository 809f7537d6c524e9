"""Allows a manager's requests to the lighthouse: a quorum, and heartbeats, of its own replica id.

TorchFT's lighthouse serves any id, a dashboard and a kill endpoint, to all that connect. So the gate reads each manager's
HTTP/2 frames, and passes them unchanged once it knows what they ask.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hpack import Decoder, HPACKError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, RstStreamFrame

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

_HEAD = 9
_PREFIX = 5
"""Bytes before a gRPC message: whether it is compressed, and its length."""


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
        while (frame := self._next_frame()) is not None:
            self._read(frame)
        if any(message for _, message in self._asks.values()):
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

    def _next_frame(self) -> Frame | None:
        if len(self._unread) < _HEAD:
            return None
        try:
            frame, length = Frame.parse_frame_header(memoryview(bytes(self._unread[:_HEAD])))
            if length > FRAME_BYTES:
                raise Refused(f"a frame of {length} bytes")
            if len(self._unread) < _HEAD + length:
                return None
            frame.parse_body(memoryview(bytes(self._unread[_HEAD : _HEAD + length])))
        except HyperframeError as error:
            raise Refused(f"a frame that cannot be read: {error}") from error
        self._ready += self._unread[: _HEAD + length]
        del self._unread[: _HEAD + length]
        return frame

    def _read(self, frame: Frame) -> None:
        match frame:
            case HeadersFrame():
                self._open(frame)
            case ContinuationFrame():
                raise Refused("headers in several frames")
            case DataFrame():
                self._take(frame.stream_id, frame.data)
                if "END_STREAM" in frame.flags:
                    self._asks.pop(frame.stream_id, None)
            case RstStreamFrame():
                self._asks.pop(frame.stream_id, None)

    def _open(self, frame: HeadersFrame) -> None:
        try:
            paths = [value for name, value in self._headers.decode(frame.data, raw=True) if name == b":path"]
        except HPACKError as error:
            raise Refused(f"headers that cannot be read: {error}") from error
        if "END_HEADERS" not in frame.flags or frame.stream_id in self._asks:
            raise Refused("headers in several frames")
        if paths not in ([HEARTBEAT], [QUORUM]):
            raise Refused(f"it asks for {paths!r}")
        if len(self._asks) >= STREAMS:
            raise Refused(f"more than {STREAMS} requests at once")
        if "END_STREAM" not in frame.flags:
            self._asks[frame.stream_id] = paths[0], bytearray()

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
        while len(self._unread) >= _HEAD:
            frame, length = Frame.parse_frame_header(memoryview(bytes(self._unread[:_HEAD])))
            if len(self._unread) < _HEAD + length:
                break
            if isinstance(frame, DataFrame) and frame.stream_id not in self._begun:
                self._begun.add(frame.stream_id)
                newest = max(newest, _quorum_id(self._unread[_HEAD + _PREFIX : _HEAD + length]))
            if "END_STREAM" in frame.flags:
                self._begun.discard(frame.stream_id)
            del self._unread[: _HEAD + length]
        return newest


def _quorum_id(answer: bytearray) -> int:
    """Returns field 1 (a number) of field 1 (the quorum) of an answer that may be cut off after them; 0 if it has none."""
    try:
        if answer[0] != 0x0A:
            return 0
        _, at = _varint(answer, 1)
        return _varint(answer, at + 1)[0] if answer[at] == 0x08 else 0
    except IndexError:
        return 0


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value, shift, at, more = value | (data[at] & 0x7F) << shift, shift + 7, at + 1, data[at] & 0x80
        if not more:
            return value, at


def _replica_id(path: bytes, message: bytes) -> str:
    """Returns whom a request speaks for. Both wrappers have one field, number 1: the id of a heartbeat, the member of a
    quorum. Of a repeated field they take the last, so an id that counts is never before another."""
    try:
        if path == QUORUM:
            message = BytesValue.FromString(message).value
        return str(StringValue.FromString(message).value)
    except DecodeError as error:
        raise Refused("a message that cannot be read") from error
