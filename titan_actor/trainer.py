"""`python -m titan_actor.trainer LAUNCH_JSON`: the entry of a rank and its exit codes. Its loop is in `replica`.

Exit codes: 0 finished or drained, 1 failed (error.json says why), 75 PEERS_GONE, 78 MISCONFIGURED, 143 TERMINATED.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
from pathlib import Path

from supervisor.wire.records import MISCONFIGURED, TrainerLaunch, decode
from supervisor.wire.version import misfits
from titan_actor import address, mends
from titan_actor.checkpoint import CheckpointRefused
from titan_actor.cursor import NoPlace
from titan_actor.fit import NotOnCpu
from titan_actor.pickles import Refused
from titan_actor.process import RankProcess, leave
from titan_actor.shares import NoData
from titan_actor.tokens.format import TokensError

MISTAKES = (NoData, NoPlace, NotOnCpu)
"""Errors of a run file or a run's folder: no other machine can train it."""
SENTENCES = (*MISTAKES, CheckpointRefused, Refused, TokensError)
"""Errors that say all in one sentence."""


def main(path: str, warm: bool = False) -> int:
    """Trains as the launch file says; returns the exit code. Raises OSError or RecordError for a bad launch file."""
    return run(RankProcess(decode(Path(path).read_bytes(), TrainerLaunch), warm))


def run(rank: RankProcess) -> int:
    """Trains; returns the exit code. Raises what a hot standby meets before it has begun."""
    try:
        _train(rank)
    except (Exception, Refused) as error:
        if rank.waits:
            raise
        if isinstance(error, MISTAKES):
            return rank.ended(error, MISCONFIGURED, trace=False)
        return rank.ended(error, trace=not isinstance(error, SENTENCES))
    return rank.ended()


def _train(rank: RankProcess) -> None:
    launch = rank.launch
    if why := misfits():
        raise RuntimeError(f"node {launch.node}: {why}")
    address.meet(launch)
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
    if not rank.waits:
        rank.ledger.event("imported")
    made = config.for_launch(launch)
    if not mends.on_gpu():
        fit.refuse_on_cpu(made)
    trainer = replica.trainer(made, rank)
    rank.commands.abort = trainer.quorum.abort
    trainer.admit()
    trainer.train()
    trainer.close()


if __name__ == "__main__":
    faulthandler.enable()
    if len(sys.argv) != 2:
        print("usage: python -m titan_actor.trainer LAUNCH_JSON", file=sys.stderr)
        leave(2)
    leave(main(sys.argv[1]))
