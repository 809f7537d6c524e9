"""Reads where the ranks of a run are now, with py-spy, as for a hang."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from agents.agent.names import TrainerName
from agents.health import stack_dump
from supervisor.shell.etcd.inbox import Answer, Job
from supervisor.wire.node_requests import Item
from supervisor.wire.records import ProcessRecord

FRAMES, THREADS = 64, 64
"""Most frames of a thread, the innermost, and most threads of a rank."""
NAME_CHARACTERS = 200


def read(ranks: Sequence[tuple[TrainerName, ProcessRecord]], job: Job) -> Answer:
    """Yields an item for each thread of each running rank, or one that says why a rank's stack is not known."""
    answers: queue.SimpleQueue[list[Item]] = queue.SimpleQueue()
    left = {str(name): name for name, record in ranks if not record.exited}
    for name, record in ranks:
        if not record.exited:
            # a daemon: py-spy may sleep in the kernel with the process that it reads
            threading.Thread(target=_read, args=(name, record.pid, answers), name="stacks", daemon=True).start()
    until = time.monotonic() + min(job.left_s, stack_dump.GIVEN_UP_S)
    while left and not job.gone.is_set() and (wait_s := until - time.monotonic()) > 0:
        try:
            found = answers.get(timeout=min(wait_s, 0.5))
        except queue.Empty:
            yield None
            continue
        left.pop(str(TrainerName(*(found[0][key] for key in ("run", "group", "generation", "rank")))), None)
        yield from found
    for name in left.values():
        yield {**_about(name), "unknown": "py-spy does not end"}


def _read(name: TrainerName, pid: int, answers: queue.SimpleQueue[list[Item]]) -> None:
    about = {**_about(name), "pid": pid}
    try:
        threads = stack_dump.threads_of(pid)
        answers.put(
            [{**about, **_thread(thread, pid)} for thread in threads[:THREADS]] or [{**about, "unknown": "no Python"}]
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the rank's row says it
        answers.put([{**about, "unknown": f"{type(error).__name__}: {error}"[:500]}])


def _about(name: TrainerName) -> Item:
    return {"run": name.run, "group": name.group, "generation": name.generation, "rank": name.rank}


def _thread(thread: dict[str, Any], pid: int) -> Item:
    return {
        "thread": str(thread.get("thread_name") or "")[:NAME_CHARACTERS],
        "main": thread.get("os_thread_id") == pid,
        "holds_lock": bool(thread.get("owns_gil")),
        "frames": [
            {"function": f["name"][:NAME_CHARACTERS], "file": f["filename"][-NAME_CHARACTERS:], "line": f["line"]}
            for f in thread["frames"][:FRAMES]
        ],
    }
