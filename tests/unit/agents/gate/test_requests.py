"""The gate's look at a manager's requests, on frames as TorchFT's manager sends them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from agents.gate.requests import FRAME_BYTES, HEARTBEAT, PREFACE, QUORUM, STREAMS, Answers, Refused, Requests

OWN, OTHER = "run_0:5f3c", "run_1:90aa"


def heartbeat(replica_id: str) -> bytes:
    return message(StringValue(value=replica_id).SerializeToString())


def quorum(replica_id: str, shrink_only: bytes = b"") -> bytes:
    member = StringValue(value=replica_id).SerializeToString() + b"\x12\x16http://127.0.0.1:41391 \x05(\x01"
    member += shrink_only
    return message(BytesValue(value=member).SerializeToString())


def message(body: bytes, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(body).to_bytes(4) + body


class Client:
    """A manager's side of an HTTP/2 connection."""

    def __init__(self) -> None:
        self.headers = Encoder()
        self.stream = 1

    def opens(self) -> list[Frame]:
        return [SettingsFrame(0, {2: 0, 5: 16384}), SettingsFrame(0, flags=["ACK"]), WindowUpdateFrame(0, 5177345)]

    def head(self, path: bytes, *more: tuple[bytes, bytes], flags: Iterable[str] = ("END_HEADERS",)) -> Frame:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"te", b"trailers"), *more]
        return HeadersFrame(self.stream, self.headers.encode(fields), flags=flags)

    def asks(self, path: bytes, body: bytes, cut_at: int | None = None) -> list[Frame]:
        cut = len(body) if cut_at is None else min(cut_at, len(body))
        parts = [DataFrame(self.stream, part) for part in (body[:cut], body[cut:]) if part]
        frames = [self.head(path), *parts, DataFrame(self.stream, b"", flags=["END_STREAM"])]
        self.stream += 2
        return frames


def on_wire(frames: Iterable[Frame], preface: bytes = PREFACE) -> bytes:
    return preface + b"".join(frame.serialize() for frame in frames)


def what_a_manager_sends(cut_at: int | None = None) -> bytes:
    client = Client()
    return on_wire(
        [
            *client.opens(),
            *client.asks(HEARTBEAT, heartbeat(OWN)),
            *client.asks(QUORUM, quorum(OWN), cut_at),
            *client.asks(QUORUM, quorum(OWN, b"0\0")),
            PingFrame(0, b"12345678"),
            RstStreamFrame(3, 8),
            *itertools.chain.from_iterable(client.asks(HEARTBEAT, heartbeat(OWN)) for _ in range(STREAMS + 1)),
        ]
    )


@given(st.lists(st.integers(1, 400), max_size=30), st.integers(1, 60))
def test_what_a_manager_asks_passes_unchanged_however_it_comes(pieces: list[int], cut_at: int) -> None:
    sent, asked, passed, at = what_a_manager_sends(cut_at), Requests(OWN), b"", 0
    for piece in [*pieces, len(sent)]:
        passed += asked.passing(sent[at : at + piece])
        at += piece
        assert sent.startswith(passed)
    assert passed == sent


def test_no_byte_of_a_request_passes_before_its_message_is_whole() -> None:
    client, asked = Client(), Requests(OWN)
    begun = on_wire(client.opens())
    assert asked.passing(begun) == begun
    head, data, end = client.asks(QUORUM, quorum(OTHER))
    assert asked.passing(head.serialize() + data.serialize()[:-1]) == head.serialize()
    with pytest.raises(Refused, match=f"speaks for '{OTHER}'"):
        asked.passing(data.serialize()[-1:] + end.serialize())


def twice(first: str, last: str) -> bytes:
    """A quorum's request with two members: protobuf joins them."""
    members = [
        BytesValue(value=StringValue(value=each).SerializeToString()).SerializeToString() for each in (first, last)
    ]
    return message(b"".join(members))


