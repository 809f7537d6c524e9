"""The wording: a sentence for each code in sentences.jsonl, and more of evidence, which a person reads in an incident."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.model.kinds import Kind
from supervisor.core.model.reason import Code, Reason, of_json
from supervisor.core.report import words, words_seen
from supervisor.core.report.words import say
from tests.helpers.reasons import SEGFAULT

SNAPSHOT = Path(__file__).with_name("sentences.jsonl")

AT = (("step", "train.py", 7),)
STUCK = {
    "rank": 0, "bound_s": 30.0, "usual_s": 1.5, "activity": "compute", "activity_s": 31.0, "process": "busy",
    "stack": Reason.of(Code.STACK, frames=AT, holds_lock=False, held_at=()),
}  # fmt: skip
SLOW = {
    "rank": 0, "times": 2.0, "for_data": False, "seconds": 0.9, "compute_s": 0.9, "data_s": 0.0, "usual_s": 0.4,
    "past_s": 0.0,
}  # fmt: skip

SENTENCES: list[tuple[Code, dict[str, Any], str]] = [
    (Code.NO_PEERS, {"rank": 0}, "rank 0 should have healed from its peers and found none"),
    (
        Code.ENDED_BY_ITS_NODE,
        {"rank": 0, "signal": "SIGTERM", "why": "cut off"},
        "rank 0 was ended by its own node (SIGTERM): cut off",
    ),
    (Code.TERMINATED, {"rank": 0}, "rank 0 was ended by a SIGTERM that is not ours"),
    (
        Code.KILLED_FOR_MEMORY,
        {"rank": 0, "kernel": ""},
        "rank 0 was killed by the kernel for memory (SIGKILL), as its memory cgroup has counted",
    ),
    (
        Code.KILLED_FOR_MEMORY,
        {"rank": 0, "kernel": "Killed process 7"},
        "rank 0 was killed by the kernel for memory (SIGKILL): Killed process 7",
    ),
    (Code.KILLED_BY_UNKNOWN, {"rank": 0}, "rank 0 was killed by a SIGKILL; whose is not known"),
    (
        Code.KILLED_NOT_BY_US,
        {"rank": 0},
        "rank 0 was killed by a SIGKILL that is not ours; whether it was the kernel's for memory cannot be seen",
    ),
    (
        Code.KILLED_BY_NEITHER,
        {"rank": 0},
        "rank 0 was killed by a SIGKILL that is neither ours nor the kernel's for memory, as far as its cgroup says",
    ),
    (Code.ENDED_BY_SIGNAL, {"rank": 0, "name": "SIGBUS", "signal": 7}, "rank 0 was ended by SIGBUS (signal 7)"),
    (Code.EXITED, {"rank": 2, "exit_code": 1, "error": "KeyError: 3"}, "rank 2 exited with code 1: KeyError: 3"),
    (Code.EXITED, {"rank": 0, "exit_code": 0, "error": ""}, "rank 0 exited with code 0 before it was finished"),
    (Code.EXITED, {"rank": 0, "exit_code": 3, "error": ""}, "rank 0 exited with code 3"),
    (Code.RAISED_IN, {"place": "m.py, line 8, in f"}, "raised in m.py, line 8, in f"),
    (Code.KILLED_BEFORE, {}, "shortly before, the kernel had killed a process of its memory cgroup for memory"),
    (Code.LOG_ENDS, {"words": "Bus error"}, "its log ends with: Bus error"),
    (Code.ON_ITS_NODE, {"fact": "/var: full"}, "on its node: /var: full"),
    (Code.ON_ITS_GPU, {"host": "h", "rank": None, "fact": "Xid 79"}, "on host h: Xid 79"),
    (Code.ON_ITS_GPU, {"host": "h", "rank": 0, "fact": "Xid 79"}, "on host h, rank 0: Xid 79"),
    (Code.AND_SO, {"kind": "crash", "evidence": SEGFAULT}, "and so (crash): rank 0 was ended by SIGSEGV (signal 11)"),
    (
        Code.ALLOCATION_GONE,
        {"allocation": "run-a1", "engine_id": "7", "why": "preempted"},
        "the engine says that allocation run-a1 (7) is gone: preempted",
    ),
    (
        Code.ALLOCATION_GONE,
        {"allocation": "run-a1", "engine_id": "7", "why": ""},
        "the engine says that allocation run-a1 (7) is gone",
    ),
    (
        Code.UNDER_ANOTHER,
        {"node": "n1", "allocation": "a2", "placed": "a1"},
        "node n1 is registered under allocation a2, not under a1",
    ),
    (Code.LEASE_RENEWED, {"node": "n1"}, "node n1 renews its lease"),
    (
        Code.STORE_AWAY,
        {"seconds": 1.234, "lease_s": 5},
        "the store was away 1.2 s ago: hold for one lease (5 s)",
    ),
    (Code.LEASE_LAPSED, {"node": "n1", "lease_s": 5}, "the lease of node n1 (5 s) lapsed"),
    (
        Code.LAPSED_NO_GATE,
        {"node": "n1", "group": 0},
        "the lease of node n1 lapsed, and no gate says whether group 0 still steps",
    ),
    (
        Code.LAPSED_BUT_HEARD,
        {"node": "n1", "group": 0},
        "the lease of node n1 lapsed, but the gate still hears group 0: hold",
    ),
    (
        Code.LAPSED_UNHEARD,
        {"node": "n1", "lease_s": 5, "group": 0, "hearing": "silent"},
        "the lease of node n1 (5 s) lapsed and the gate hears group 0 as silent",
    ),
    (
        Code.PROVED_DEAD,
        {"node": "n1", "why": "its port is closed", "seconds": 0.8},
        "node n1 is dead: its port is closed, 0.8 s after it was last heard",
    ),
    (Code.REQUESTED, {}, "a person asked for a restart of the group"),
    (
        Code.DEBUGGED,
        {"rank": 1},
        "debugger: a person had stopped rank 1, and its step cannot be committed any more",
    ),
    (Code.START_LATE, {"limit_s": 60.0}, "no commit 60 s after its start"),
    (Code.HEAL_FAILED, {"rank": 1, "why": "its heal has failed"}, "rank 1: its heal has failed"),
    (Code.NO_WAY, {"host": "h"}, "its node does not reach the gate of the lighthouse on h"),
    (
        Code.NEVER_HEARD,
        {"seconds": 30.0},
        "the gate has not heard it for 30 s, since it is where it is, and hears others",
    ),
    (
        Code.DEPARTED,
        {"nodes": ("n1", "n2"), "seconds": 0.5},
        "all connections of n1, n2 to the gate are closed, and none was made for 0.5 s",
    ),
    (Code.UNHEARD, {"timeout_ms": 1000}, "the gate has not heard it for 1000 ms"),
    (Code.SILENT_FOR, {"seconds": 30.0}, "silent for 30 s on a node that lives"),
    (
        Code.NO_STEP,
        STUCK,
        "rank 0 has not committed a step for 30 s (usually 1.5 s), for 31 s in compute; the process burns a processor, "
        "in step (train.py:7)",
    ),
    (
        Code.NO_STEP,
        {**STUCK, "usual_s": 0.0, "activity": "", "process": "", "stack": ""},
        "rank 0 has not committed a step for 30 s",
    ),
    (
        Code.NO_STEP,
        {**STUCK, "usual_s": 0.0, "activity": "", "process": "", "stack": "in older (words.py:1)"},
        "rank 0 has not committed a step for 30 s, in older (words.py:1)",
    ),
    (
        Code.STACK,
        {"frames": (*AT, ("main", "run.py", 1)), "holds_lock": True, "held_at": ()},
        "in step (train.py:7) < main (run.py:1), holding the interpreter's lock",
    ),
    (
        Code.STACK,
        {"frames": (), "holds_lock": False, "held_at": AT},
        "its main thread runs no Python; another thread holds the interpreter's lock, in step (train.py:7)",
    ),
    (Code.STACK_UNKNOWN, {"why": "no such process"}, "its stack is not known (no such process)"),
    (
        Code.STEPS_UNSEEN,
        {},
        "the others wait for it, or make steps without it, and its node cannot see what its ranks do",
    ),
    (
        Code.STOPPED,
        {"rank": 0, "how": "is stopped by a signal", "limit_s": 1.5},
        "rank 0 is stopped by a signal, for longer than policy.hang.stopped_s = 1.5",
    ),
    (
        Code.SLOW,
        SLOW,
        "rank 0 computes about 2 times as long as the others: 0.9 s of a step itself (0.9 s to compute, 0 s for its data), "
        "0.4 s is usual",
    ),
    (
        Code.SLOW,
        {**SLOW, "for_data": True, "past_s": 0.45},
        "rank 0 takes about 2 times as long as the others, for its data: 0.9 s of a step itself (0.9 s to compute, 0 s for "
        "its data), 0.4 s is usual; when this generation began it took 0.45 s",
    ),
    (Code.SLOW_FOR, {"seconds": 301, "steps": 64}, "so for 301 s and 64 steps"),
    (
        Code.OWN_NUMBERS,
        {"groups": (0, 2), "more": 0},
        "its own numbers were not finite, those of group 0, 2 were: its hardware is suspect",
    ),
    (
        Code.NUMBERS_OF_MANY,
        {"groups": (0, 1), "more": 3},
        "its own numbers were not finite, nor those of as many groups as had finite ones, or more: of group 0, 1 and 3 more",
    ),
    (
        Code.OTHERS_NUMBERS,
        {"groups": (1,), "more": 0},
        "its own numbers were finite, those of group 1 were not",
    ),
    (Code.SEEN_AGAIN, {"step": 20, "times": 2, "hosts": ("n1",)}, "the same at step 20 2 times in a row, on n1"),
    (
        Code.SEEN_AGAIN,
        {"step": -1, "times": 3, "hosts": ("n1", "n2")},
        "the same before its first commit 3 times in a row, on n1 and n2",
    ),
    (
        Code.FOLLOWS,
        {"host": "n1", "incident": "i2"},
        "the same on host n1 (incident i2): it follows the group, so no host is to blame",
    ),
    (Code.NODE_LEAVING, {"node": "n1", "why": "drained"}, "node n1 is leaving: drained"),
    (Code.DISK_UNUSABLE, {"node": "n1", "why": "/var: full"}, "nothing can be written on node n1 now: /var: full"),
    (
        Code.HANDED_OVER,
        {"step": 9, "node": "n1", "why": ""},
        "it was handed over after step 9: node n1 is leaving",
    ),
    (
        Code.HANDED_OVER,
        {"step": 9, "node": "n1", "why": "drained"},
        "it was handed over after step 9: node n1 is leaving: drained",
    ),
    (Code.ALL_HANDED_OVER, {"step": 9}, "all groups are handed over after step 9"),
    (Code.NOT_ENDED_IN_TIME, {"step": 9}, "it did not end at step 9 in time"),
]


@pytest.mark.parametrize(("code", "about", "sentence"), SENTENCES, ids=[code for code, _, _ in SENTENCES])
def test_what_was_seen_is_worded_so(code: Code, about: dict[str, Any], sentence: str) -> None:
    assert say(Reason.of(code, **about)) == sentence


def test_the_wording_of_every_piece_of_evidence_is_held() -> None:
    assert {code for code, _, _ in SENTENCES} == words_seen.WORDS.keys()


def test_every_code_has_words() -> None:
    assert words._WORDS.keys() == set(Code)


def test_every_kind_has_a_reason_for_its_first_rung() -> None:
    assert set(Kind) == set(words.WHY_FIRST)


def test_the_wording_of_every_code_is_held() -> None:
    """`python -m tests.unit.core.report.test_words` takes today's wording over."""
    held = [json.loads(line) for line in SNAPSHOT.read_text().splitlines()]
    assert {line["reason"]["code"] for line in held} == set(Code) - {Code.TEXT}
    assert [say(of_json(line["reason"])) for line in held] == [line["sentence"] for line in held]


@pytest.mark.parametrize(
    ("code", "about", "sentence"),
    [
        (
            Code.FIRST_ITS_INCIDENT,
            {"node": "n1", "why": "drained", "incident": "i2"},
            "its node n1 is leaving (drained); first its incident i2",
        ),
        (Code.HUNG_TOGETHER, {"groups": (0, 2)}, "groups 0, 2 hang, as all groups did a moment ago"),
        (Code.HOST_FREE_AGAIN, {"host": "h"}, "it was asked for without host h, which is free again"),
    ],
)
def test_what_no_decision_of_the_corpus_waits_for_is_worded_so(
    code: Code, about: dict[str, Any], sentence: str
) -> None:
    assert say(Reason.of(code, **about)) == sentence


def test_a_value_of_another_version_is_no_error() -> None:
    assert say(Reason(Code.EXITED, {"more": 1})) == "exited (more 1)"
    assert say(Reason(Code.NO_PEERS, {})) == "no_peers ()"


def renew() -> None:
    lines = [json.loads(line) for line in SNAPSHOT.read_text().splitlines()]
    new = [{"sentence": say(of_json(line["reason"])), "reason": line["reason"]} for line in lines]
    SNAPSHOT.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in new))


if __name__ == "__main__":
    renew()
