"""The parts that are read from an error's text, and the texts that count as the same error."""

from __future__ import annotations

import pytest

from supervisor.core.evidence.error_text import (
    SAME_CHARACTERS,
    last_words,
    normal,
    of_the_machine,
    printable,
    raised,
    signature,
    where,
)

TRACE = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/titan_actor/trainer.py", line 51, in main
    return _train(launch)
  File "/home/u/model.py", line 88, in forward
    return self.layers[index](x)
  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
KeyError: 'layer 9'
"""

SEGFAULT = """step 41 loss 2.31
Fatal Python error: Segmentation fault

Thread 0x00007f11 [failed] (most recent call first):
  File "/home/u/failed.py", line 359 in error

Current thread 0x00007f12 (most recent call first):
  File "/opt/venv/lib/python3.12/site-packages/torch/_ops.py", line 9 in __call__
  File "/home/u/kernels.py", line 12 in fused
  File "/home/u/train.py", line 7 in main

Thread 0x00007f13 (most recent call first):
  File "/home/u/other.py", line 2 in error
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("RuntimeError: pointer 0x7f10aa00", "RuntimeError: pointer 0x55dead00"),
        ("DataLoader worker (pid 4711) exited", "DataLoader worker (pid 12) exited"),
        ("worker (pid(s) 4711) exited, process 4711", "worker (pid(s) 4711) exited, process 99"),
        ("connect to 10.0.0.7:29500 refused", "connect to 10.0.0.12:41234 refused"),
        ("connect to [fe80::1%eth0]:29500 refused", "connect to [::1]:80 refused"),
        ("connect to node-3:29500 refused", "connect to node-3:29501 refused"),
        ("cannot read /n/ranks/llama.0.3.1/x.json", "cannot read /n/ranks/llama.0.17.1/x.json"),
        ("cannot read /r/checkpoints/step-40.g0.gen3/x", "cannot read /r/checkpoints/step-40.g0.gen4/x"),
        ("cannot read /tmp/tmpab12/x", "cannot read /tmp/tmpzz99/x"),
        ("failed at 2026-11-20 22:53:56,123", "failed at 2026-11-21 07:00:00.5"),
        ("no answer after 30.2 s", "no answer after 31 s"),
        ("tried to allocate 2.00 GiB, 1 MiB free", "tried to allocate 2.50 GiB, 300 MiB free"),
        ("replica toy_0:550e8400-e29b-41d4-a716-446655440000", "replica toy_0:aaaaaaaa-e29b-41d4-a716-446655440000"),
        ("rank 0 of group 1, cuda:0", "rank 3 of group 0, cuda:7"),
        ("loss 3.5  is\nno number", "loss 7.25 is no number"),
        ("x" * SAME_CHARACTERS + "a", "x" * SAME_CHARACTERS + "b"),
    ],
)
def test_what_does_not_make_two_errors_differ(one: str, other: str) -> None:
    assert normal(one) == normal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: x", "KeyError: x"),
        ("HTTP 404", "HTTP 503"),
        ("index 5 is out of bounds", "index 6 is out of bounds"),
        ("no file /data/shard-1", "no file /data/shard-2"),
        ("[Errno 2] x", "[Errno 13] x"),
    ],
)
def test_what_makes_them_differ(one: str, other: str) -> None:
    assert normal(one) != normal(other)


def test_the_same_text_at_another_place_is_another_error() -> None:
    assert signature("AssertionError: ", TRACE) == signature("AssertionError: ", TRACE)
    assert signature("AssertionError: ", TRACE) != signature("AssertionError: ", TRACE.replace("line 88", "line 89"))
    assert signature("", TRACE) == ""


def test_where_is_the_last_frame_that_is_no_librarys() -> None:
    assert where(TRACE) == "/home/u/model.py, line 88, in forward"
    libraries = "\n".join(line for line in TRACE.splitlines() if "/home/u" not in line)
    assert where(libraries).endswith("module.py, line 1775, in _call_impl")
    assert where(SEGFAULT[SEGFAULT.index("Current thread") :]) == "/home/u/kernels.py, line 12, in fused"
    assert where("no traceback") == ""


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[1;31mError:\x1b[0m no \x1b[38;5;9mmemory\x1b[m", "Error: no memory"),
        ("\x1b]0;owned\x07\x1b[2Jbad", "bad"),
        ("\x1b]8;;https://a.example\x1b\\here\x1b]8;;\x1b\\", "here"),
        ("\x9b31mred\x9d0;title\x9c, \x1bP1$r\x1b\\\x1b(B\x1b7\x1bcplain", "red, plain"),
        ("cut off \x1b", "cut off "),
        ("cut off \x1b]0;own\nthe next line", "cut off 0;own\nthe next line"),
        ("caf\xc3\xa9 \xe2\x80\x9dname\xe2\x80\x9d is not defined", "caf\xc3\xa9 \xe2 name\xe2  is not defined"),
        ("bell\x07, back\x08, null\x00, next\x85, delete\x7f", "bell , back , null , next , delete "),
        ("10%\r20%\r\ndone\n", "10%\n20%\ndone\n"),
        ('  File\t"/data/café", 层 😀\n', '  File\t"/data/café", 层 😀\n'),
    ],
)
def test_nothing_that_a_program_wrote_moves_a_terminals_cursor(text: str, seen: str) -> None:
    assert printable(text) == seen


def test_a_long_line_of_beginnings_without_an_end_takes_no_longer_than_another() -> None:
    """Each beginning is looked at once. Otherwise twice as many would take four times as long, minutes for these."""
    assert printable("\x9d" * 300_000) == ""


def test_a_log_that_ends_with_a_traceback_says_what_was_raised() -> None:
    assert raised("step 1\n" + TRACE) == ("KeyError: 'layer 9'", TRACE.strip())
    assert (
        raised(TRACE + TRACE.replace("KeyError: 'layer 9'", "ValueError: of\ntwo lines"))[0]
        == "ValueError: of\ntwo lines"
    )


@pytest.mark.parametrize("log", ["", "step 1", TRACE[: TRACE.index("KeyError")], TRACE.replace("KeyError: ", "?? ")])
def test_a_log_without_a_whole_traceback_says_nothing(log: str) -> None:
    assert raised(log) == ("", "")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("\n  \n---\n", ""),
        ("step 1\nstep 2\n\n", "step 2"),
        ("RuntimeError: bad\nstep 2\n", "RuntimeError: bad"),
        ("RuntimeError: long ago\n" + "step\n" * 19 + "step 2\n", "step 2"),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no memory\n",
            "terminate called after throwing an instance of 'std::runtime_error' / what():  no memory",
        ),
        (
            "terminate called\n  what():  no memory\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n",
            "terminate called / what():  no memory / Fatal Python error: Aborted",
        ),
        (SEGFAULT, "Fatal Python error: Segmentation fault (/home/u/kernels.py, line 12, in fused)"),
    ],
)
def test_the_last_words_of_a_log(log: str, words: str) -> None:
    assert last_words(log) == words


@pytest.mark.parametrize(
    ("error", "machine"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
        ("torch.distributed.DistBackendError: NCCL error", True),
        ("FileNotFoundError: [Errno 2] No such file", True),
        ("ImportError: libx.so.1: cannot open shared object", True),
        ("ValueError: hidden size must be even", False),
        ("KeyError: 'layers.7'", False),
        ("AssertionError", False),
        ("ToyError: asked to", False),
    ],
)
def test_which_errors_may_be_the_machines(error: str, machine: bool) -> None:
    assert of_the_machine(error) is machine