KILL = f"/replica/{OTHER}/kill".encode()
FORGED = {
    "heartbeat of another": ([*Client().asks(HEARTBEAT, heartbeat(OTHER))], "speaks for"),
    "quorum of another": ([*Client().asks(QUORUM, quorum(OTHER))], "speaks for"),
    "id that begins alike": ([*Client().asks(HEARTBEAT, heartbeat(OWN + "0"))], "speaks for"),
    "no id": ([*Client().asks(HEARTBEAT, message(b""))], "speaks for"),
    "another member last": ([*Client().asks(QUORUM, twice(OWN, OTHER))], "2 members"),
    "its own member last": ([*Client().asks(QUORUM, twice(OTHER, OWN))], "2 members"),
    "an empty member last": ([*Client().asks(QUORUM, twice(OTHER, ""))], "speaks for"),
    "no member": ([*Client().asks(QUORUM, message(b""))], "0 members"),
    "a member that is a number": ([*Client().asks(QUORUM, message(b"\x08\x01"))], "cannot be read"),
    "a shrinking member first": (
        [*Client().asks(QUORUM, message(quorum(OWN, b"0\x01")[5:] + quorum(OWN)[5:]))],
        "2 members",
    ),
    "a quorum that only shrinks": ([*Client().asks(QUORUM, quorum(OWN, b"0\x01"))], "only shrinks"),
    "that twice": ([*Client().asks(QUORUM, quorum(OWN, b"0\x01" + b"0\0"))], "only shrinks"),
    "a path of its own": ([Client().head(KILL)], "asks for"),
    "the dashboard": ([Client().head(b"/")], "asks for"),
    "two paths": ([Client().head(HEARTBEAT, (b":path", KILL))], "asks for"),
    "no path": ([HeadersFrame(1, Encoder().encode([(b"te", b"trailers")]), flags=["END_HEADERS"])], "asks for"),
    "headers in parts": ([Client().head(HEARTBEAT, flags=()), ContinuationFrame(1, b"")], "several frames"),
    "data of no request": ([DataFrame(1, heartbeat(OWN))], "belong to no request"),
    "data after the end": ([*Client().asks(HEARTBEAT, heartbeat(OWN)), DataFrame(1, heartbeat(OTHER))], "no request"),
    "compressed": ([*Client().asks(HEARTBEAT, message(b"x", compressed=True))], "compressed"),
    "two messages": ([*Client().asks(HEARTBEAT, heartbeat(OWN) + heartbeat(OTHER))], "two in one"),
    "a message too long": (
        [Client().head(QUORUM), *(DataFrame(1, b"\0\xff\xff\xff\xff" + bytes(16_000)) for _ in range(5))],
        "no request",
    ),
    "a message that does not end": (
        [Client().head(QUORUM), DataFrame(1, b"\0"), *(PingFrame(0, b"12345678") for _ in range(10_000))],
        "does not end",
    ),
    "a frame too long": ([Client().head(QUORUM), DataFrame(1, bytes(FRAME_BYTES + 1))], "a frame of"),
    "not UTF-8": ([*Client().asks(HEARTBEAT, message(b"\n\x02\xff\xfe"))], "cannot be read"),
    "padded headers": (
        [HeadersFrame(1, Encoder().encode([(b":path", HEARTBEAT)]), flags=["END_HEADERS", "PADDED"])],
        "padded",
    ),
    "padded data": ([Client().head(HEARTBEAT), DataFrame(1, heartbeat(OWN), flags=["PADDED"])], "padded"),
    "headers that are none": ([HeadersFrame(1, b"\xff\xff\xff\xff\xff\xff", flags=["END_HEADERS"])], "cannot be read"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_not_its_own_is_refused(name: str) -> None:
    frames, why = FORGED[name]
    with pytest.raises(Refused, match=why):
        Requests(OWN).passing(on_wire(frames))


def test_more_requests_at_once_than_any_manager_has_are_refused() -> None:
    client = Client()
    frames = []
    for _ in range(STREAMS + 1):
        frames.append(client.head(QUORUM))
        client.stream += 2
    with pytest.raises(Refused, match="at once"):
        Requests(OWN).passing(on_wire(frames))


@pytest.mark.parametrize("data", [b"POST " + KILL + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/1"])
def test_other_protocols_are_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="HTTP/2"):
        Requests(OWN).passing(data)


@given(st.binary(max_size=300))
def test_any_bytes_pass_or_are_refused(data: bytes) -> None:
    asked = Requests(OWN)
    try:
        assert (PREFACE + data).startswith(asked.passing(PREFACE + data))
    except Refused:
        pass


def answer(stream: int, quorum_id: int, rest: bytes = bytes(200)) -> list[Frame]:
    """A quorum as the lighthouse answers it, in two frames; a heartbeat's answer for 0."""
    number = Int64Value(value=quorum_id).SerializeToString()
    body = message(BytesValue(value=number + b"\x12" + bytes([len(rest) & 0x7F]) + rest).SerializeToString())
    parts = [body[:60], body[60:]] if quorum_id else [message(b"")]
    return [
        HeadersFrame(stream, Encoder().encode([(b":status", b"200")]), flags=["END_HEADERS"]),
        *(DataFrame(stream, part) for part in parts),
        HeadersFrame(stream, Encoder().encode([(b"grpc-status", b"0")]), flags=["END_HEADERS", "END_STREAM"]),
    ]


@given(st.lists(st.integers(1, 200), max_size=20))
def test_the_number_of_a_quorum_is_read_from_the_answer_to_it(pieces: list[int]) -> None:
    frames = [*answer(1, 0), *answer(3, 300), *answer(5, 0), *answer(3, 2**40, bytes(range(100))), SettingsFrame(0)]
    sent, answers, seen, at = on_wire(frames, preface=b""), Answers(), [], 0
    for piece in [*pieces, len(sent)]:
        seen.append(answers.quorum_id(sent[at : at + piece]))
        at += piece
    assert max(seen) == 2**40
    assert set(seen) <= {0, 300, 2**40}
