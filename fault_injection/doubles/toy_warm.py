"""A stand-in for titan_actor.warm that speaks its protocol and forks toy trainers."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

from fault_injection.doubles.toys import WARM_TORCH
from supervisor.wire import marks


def adopted(shim: int) -> None:
    """Waits until the shim is our parent, then dies with it. (Set earlier, the death of the process in between
    kills.)"""
    while os.getppid() != shim:
        time.sleep(0.001)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != shim:
        os._exit(137)


def trainer(request: dict[str, Any], answer: int) -> None:
    from fault_injection.doubles import toy_trainer

    marks.put(request["env"][marks.STARTED_BY])
    os.setsid()
    os.write(answer, str(os.getpid()).encode())
    os.close(answer)
    log = os.open(request["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["env"])
    adopted(int(os.environ["SUPERVISOR_SHIM_PID"]))
    code = 1
    try:
        code = toy_trainer.main([request["launch"]])
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:  # noqa: BLE001 - whatever it is, it must not run on into the warm process's own loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork(request: dict[str, Any], ours: socket.socket) -> int:
    report, answer = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            if os.fork() == 0:
                ours.close()
                os.close(report)
                trainer(request, answer)
        finally:
            os._exit(0)
    os.close(answer)
    pid = int(os.read(report, 32))
    os.close(report)
    os.waitpid(between, 0)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    ours = socket.socket(fileno=parser.parse_args().fd)
    if os.environ.get(WARM_TORCH):
        import torch

        torch.set_num_threads(1)
        import torchft  # noqa: F401
    import fault_injection.doubles.toy_trainer  # noqa: F401

    ours.send(b'{"ready":true,"takes":["runs"]}')
    while packet := ours.recv(65536):
        request = json.loads(packet)
        if "ahead" in request:
            print("ahead:", request["ahead"], flush=True)
            continue
        if "runs" in request:
            print("runs:", json.dumps(request["runs"]), flush=True)
            continue
        try:
            ours.send(json.dumps({"pid": fork(request, ours)}).encode())
        except OSError as error:
            ours.send(json.dumps({"error": str(error)}).encode())


if __name__ == "__main__":
    main()
