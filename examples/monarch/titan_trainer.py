"""TorchTitan as an actor, trained from a script on a pool's nodes: after Lightning's and Monarch's notebook."""

from __future__ import annotations

import sys

import supervisor.client as everstep
from titan_actor.monarch_trainer import TitanTrainerWrapper, setup_env_for_distributed

# the keys of a run file's [titan]; a config of TorchTitan's registries does as well
job_config = {"recipe": "llama3-debug-small", "steps": int(sys.argv[1]) if len(sys.argv) > 1 else 10}

with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    proc_mesh = mesh.host_mesh.spawn_procs(per_host={"gpus": 1})
    setup_env_for_distributed(proc_mesh)
    trainer_actor = proc_mesh.spawn("trainer_actor", TitanTrainerWrapper, job_config)
    trainer_actor.init.call().get()
    print(trainer_actor.train.call().get())

    # again with another config, on the same nodes: no queue, no new allocation
    proc_mesh = mesh.host_mesh.spawn_procs(per_host={"gpus": 1})
    setup_env_for_distributed(proc_mesh)
    changed = {**job_config, "overrides": {"optimizer.lr": 1e-2}}
    trainer_actor = proc_mesh.spawn("trainer_actor", TitanTrainerWrapper, changed)
    trainer_actor.init.call().get()
    print(trainer_actor.train.call().get())
