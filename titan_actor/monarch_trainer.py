"""TorchTitan's trainer as a Monarch actor, on a mesh of `pool.mesh()` (docs/MONARCH.md). Needs `everstep[monarch]`.

It trains in one process group of all ranks of the mesh, without TorchFT and without supervision: a lost rank ends the
training. A run is what survives one.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from monarch.actor import Actor, ProcMesh, current_rank, endpoint
from monarch.spmd import setup_torch_elastic_env

from supervisor.core.model.spec import TitanSpec
from supervisor.wire import tables
from supervisor.wire.address import free_port

ADDRESS = "EVERSTEP_NODE_ADDRESS"
"""Environment variable that the node's agent sets: the address at which ranks meet. Without it: the host's name."""


class _Place(Actor):
    """Finds where the ranks meet."""

    @endpoint
    def free(self) -> tuple[str, int]:
        address = os.environ.get(ADDRESS) or socket.gethostname()
        return address, free_port(address)


def setup_env_for_distributed(procs: ProcMesh) -> None:
    """Sets the variables by which torch.distributed finds its ranks (RANK, MASTER_ADDR and so on) in each process. They
    meet at the address of the first one's node."""
    first = procs.spawn("place", _Place).slice(**dict.fromkeys(procs.extent.labels, 0))
    setup_torch_elastic_env(procs, *first.free.call_one().get())


def _spec(keys: Mapping[str, Any]) -> TitanSpec:
    found, problems = tables.read(keys, TitanSpec, "titan.")
    if found is None or problems:
        raise ValueError("\n".join(problems))
    return found


class TitanTrainerWrapper(Actor):
    """One rank of a training by TorchTitan."""

    def __init__(self, job_config: Any) -> None:
        """`job_config`: the keys of a run file's [titan], as a mapping or a TitanSpec; or a config as TorchTitan's
        registries return it."""
        self.rank = current_rank().rank
        self.job_config = job_config

    @endpoint
    def init(self) -> str:
        """Sets up logging and TorchTitan, and checks the config. Returns the name of this host. Raises ValueError with all
        problems of the config."""
        from titan_actor import address, config, mends

        logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
        if os.environ.get(ADDRESS):
            address.use(os.environ[ADDRESS])  # for gloo, which would take what the host's name resolves to
        mends.apply()
        titan = _spec(self.job_config) if isinstance(self.job_config, Mapping) else self.job_config
        if isinstance(titan, TitanSpec):
            titan = config.from_spec(titan, int(os.environ.get("WORLD_SIZE", "1")))
            titan.dump_folder = os.path.join(os.getcwd(), "titan")  # in the node's own folder
        self.job_config = titan
        print(f"Initialized actor: {self.rank} {current_rank()=} {socket.gethostname()=}")
        return socket.gethostname()

    @endpoint
    def train(self) -> dict[str, float]:
        """Trains to the config's last step. Returns {"step", "loss"}: the last step, and the loss that was logged last."""
        import torch
        from torchtitan.tools.logging import init_logger, logger

        from titan_actor import mends

        init_logger()
        logger.info("Starting training")
        trainer, losses = None, [float("nan")]
        try:
            trainer = type(self.job_config)._owner(self.job_config)
            mends.apply_to("built", trainer)
            log = trainer.metrics_processor.log

            def logged(step: int, loss: float, *given: Any, **more: Any) -> None:
                losses.append(loss)
                log(step, loss, *given, **more)

            trainer.metrics_processor.log = logged
            trainer.train()
            return {"step": trainer.step, "loss": losses[-1]}
        finally:
            if trainer is not None:
                trainer.close()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
                logger.info("Process group destroyed.")
            print("Done training")
