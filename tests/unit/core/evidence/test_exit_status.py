"""The failure of a group, decoded from the ends of its ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core.evidence.exit_status import ended
from supervisor.core.model.incident import Confidence, Failure
from supervisor.core.model.kinds import Kind
from supervisor.core.model.observed import RankView
from supervisor.core.model.reason import Code, Reason

RANK = RankView(group=0, generation=1, rank=0, state="exited", phase="step", told="", oom=False)


def end(rank: int = 0, **how: Any) -> RankView:
    return replace(RANK, rank=rank, **how)


def failure(*ranks: RankView) -> Failure:
    found = ended(ranks)
    assert found is not None
    return found


def test_no_end_is_no_failure() -> None:
    assert ended(()) is None
    assert ended((end(state="running"), end(1, exit_code=0, phase="finished"))) is None


OOM_LINE = "Memory cgroup out of memory: Killed process 7 (python)"


@pytest.mark.parametrize(
    ("how", "kind", "code", "about"),
    [
        ({"signal": 11}, Kind.CRASH, Code.ENDED_BY_SIGNAL, {"name": "SIGSEGV", "signal": 11}),
        ({"signal": 7}, Kind.CRASH, Code.ENDED_BY_SIGNAL, {"name": "SIGBUS", "signal": 7}),
        ({"signal": 6}, Kind.CRASH, Code.ENDED_BY_SIGNAL, {"name": "SIGABRT", "signal": 6}),
        ({"signal": 40}, Kind.CRASH, Code.ENDED_BY_SIGNAL, {"name": "a signal", "signal": 40}),
        ({"signal": 9}, Kind.CRASH, Code.KILLED_BY_NEITHER, {}),
        ({"signal": 9, "oom": None}, Kind.CRASH, Code.KILLED_NOT_BY_US, {}),
        ({"signal": 9, "told": None}, Kind.CRASH, Code.KILLED_BY_UNKNOWN, {}),
        ({"signal": 9, "oom": True}, Kind.OOM, Code.KILLED_FOR_MEMORY, {"kernel": ""}),
        ({"signal": 9, "oom": True, "kernel": OOM_LINE}, Kind.OOM, Code.KILLED_FOR_MEMORY, {"kernel": OOM_LINE}),
        # a kill of ours stays ours, in spite of other events in its cgroup
        (
            {"signal": 9, "oom": True, "told": "cut off"},
            Kind.CRASH,
            Code.ENDED_BY_ITS_NODE,
            {"signal": "SIGKILL", "why": "cut off"},
        ),
        (
            {"signal": 15, "told": "cut off"},
            Kind.CRASH,
            Code.ENDED_BY_ITS_NODE,
            {"signal": "SIGTERM", "why": "cut off"},
        ),
        (
            {"exit_code": 143, "told": "cut off"},
            Kind.CRASH,
            Code.ENDED_BY_ITS_NODE,
            {"signal": "SIGTERM", "why": "cut off"},
        ),
        ({"exit_code": 143}, Kind.CRASH, Code.TERMINATED, {}),
        ({"exit_code": 75}, Kind.PEERS_GONE, Code.NO_PEERS, {}),
        ({"exit_code": 1, "error": "KeyError: 3"}, Kind.ERROR, Code.EXITED, {"exit_code": 1, "error": "KeyError: 3"}),
        ({"exit_code": 0}, Kind.ERROR, Code.EXITED, {"exit_code": 0, "error": ""}),
    ],
)
def test_how_a_rank_ended_gives_the_kind_and_a_reason(
    how: dict[str, Any], kind: Kind, code: Code, about: dict[str, Any]
) -> None:
    found = failure(end(**how))
    assert (found.kind, found.evidence) == (kind, (Reason.of(code, rank=0, **about),))


def test_the_log_says_more_where_no_error_was_left() -> None:
    words = {"last_words": "Fatal Python error: Segmentation fault"}
    said = (Reason.of(Code.LOG_ENDS, words="Fatal Python error: Segmentation fault"),)
    assert failure(end(signal=11, **words)).evidence[1:] == said
    assert failure(end(signal=9, **words)).evidence[1:] == said
    assert failure(end(exit_code=3, **words)).evidence[1:] == said
    assert failure(end(exit_code=3, error="KeyError: 3", **words)).evidence[1:] == ()


def test_an_exception_is_told_with_its_place() -> None:
    trace = 'Traceback (most recent call last):\n  File "/home/u/m.py", line 8, in f\n    x\nKeyError: 3'
    found = failure(end(exit_code=1, error="KeyError: 3", trace=trace))
    assert found.evidence == (
        Reason.of(Code.EXITED, rank=0, exit_code=1, error="KeyError: 3"),
        Reason.of(Code.RAISED_IN, place="/home/u/m.py, line 8, in f"),
    )
    assert (found.error, found.trace) == ("KeyError: 3", trace)


def test_a_helper_that_was_killed_for_memory_is_told_with_the_error_that_followed() -> None:
    found = failure(end(exit_code=1, error="RuntimeError: DataLoader worker exited", oom=True))
    assert found.kind == Kind.ERROR
    assert found.evidence[1] == Reason.of(Code.KILLED_BEFORE)


def test_what_can_be_compared_and_what_not() -> None:
    assert failure(end(signal=11)).same == failure(end(signal=11, last_words="other")).same != ""
    assert failure(end(signal=11)).same != failure(end(signal=7)).same
    assert failure(end(signal=9, oom=True)).same not in ("", failure(end(signal=11)).same)
    assert failure(end(exit_code=1, error="E: pid 7")).same == failure(end(exit_code=1, error="E: pid 8")).same != ""
    for nothing in ({"signal": 9}, {"signal": 15}, {"exit_code": 1}, {"exit_code": 75}, {"signal": 11, "told": "x"}):
        assert failure(end(**nothing)).same == "", nothing


@pytest.mark.parametrize(
    ("ranks", "first"),
    [
        # a loss is the cause, its peers' exceptions are the echo
        ([{"exit_code": 1, "error": "RuntimeError: peer closed", "ended_s": 5.0}, {"signal": 9, "ended_s": 6.0}], 1),
        # an abort may be an echo too
        ([{"signal": 6, "ended_s": 6.0}, {"exit_code": 1, "error": "ValueError: x", "ended_s": 5.0}], 1),
        ([{"signal": 6, "ended_s": 5.0}, {"signal": 11, "ended_s": 6.0}], 1),
        # of two exceptions the earlier one
        (
            [
                {"exit_code": 1, "error": "RuntimeError: peer closed", "ended_s": 6.0},
                {"exit_code": 1, "error": "ValueError: x", "ended_s": 5.0},
            ],
            1,
        ),
        # a rank that reports another as gone is its echo, even if the other could report nothing, and is seen to be
        # gone later
        (
            [
                {"exit_code": 1, "error": 'RuntimeError: message: "transport error"', "ended_s": 5.0},
                {"exit_code": 9, "ended_s": 6.0},
            ],
            1,
        ),
        (
            [
                {"exit_code": 1, "error": "RuntimeError: Connection closed by peer [127.0.0.1]:1", "ended_s": 5.0},
                {"exit_code": 1, "error": "ValueError: x", "ended_s": 6.0},
            ],
            1,
        ),
        # a rank that was ordered to end is no cause
        ([{"signal": 9, "told": "the others ended", "ended_s": 4.0}, {"exit_code": 3, "ended_s": 5.0}], 1),
        ([{"exit_code": 143, "ended_s": 4.0}, {"exit_code": 3, "ended_s": 5.0}], 1),
        # nothing distinguishes them
        ([{"exit_code": 3}, {"exit_code": 4}], 0),
    ],
)
def test_the_first_cause_is_told(ranks: list[dict[str, Any]], first: int) -> None:
    found = failure(*(end(n, **how) for n, how in enumerate(ranks)))
    assert found.evidence[0].about["rank"] == first


@pytest.mark.parametrize(
    ("how", "sure"),
    [
        ({"signal": 11}, Confidence.CERTAIN),
        ({"exit_code": 1}, Confidence.CERTAIN),
        ({"signal": 9}, Confidence.CERTAIN),
        ({"signal": 9, "oom": None}, Confidence.LIKELY),
        ({"signal": 9, "told": None}, Confidence.LIKELY),
        ({"signal": 9, "oom": True}, Confidence.LIKELY),
        ({"signal": 9, "oom": True, "kernel": "Killed process 7"}, Confidence.CERTAIN),
    ],
)
def test_how_sure_it_is_and_whose(how: dict[str, Any], sure: Confidence) -> None:
    found = failure(end(3, **how), end(1, signal=15))
    assert (found.confidence, found.rank, found.took_s) == (sure, 3, 0.0)
