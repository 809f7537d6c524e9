"""Every record survives its way through the store; an unreadable one is refused, and nothing else happens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.core.model.incident import Incident
from supervisor.core.model.kinds import Kind
from supervisor.core.model.memory import AllocationMemory, GroupMemory, Memory, PastFailure
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.seats import Seat
from supervisor.core.model.spec import RunSpec
from supervisor.wire import records
from supervisor.wire.records import VERSION, NewerRecord, RecordError, decode, encode, newer
from tests.helpers.reasons import held_against

KINDS: list[type[Any]] = [
    *sorted(
        (
            kind
            for kind in vars(records).values()
            if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == records.__name__
        ),
        key=lambda kind: kind.__name__,
    ),
    Memory,
    GroupMemory,
    AllocationMemory,
    Incident,
    RunSpec,
]


def test_every_record_of_the_wire_is_here() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert {"Progress", "NodeDesired", "GateObserved", "Control", "RunRecord", "LeaderRecord"} <= names
    assert len(names) == len(KINDS), "two kinds of one name could be taken for each other"


OVERRIDES = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(-9, 9), st.booleans(), st.text(max_size=5)))


REASONS = st.recursive(
    st.builds(
        Reason,
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=5)), max_size=2),
    ),
    lambda within: st.builds(
        Reason,
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=5), st.one_of(within, st.lists(within, max_size=2).map(tuple))),
    ),
    max_leaves=3,
)


@pytest.fixture(scope="module", autouse=True)
def _values() -> None:
    """JSON knows no NaN that equals itself; a table is a dict; the leaves of overrides are those of TOML."""
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    st.register_type_strategy(
        Mapping, lambda kind: st.dictionaries(*(st.from_type(t) for t in get_args(kind)), max_size=2)
    )
    st.register_type_strategy(Reason, REASONS)
    st.register_type_strategy(
        records.TitanSpec, st.builds(records.TitanSpec, overrides=OVERRIDES, steps=st.integers(1, 1000))
    )


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("nothing cheaper is left: restart: budget spent (3 within 3600 s)", Code.NOTHING_LEFT),
        ("another group is the cause: its own numbers were finite", Code.ANOTHERS_FAULT),
        ("one cause, not its node's: started again where it was, at no budget (the breaker holds)", Code.BREAKER_HOLDS),
        ("the same at step 20 2 times in a row, on n1", Code.SEEN_AGAIN),
        ("the same before its first commit 3 times in a row, on n1 and n2", Code.SEEN_AGAIN),
        ("a process ended and its node lives", Code.TEXT),
        ("incident i2: crash; incident i3: node_lost", Code.TEXT),
    ],
)
def test_a_sentence_of_version_1_is_read_as_a_reason(sentence: str, code: Code) -> None:
    assert of_version_1(sentence) == Reason.of(code, text=sentence)


def of_version_1(sentence: str) -> Reason | None:
    """Reads the reason for which a group is suspended, as version 1 kept it."""
    old = {"$kind": "GroupMemory", "$version": 1, "group": 3, "left_out": sentence}
    return decode(json.dumps(old), GroupMemory).left_out


@pytest.mark.parametrize(
    ("sentence", "reason"), [("incident i2: crash", held_against("i2", Kind.CRASH)), ("", None)], ids=["held", "none"]
)
def test_what_version_1_had_no_own_words_for_is_no_text(sentence: str, reason: Reason | None) -> None:
    assert of_version_1(sentence) == reason


HERE, THERE = Seat("n1", "h1", "run-a1"), Seat("n1", "", "run-a1")


@pytest.mark.parametrize(
    ("phase", "names", "seats", "left"),
    [
        ("unplaced", ("", "", "", ""), (), ()),
        ("running", ("n1", "h1", "run-a1", ""), (HERE,), ()),
        ("running", ("n1", "", "", ""), (Seat("n1"),), ()),
        ("placing", ("n1", "h1", "run-a1", "n1"), (HERE,), (THERE,)),
        ("fencing", ("", "", "run-a1", "n1"), (), (THERE,)),
        ("placing", ("", "", "run-a1", "n1"), (), (THERE,)),
        ("finished", ("n1", "h1", "run-a1", "n1"), (HERE,), (THERE,)),
    ],
)
def test_a_group_of_version_2_is_read_with_its_seats(
    phase: str, names: tuple[str, ...], seats: tuple[Seat, ...], left: tuple[Seat, ...]
) -> None:
    body = dict(zip(("node", "host", "allocation", "old_node"), names, strict=True))
    old = {"$kind": "GroupMemory", "$version": 2, "group": 3, "generation": 4, "phase": phase, "since": 7.5, **body}
    read = decode(json.dumps(old), GroupMemory)
    assert read == GroupMemory(group=3, generation=4, phase=phase, since=7.5, seats=seats, left=left)  # type: ignore[arg-type]
    assert decode(encode(read), GroupMemory) == read


SHOWN = {"kind": "crash", "host": "h1", "incident": "i3", "at": 30.5, "step": 7, "same": "ended by SIGSEGV"}
CRASH = PastFailure(kind=Kind.CRASH, host="h1", incident="i3", at=30.5, step=7, same="ended by SIGSEGV")
HUNG = {"kind": "hang", "host": "h2", "incident": "i1", "at": 10.0, "step": 2, "followed": True, "rank": 1}
HANG = PastFailure(kind=Kind.HANG, host="h2", incident="i1", at=10.0, step=2, followed=True, rank=1)


def earlier(at: float) -> PastFailure:
    """A restart of which version 4 kept the time alone."""
    return PastFailure(kind=Kind.STALLED, host="h1", incident="", at=at, step=0, restarted=True)


@pytest.mark.parametrize(
    ("shown", "restarts", "host", "failures"),
    [
        ([], [], "", ()),
        ([HUNG, SHOWN], [], "h1", (HANG, CRASH)),
        ([], [30.5], "h1", (earlier(30.5),)),
        ([HUNG, SHOWN], [5, 30.5], "h1", (earlier(5), earlier(30.5), HANG, CRASH)),
    ],
)
def test_a_group_of_version_4_is_read_with_one_history(
    shown: list[dict[str, Any]], restarts: list[float], host: str, failures: tuple[PastFailure, ...]
) -> None:
    kept = {"restarts_here": restarts, "restarts_host": host, "shown": shown}
    old = {"$kind": "GroupMemory", "$version": 4, "group": 3, "seats": [{"node": "n1"}], **kept}
    read = decode(json.dumps(old), GroupMemory)
    assert read == GroupMemory(group=3, seats=(Seat("n1"),), failures=failures)
    assert decode(encode(read), GroupMemory) == read


@pytest.mark.parametrize("kept", [{"shown": [{}]}, {"shown": None}, {"restarts_here": ["a"]}, {"restarts_here": 5}])
def test_a_group_of_version_4_with_a_history_that_is_none_is_corrupt(kept: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode(json.dumps({"$kind": "GroupMemory", "$version": 4, "group": 3, **kept}), GroupMemory)


def test_a_program_of_version_2_sees_a_newer_group_and_no_corrupt_one(monkeypatch: pytest.MonkeyPatch) -> None:
    written = encode(GroupMemory(group=3, seats=(HERE,)))
    monkeypatch.setitem(records.VERSIONS, "GroupMemory", 2)
    assert newer(written) == "version 5 is newer than this program's 2"
    with pytest.raises(NewerRecord):
        decode(written, GroupMemory)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip(kind: type[Any]) -> None:
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(st.from_type(kind))
    def survives(record: Any) -> None:
        value = encode(record)
        assert decode(value, kind) == record
        assert decode(value.decode(), kind) == record
        assert json.loads(value)["$kind"] == kind.__name__
        turned = dict(reversed(json.loads(value).items()))
        assert decode(json.dumps(turned), kind) == record, "whoever wrote it"

    survives()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None, 0.1 + 0.2])
def test_a_loss_that_diverged_is_still_a_record(loss: float | None) -> None:
    progress = records.Progress(
        run="run", group=0, generation=1, rank=0, pid=1, sequence=1, phase="step", loss=loss, tokens_per_s=math.inf
    )
    back = decode(encode(progress), records.Progress)
    assert repr(back) == repr(progress)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_field_hides_the_kind_or_version(kind: type[Any]) -> None:
    assert not {"$kind", "$version"} & {f.name for f in fields(kind)}


ADMISSION = records.GatePresence(run="run", node="n1", generation=2)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (encode(ADMISSION)[:-4], "not JSON"),
        (b"null", "kind is 'NoneType'"),
        (b"[]", "kind is 'list'"),
        (b"{}", "kind is None"),
        (encode(records.DigestMark(step=1, value="x")), "kind is 'DigestMark', expected 'GatePresence'"),
        (encode(ADMISSION).replace(b'"$version":1', b'"$version":2'), "version 2 is newer"),
        (encode(ADMISSION).replace(b'"$version":1', b'"$version":"1"'), "version '1'"),
        (encode(ADMISSION).replace(b'"$version":1,', b""), "version None"),
        (encode(ADMISSION).replace(b'"generation":2', b'"generation":"many"'), "generation: "),
        (encode(ADMISSION).replace(b',"generation":2', b""), "generation: "),
        (encode(ADMISSION).replace(b'"$version":1', b'"$version":1' + b"0" * 5000), "not JSON"),
        (b"[" * 200_000, ""),
    ],
)
def test_what_cannot_be_read_is_refused(value: bytes, why: str) -> None:
    with pytest.raises(RecordError) as error:
        decode(value, records.GatePresence)
    assert why in str(error.value)


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        decode(value, records.Control)


def test_an_unknown_field_of_a_later_minor_version_is_ignored() -> None:
    body = {**json.loads(encode(ADMISSION)), "colour": "blue"}
    assert decode(json.dumps(body), records.GatePresence) == ADMISSION


def test_a_field_that_an_older_version_lacked_takes_its_default() -> None:
    body = json.loads(encode(records.Control(paused=True, stop=True)))
    del body["stop"]
    assert decode(json.dumps(body), records.Control) == records.Control(paused=True)


def test_what_an_older_supervisor_wants_names_no_allocation() -> None:
    wanted = records.TrainerDesired(
        run="run", group=0, generation=1, world_size=1, groups=1, min_groups=1, gate="", run_dir="", term_grace_s=1.0,
        titan=records.TitanSpec(), torchft=records.TorchFTSpec(), allocation="run-a1",
    )  # fmt: skip
    body = json.loads(encode(records.NodeDesired(node="n1", trainers=(wanted,))))
    assert body["trainers"][0].pop("allocation") == "run-a1"
    (read,) = decode(json.dumps(body), records.NodeDesired).trainers
    assert read == replace(wanted, allocation="")


def test_numbers_that_are_keys_come_back_as_numbers() -> None:
    assert decode(encode(records.Control(restarts={3: 1})), records.Control).restarts == {3: 1}


@pytest.mark.parametrize("name", ["caf\u00e9", "\u2028", "\U0001f600", "a\x7f", "half a pair: \udc80"])
def test_what_is_no_ascii_is_written_as_ascii_and_comes_back(name: str) -> None:
    control = records.Control(because=name)
    assert encode(control).isascii()
    assert decode(encode(control), records.Control) == decode(encode(control).decode(), records.Control) == control


def test_the_version_is_written() -> None:
    assert json.loads(encode(ADMISSION))["$version"] == VERSION


def test_an_encoder_says_what_encode_says_also_of_the_next_record_at_a_key() -> None:
    encoder = records.Encoder()
    first, other = (records.DigestMark(step=step, value="x") for step in (1, 2))
    assert encoder("/a", first) == encoder("/a", replace(first)) == encode(first)
    assert encoder("/a", other) == encode(other)
    assert encoder("/b", first) == encode(first)
