"""A command that a person asks for: its output, its code, its limits, and that nothing of it is left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agents.requests.command import of_rank, run
from fault_injection.testbed.waiting import eventually
from supervisor.shell.etcd.inbox import Answer, CannotDo, Job
from supervisor.wire.environment import LAUNCH
from supervisor.wire.node_requests import TEXT_CHARACTERS, NodeRequest
from supervisor.wire.records import TrainerLaunch, encode


def job(limit_s: float = 20.0) -> Job:
    request = NodeRequest(node="n1", what="exec", by="ann@desk", limit_s=limit_s)
    return Job("i", request, time.monotonic() + limit_s)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def items(argv: tuple[str, ...], folder: Path, most: int = 2**20, **how: Any) -> list[dict[str, Any]]:
    return [item for item in run(argv, {"WHO": "me"}, folder, how.pop("job", None) or job(**how), most) if item]


def text_of(found: list[dict[str, Any]], stream: str) -> str:
    return "".join(item["text"] for item in found if item.get("stream") == stream)


def test_output_error_environment_folder_and_code(tmp_path: Path) -> None:
    found = items(
        python("import os, sys; print(os.environ['WHO'], os.getcwd()); print('é', file=sys.stderr); sys.exit(3)"),
        tmp_path,
    )
    assert text_of(found, "stdout") == f"me {tmp_path}\n"
    assert text_of(found, "stderr") == "é\n"
    assert found[-1] == {"code": 3}


def test_a_signal_is_a_negative_code(tmp_path: Path) -> None:
    assert items(python("import os; os.kill(os.getpid(), 9)"), tmp_path) == [{"code": -9}]


def test_no_item_is_longer_than_fits(tmp_path: Path) -> None:
    found = items(python("print('é' * 100_000)"), tmp_path)
    assert text_of(found, "stdout") == "é" * 100_000 + "\n", "no character is cut in two"
    assert max(len(item.get("text", "")) for item in found) <= TEXT_CHARACTERS


@pytest.mark.parametrize("argv", [("no-such-program",), ("/",), (), ("a\0b",)])
def test_what_does_not_start_is_a_sentence(tmp_path: Path, argv: tuple[str, ...]) -> None:
    with pytest.raises(CannotDo, match=r"does not start|no command is given"):
        items(argv, tmp_path)


def until_it_cannot(answer: Answer) -> tuple[list[dict[str, Any]], str]:
    """Returns what came before it gave up, and why it did."""
    found: list[dict[str, Any]] = []
    try:
        found.extend(item for item in answer if item)
    except CannotDo as why:
        return found, str(why)
    raise AssertionError("it did all of it")


WAITS = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); c.wait()"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    found, why = until_it_cannot(run(python(WAITS), {}, tmp_path, job(1.0), 2**20))
    assert why == "the command was ended: it took longer than 1 s"
    child = int(text_of(found, "stdout"))
    eventually(lambda: not is_running(child), 10, "its child ends too")


def test_what_ignores_term_is_ended_too(tmp_path: Path) -> None:
    deaf = "(trap '' TERM; exec sleep 600) & echo $!; sleep 600"
    found, _ = until_it_cannot(run(("sh", "-c", deaf), {}, tmp_path, job(1.0), 2**20))
    eventually(lambda: not is_running(int(text_of(found, "stdout"))), 10, "it ends")


def test_it_ends_when_no_one_waits(tmp_path: Path) -> None:
    asked, found = job(), []
    for item in run(python(WAITS), {}, tmp_path, asked, 2**20):
        if item:
            found.append(item)
            asked.gone.set()
    child = int(text_of(found, "stdout"))
    eventually(lambda: not is_running(child), 10, "it ends")
    assert "code" not in found[-1]


def test_more_output_than_its_limit_ends_it(tmp_path: Path) -> None:
    found, why = until_it_cannot(run(python("while True: print('x' * 99)"), {}, tmp_path, job(), 1000))
    assert why == "its output is above 1000 bytes: the command was ended"
    assert text_of(found, "stdout") == ("x" * 99 + "\n") * 10


def test_a_command_that_leaves_a_process_behind_has_ended(tmp_path: Path) -> None:
    """Its child holds the output open."""
    found = items(("sh", "-c", "sleep 600 & echo $!"), tmp_path)
    assert found[-1] == {"code": 0}
    eventually(lambda: not is_running(int(text_of(found, "stdout"))), 10, "what it left is ended")


def test_a_ranks_environment_has_its_place_in_the_group(tmp_path: Path) -> None:
    launch = TrainerLaunch(
        run="run", group=1, generation=2, rank=0, world_size=1, groups=2, min_groups=1, node="n1",
        node_address="127.0.0.1", master_port=1234, lighthouse="127.0.0.1:5", run_dir="/r", rank_dir=str(tmp_path),
    )  # fmt: skip
    (tmp_path / "launch.json").write_bytes(encode(launch))
    env = of_rank(os.getpid(), tmp_path)
    assert (env["MASTER_PORT"], env["RANK"], env[LAUNCH]) == ("1234", "0", str(tmp_path / "launch.json"))
    with pytest.raises(CannotDo, match="the rank has just ended"):
        of_rank(2**22 + 1, tmp_path)
