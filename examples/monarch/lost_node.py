"""A node is lost: calls on its part of the mesh raise an exception, and the rest goes on.

It waits until one of the nodes is gone: kill its shim, or `supervisor drain` its host.
"""

from __future__ import annotations

import time

from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, ActorError, endpoint

import supervisor.client as everstep


class Worker(Actor):
    @endpoint
    def work(self) -> str:
        return "done"


with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    workers = mesh.host_mesh.spawn_procs().spawn("workers", Worker)
    while True:
        try:
            workers.work.call().get()
            print("all work", flush=True)
        except (ActorError, SupervisionError) as error:
            print(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
            break
        time.sleep(0.5)
    while not mesh.lost:
        time.sleep(0.1)
    print("lost:", *mesh.lost)
    rest = [host for host, node in enumerate(mesh.nodes) if node not in mesh.lost]
    print([workers.slice(hosts=host).work.call_one().get() for host in rest])
    again = mesh.host_mesh.slice(hosts=rest[0]).spawn_procs().spawn("again", Worker)
    print(again.work.call_one().get())
