"""`python -m tests.real_trainers.titan.own_ranks LAUNCH_JSON`: a script of the user's own with several ranks in a group."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel

import everstep_trainer
from supervisor.wire import environment

with everstep_trainer.start(sys.argv[1]) as rank:
    os.environ.update(environment.meeting_point(rank.launch))  # as the node's agent does
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    manager = rank.manager(model.state_dict, model.load_state_dict)
    replicated = DistributedDataParallel(manager, model)
    rank.admit()
    while rank.goes_on(manager.current_step()):
        manager.start_quorum()
        optimizer.zero_grad()
        replicated(torch.randn(3, 4)).sum().backward()
        time.sleep(0.05)
        committed = manager.should_commit()
        if committed:
            optimizer.step()
        step = manager.current_step()
        rank.step(step, committed=committed)
        if committed:
            rank.digest(step, str([p.tolist() for p in model.parameters()]))
