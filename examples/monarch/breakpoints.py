"""Breakpoints in actors: after "Debugging Python actors with pdb" of Monarch's documentation.

It waits at the breakpoints. In another terminal, `monarch debug` lists them (`list`), goes to one (`attach debugee 3`),
and lets all go on (`continue`). MONARCH_DEBUG_SERVER_PORT is the port, for both (27000).
"""

from __future__ import annotations

from monarch.actor import Actor, current_rank, endpoint

import supervisor.client as everstep


def _debugee_actor_internal(rank: int) -> int:
    if rank % 4 == 0:
        breakpoint()
        rank += 1
        return rank
    elif rank % 4 == 1:
        breakpoint()
        rank += 2
        return rank
    elif rank % 4 == 2:
        breakpoint()
        rank += 3
        return rank
    breakpoint()
    rank += 4
    return rank


class DebugeeActor(Actor):
    @endpoint
    async def to_debug(self) -> int:
        rank = current_rank().rank
        return _debugee_actor_internal(rank)


with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    process_mesh = mesh.host_mesh.spawn_procs(per_host={"gpu": 2})
    debugee_mesh = process_mesh.spawn("debugee", DebugeeActor)
    print(debugee_mesh.to_debug.call().get())
