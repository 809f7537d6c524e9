"""Slices of a mesh: after "Getting started" and "Ping pong" of Monarch's documentation."""

from __future__ import annotations

from monarch.actor import Actor, current_rank, endpoint

import supervisor.client as everstep


class ToyActor(Actor):
    def __init__(self) -> None:
        self.rank = current_rank().rank
        self.value = 0

    @endpoint
    def hello_world(self, msg: str) -> str:
        return f"Identity: {self.rank}, {msg=}"

    @endpoint
    def increment(self) -> None:
        self.value += 1

    @endpoint
    def get_value(self) -> int:
        return self.value


with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    procs = mesh.host_mesh.spawn_procs(per_host={"gpus": 4})
    toy_actor = procs.spawn("toy_actor", ToyActor)

    # one actor at a time
    futures = []
    for idx in range(4):
        actor_instance = toy_actor.slice(hosts=0, gpus=idx)
        futures.append(actor_instance.hello_world.call_one(f"Here's an arbitrary unique value: {idx}"))
    for future in futures:
        print(future.get())

    # two of four on each host, then all of the last host
    toy_actor.slice(gpus=slice(0, 2)).increment.broadcast()
    toy_actor.slice(hosts=-1 % len(mesh.nodes)).increment.broadcast()
    print(toy_actor.get_value.call().get())

    # a slice of the hosts has processes of its own
    last = mesh.host_mesh.slice(hosts=len(mesh.nodes) - 1)
    print(last.spawn_procs(per_host={"gpus": 2}).extent)
