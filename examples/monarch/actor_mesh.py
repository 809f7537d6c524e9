"""A mesh of actors on a pool's nodes: after "Getting started" of Monarch's documentation.

Beside a `supervisor up --nodes 2`, and after `supervisor hold --name lab --nodes 2`.
"""

from __future__ import annotations

from monarch.actor import Actor, context, current_rank, endpoint

import supervisor.client as everstep


class Counter(Actor):
    def __init__(self, initial_value: int) -> None:
        self.value = initial_value

    @endpoint
    def increment(self) -> None:
        self.value += 1

    @endpoint
    def get_value(self) -> int:
        return self.value


class Trainer(Actor):
    @endpoint
    def step(self) -> str:
        return f"Trainer {context().message_rank} taking a step."


class ExampleActor(Actor):
    """Talks to the actor of the same rank in another mesh."""

    def __init__(self, actor_name: str) -> None:
        self.actor_name = actor_name
        self.heard: list[str] = []

    @endpoint
    def init(self, other_actor: ExampleActor) -> None:
        self.other_actor_pair = other_actor.slice(**current_rank())
        self.identity = current_rank().rank

    @endpoint
    def send(self, msg: str) -> None:
        self.other_actor_pair.recv.call(f"Sender ({self.actor_name}:{self.identity}) {msg=}").get()

    @endpoint
    def recv(self, msg: str) -> None:
        self.heard.append(msg)

    @endpoint
    def received(self) -> list[str]:
        return self.heard


with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    hosts = mesh.host_mesh
    print(hosts.extent)

    procs = hosts.spawn_procs(per_host={"gpus": 2})
    counters = procs.spawn("counters", Counter, 0)
    counters.increment.broadcast()
    print(counters.get_value.call().get())

    trainers = procs.spawn("trainer", Trainer)
    print(trainers.step.call().get())

    others = hosts.spawn_procs(per_host={"gpus": 2})
    actor_0 = procs.spawn("actor_0", ExampleActor, "actor_0")
    actor_1 = others.spawn("actor_1", ExampleActor, "actor_1")
    actor_0.init.call(actor_1).get()
    actor_1.init.call(actor_0).get()
    actor_0.send.call("Ping").get()
    print(actor_1.received.call().get())
