"""`python -m titan_actor.warm --fd N`: imports everything once, then forks a trainer for every start.

Talks over a Unix SEQPACKET socket: sends {"ready": true, ...}, takes {"launch", "log", "env"}, answers {"pid"} or
{"error"}, and ends at end of file. Beside that it keeps hot standbys (standby.py): {"ahead"} is the start that a spare's
are built for, or empty, and {"runs"} has the launch files and pids of ranks that it has not forked. A fork keeps only the
thread that forks. So this process must have a single thread, no CUDA context, and untouched random generators: it checks
that, and reports what it found.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from supervisor.wire import marks
from supervisor.wire.records import RecordError, TrainerLaunch, decode, encode
from titan_actor import forking, kept_state, mends, process, trainer
from titan_actor.standby import LONGEST_MESSAGE, LOOK_S, Standbys

TOUCHED = (
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.staging",
    "torchft",
    "torchtitan.experiments.torchft.trainer",
    "torchtitan.hf_datasets.text_datasets",
    "torchtitan.models.llama3.config_registry",
    "torchtitan.models.llama3.sharding",
    "datasets.iterable_dataset",
    "tokenizers",
    "titan_actor.config",
    "titan_actor.replica",
)
"""Modules that a trainer imports, including those that it imports late."""


def warm_up() -> dict[str, Any]:
    """Imports all, and returns what was found afterwards: threads, whether the generators are untouched, CUDA.

    `problem` names why forking from here would be wrong, or is empty.
    """
    started = time.monotonic()
    if unknown := mends.ask_aside_for_cuda():
        return {"problem": unknown}
    mends.apply()
    import torch

    untouched = torch.random.get_rng_state()
    for module in TOUCHED:
        __import__(module)
    _touch()
    threads = _threads()
    same = bool(torch.equal(untouched, torch.random.get_rng_state()))
    cuda = bool(torch.cuda.is_initialized())
    problems = {
        f"{len(threads)} threads ({', '.join(threads)})": len(threads) != 1,
        "torch's generator was used": not same,
        "a CUDA context": cuda,
    }
    if mends.on_gpu() and not any(problems.values()):
        why = _forked_without_gpu()
        problems[f"a fork that cannot use its GPU: {why}"] = bool(why)
    # what is here now is garbage to no child: keep their collectors from touching, and so copying, its pages
    gc.collect()
    gc.freeze()
    return {
        "problem": ", ".join(name for name, is_so in problems.items() if is_so),
        "threads": len(threads),
        "rng_untouched": same,
        "cuda": cuda,
        "gpu": mends.on_gpu(),
        "seconds": round(time.monotonic() - started, 3),
    }


def _threads() -> list[str]:
    """Returns the names of this process's threads."""
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def _forked_without_gpu() -> str:
    """Returns why a process forked from here cannot calculate on the GPU; empty: it can. A real fork tries it: a cause,
    such as a driver initialised before the fork, shows nowhere else, and would show in every trainer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(mends.ASIDE_S)
        try:
            import torch

            said = "" if float(torch.ones(2, device="cuda").sum()) == 2.0 else "it calculated wrongly"
        except BaseException as error:  # noqa: BLE001  (said in the parent)
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
        os.write(writing, said.encode()[:2000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return said or (f"it ended with {os.waitstatus_to_exitcode(status)}" if status else "")


def _touch() -> None:
    """Runs the code that imports only on use."""
    from supervisor.core.model.spec import TitanSpec
    from titan_actor import config, fit

    fit.tokenizer_problem(config.from_spec(TitanSpec()))
    launch = TrainerLaunch(
        run="", group=0, generation=0, rank=0, world_size=1, groups=1, min_groups=1, node="", node_address="",
        master_port=0, lighthouse="", run_dir="", rank_dir="",
    )  # fmt: skip
    # pydantic builds its validators on first use
    decode(encode(launch), TrainerLaunch)


def serve(channel: socket.socket) -> None:
    """Warms up, reports that, and forks on request until the channel ends."""
    seen = warm_up()
    problem, files = seen.pop("problem"), kept_state.Files()
    _send(channel, {"error": problem} if problem else {"ready": True, "takes": ["runs"], **seen})
    standbys = Standbys(files)
    while True:
        if not select.select([channel], [], [], LOOK_S if standbys.any else None)[0]:
            standbys.look()
            continue
        if not (message := channel.recv(LONGEST_MESSAGE)):
            return
        try:
            request = json.loads(message)
            if "ahead" in request:
                if not problem:
                    _build_ahead(str(request["ahead"]), standbys)
                continue
            if "runs" in request:
                if not problem:
                    _note_running(request["runs"], standbys)
                continue
            answer = {"error": problem} if problem else {"pid": _started(request, files, standbys)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _send(channel, answer)


def _build_ahead(launch: str, standbys: Standbys) -> None:
    """Has no answer, so an error is only printed: an agent may be newer than this process."""
    try:
        standbys.build_ahead(decode(launch, TrainerLaunch) if launch else None)
    except (OSError, RecordError) as error:
        print(f"no standby of a start ahead: {error}", file=sys.stderr, flush=True)


def _note_running(runs: list[tuple[str, int]], standbys: Standbys) -> None:
    """Has the next start of ranks built that a process before this one forked, or that started cold. Has no answer."""
    for launch, pid in runs:
        with suppress(OSError, RecordError):  # a gate has no such file
            standbys.started(decode(Path(launch).read_bytes(), TrainerLaunch), int(pid))


def _started(request: dict[str, Any], files: kept_state.Files, standbys: Standbys) -> int:
    """Returns the pid of the trainer: a standby that is built already, or a new fork."""
    try:
        launch = decode(Path(str(request["launch"])).read_bytes(), TrainerLaunch)
    except (OSError, RecordError):
        return _fork_twice(request, files)  # which says why
    pid = standbys.take(launch, request) or _fork_twice(request, files)
    standbys.started(launch, pid)
    return pid


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.send(json.dumps(message).encode())


def _fork_twice(request: dict[str, Any], files: kept_state.Files) -> int:
    """Returns the trainer's pid. The process between ends at once, so that the nearest subreaper adopts the trainer."""
    launch, log, env = str(request["launch"]), str(request["log"]), dict(request.get("env") or {})
    # opened here: a bad path is the asker's error, and could not be reported later
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    reading, writing = os.pipe()
    try:
        kept_state.DESCRIPTOR, kept_state.HOLDER = files.of(launch), files.holder
        between = os.fork()
        if between == 0:
            myself = os.getpid()
            child = os.fork()
            if child == 0:
                _become_trainer(launch, output, env, myself)
            os.write(writing, str(child).encode())
            os._exit(0)
        os.close(writing)
        writing = -1
        told = os.read(reading, 32)
        os.waitpid(between, 0)
    finally:
        for descriptor in (reading, writing, output):
            if descriptor >= 0:
                os.close(descriptor)
    if not told:
        raise OSError("the intermediate process ended before it forked")
    return int(told)


def _become_trainer(launch: str, output: int, env: dict[str, str], between: int) -> NoReturn:
    code = 1
    try:
        marks.put(env.get(marks.STARTED_BY, ""))
        forking.in_the_background(output, (kept_state.DESCRIPTOR, kept_state.HOLDER))
        os.environ.update(env)
        forking.die_with_shim(between)
        sys.argv = ["titan_actor.trainer", launch]
        forking.call_it("trainer")
        code = trainer.main(launch, warm=True)
    except BaseException:  # noqa: BLE001  (must not run on into the warm process's own loop)
        traceback.print_exc()
    process.leave(code)


def main() -> None:
    """Serves on the inherited descriptor."""
    parser = argparse.ArgumentParser(prog="titan_actor.warm")
    parser.add_argument("--fd", type=int, required=True)
    with socket.socket(fileno=parser.parse_args().fd) as channel:
        serve(channel)


if __name__ == "__main__":
    main()
