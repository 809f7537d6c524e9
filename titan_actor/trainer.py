"""`python -m titan_actor.trainer LAUNCH_JSON`: the entry of a rank and its exit codes. Its loop is in `replica`.

Exit codes: 0 finished or drained, 1 failed (error.json says why), 75 PEERS_GONE, 78 MISCONFIGURED, 143 TERMINATED.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from pathlib import Path

from supervisor.wire import environment
from supervisor.wire.records import MISCONFIGURED, PEERS_GONE, TERMINATED, TrainerLaunch, decode
from supervisor.wire.version import misfits
from titan_actor import address, mends, peers
from titan_actor.commands import Commands
from titan_actor.control import Control
from titan_actor.fit import NotOnCpu
from titan_actor.ledger import Ledger, born_unix_s
from titan_actor.process import end_on_term, fail, leave, let_the_node_look
from titan_actor.report import Report
from titan_actor.shares import NoData

log = logging.getLogger(__name__)


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
    let_the_node_look()
    ledger.event("start", pid=os.getpid(), warm=warm, resume=launch.resume)
    report = Report(launch)
    control = Control(launch.writer)
    commands = Commands(launch, control)
    end_on_term(control, report, ledger, commands)
    report.update()  # from this report on, TERM is handled
    try:
        return _train(launch, report, ledger, control, commands)
    except MISTAKES as error:
        fail(launch, report, ledger, error, trace=False)
        return MISCONFIGURED
    except Exception as error:  # noqa: BLE001  (the top of the process: whatever it is, it is reported)
        fail(launch, report, ledger, error)
        return 1
    finally:
        commands.close()
        ledger.close()


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
    except peers.PeersGone as gone:
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
    # rank 0 serves the store itself, only at the node's address
    os.environ.update({**environment.meeting_point(launch), "TORCHELASTIC_USE_AGENT_STORE": "True"})


if __name__ == "__main__":
    faulthandler.enable()
    if len(sys.argv) != 2:
        print("usage: python -m titan_actor.trainer LAUNCH_JSON", file=sys.stderr)
        leave(2)
    leave(main(sys.argv[1]))
