"""`python -m titan_actor.trainer LAUNCH_JSON`: the entry of a rank and its exit codes. Its loop is in `replica`.

Exit codes: 0 finished or drained, 1 failed (error.json says why), 75 PEERS_GONE, 78 MISCONFIGURED, 143 TERMINATED.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from supervisor.wire.records import MISCONFIGURED, PEERS_GONE, TERMINATED, TrainerLaunch, decode
from supervisor.wire.version import misfits
from titan_actor import address, mends
from titan_actor.commands import Commands
from titan_actor.control import Control
from titan_actor.fit import NotOnCpu
from titan_actor.ledger import Ledger, born_unix_s, told, write_error_file
from titan_actor.report import Report
from titan_actor.shares import NoData

log = logging.getLogger(__name__)

SHIM_PID = "SUPERVISOR_SHIM_PID"
_PR_SET_PTRACER = 0x59616D61

WAITING = ("starting", "built", "quorum")
"""Phases in which SIGTERM ends the process at once: there is no step to finish, and the main thread may not react."""


MISTAKES = (NoData, NotOnCpu)
"""Errors of a run file that no machine can train."""


def main(path: str, warm: bool = False) -> int:
    """Trains as the launch file says; returns the exit code. Raises OSError or RecordError for a bad launch file."""
    launch = decode(Path(path).read_bytes(), TrainerLaunch)
    Path(launch.rank_dir).mkdir(parents=True, exist_ok=True)
    ledger = Ledger(
        Path(launch.rank_dir) / "steps.jsonl",
        born_unix_s(),
        generation=launch.generation,
        group=launch.group,
        rank=launch.rank,
    )
    _let_the_node_look()
    ledger.event("start", pid=os.getpid(), warm=warm, resume=launch.resume)
    report = Report(launch)
    control = Control(launch.writer)
    commands = Commands(launch, control)
    _end_on_term(control, report, ledger, commands)
    report.update()  # from this report on, TERM is handled
    try:
        return _train(launch, report, ledger, control, commands)
    except MISTAKES as error:
        _fail(launch, report, ledger, error)
        return MISCONFIGURED
    except Exception as error:  # noqa: BLE001  (the top of the process: whatever it is, it is reported)
        _fail(launch, report, ledger, error)
        return 1
    finally:
        commands.close()
        ledger.close()


def _let_the_node_look() -> None:
    """Lets processes started by the shim read this process's stack, as the agent does when it hangs. Yama's
    ptrace_scope 1 allows that only to ancestors. Without Yama this does nothing."""
    shim = os.environ.get(SHIM_PID, "")
    if shim.isdigit():
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(shim)), 0, 0, 0)


def _train(launch: TrainerLaunch, report: Report, ledger: Ledger, control: Control, commands: Commands) -> int:
    if why := misfits():
        raise RuntimeError(f"node {launch.node}: {why}")
    _environment(launch)
    mends.apply()
    import torch
    from torchtitan.tools.logging import init_logger

    from titan_actor import config, fit, replica

    # one rank per core at most: intra-op threads of several ranks would compete for them
    if not mends.on_gpu():
        torch.set_num_threads(1)
    init_logger()
    # one empty line for each commit
    logging.getLogger("torchft_commits").setLevel(logging.WARNING)
    ledger.event("imported")
    made = config.for_launch(launch)
    if not mends.on_gpu():
        fit.refuse_on_cpu(made)
    trainer = replica.trainer(made, launch, report, ledger, control)
    commands.abort = trainer.abort
    trainer.admit()
    try:
        trainer.train()
    except replica.PeersGone as gone:
        report.update(phase="failed", error=f"no peers to heal from: {gone}")
        ledger.event("peers_gone", reason=str(gone))
        print(f"no peers to heal from: {gone}", file=sys.stderr)
        return PEERS_GONE
    step = trainer.manager.current_step()
    trainer.close()
    if control.in_haste:
        report.update(phase="failed", step=step, error="ended by SIGTERM")
        ledger.event("terminated", step=step)
        return TERMINATED
    report.update(phase="finished", step=step)
    ledger.event("finished", step=step)
    return 0


def _environment(launch: TrainerLaunch) -> None:
    address.use(launch.node_address)
    torchft = launch.torchft
    os.environ.update(
        {
            "RANK": str(launch.rank),
            "WORLD_SIZE": str(launch.world_size),
            "LOCAL_RANK": str(launch.local_rank),
            "MASTER_ADDR": launch.master_address,
            "MASTER_PORT": str(launch.master_port),
            # rank 0 serves the store itself, only at the node's address
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHFT_LIGHTHOUSE": f"http://{launch.lighthouse}",
            # TorchFT reads whole seconds
            "TORCHFT_QUORUM_TIMEOUT_SEC": str(-(-torchft.quorum_timeout_ms // 1000)),
            "TORCHFT_QUORUM_RETRIES": str(torchft.quorum_retries),
        }
    )


def _end_on_term(control: Control, report: Report, ledger: Ledger, commands: Commands) -> None:
    """Has SIGTERM end the process after the current step, without a last checkpoint; while waiting, at once. Either way
    the exit code is TERMINATED, because the run is not finished."""

    def on_term(number: int, frame: object) -> None:
        control.in_haste = True
        control.drain(None)

    def end_if_waiting() -> None:
        # in a thread: the main thread may be inside a native call, in which no handler runs, or in the middle of
        # writing the very file that is written here
        control.in_haste = True
        control.drain(None)
        if report.progress.phase in WAITING:
            report.update(phase="failed", error="ended by SIGTERM while waiting")
            ledger.event("terminated", step=report.progress.step)
            leave(TERMINATED)

    commands.on_term = end_if_waiting
    signal.signal(signal.SIGTERM, on_term)


def _fail(launch: TrainerLaunch, report: Report, ledger: Ledger, error: Exception) -> None:
    text = told(error)
    print(f"trainer failed: {text}", file=sys.stderr)
    if not isinstance(error, MISTAKES):
        traceback.print_exc()
    try:
        write_error_file(launch.rank_dir, error, traceback.format_exc())
    except OSError as full:
        log.warning("error.json is not written: %s", full)
    report.update(phase="failed", error=text[:2000], numerics=getattr(error, "whose", ""))
    ledger.event("failed", error=text[:2000])


def leave(code: int) -> NoReturn:
    """Ends without the interpreter's shutdown, which waits for native threads that may hang on a lost peer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    faulthandler.enable()
    if len(sys.argv) != 2:
        print("usage: python -m titan_actor.trainer LAUNCH_JSON", file=sys.stderr)
        leave(2)
    leave(main(sys.argv[1]))
