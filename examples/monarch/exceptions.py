"""Exceptions of remote actors: after "The supervision tree" of Monarch's documentation."""

from __future__ import annotations

import os

from monarch.actor import Actor, ActorError, MeshFailure, current_rank, endpoint

import supervisor.client as everstep


class Errorful(Actor):
    @endpoint
    def say_hello(self) -> str:
        if current_rank().rank == 1:
            raise Exception("I don't want to")
        return "hello"

    @endpoint
    def leave(self) -> None:
        os._exit(3)


class SupervisorActor(Actor):
    """Owns a mesh, handles the end of its actors, and starts others in their place."""

    def __init__(self, procs: object) -> None:
        self.procs = procs
        self.failures: list[str] = []
        self.children = procs.spawn("children", Errorful)  # type: ignore[attr-defined]

    @endpoint
    def end_one(self) -> None:
        self.children.slice(hosts=0, gpus=0).leave.broadcast()

    @endpoint
    def seen(self) -> list[str]:
        return self.failures

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(str(failure))
        return True


with everstep.connect() as client, client.pool("lab").mesh() as mesh:
    procs = mesh.host_mesh.spawn_procs(per_host={"gpus": 2})
    errorful = procs.spawn("errorful", Errorful)

    # where an answer is expected the error comes to the caller
    try:
        errorful.say_hello.call().get()
    except ActorError as error:
        print("It didn't say hello:", str(error).strip().splitlines()[-1])

    # the others still do, and so does the one that raised: an exception ends no actor
    print(errorful.slice(hosts=0, gpus=0).say_hello.call_one().get())

    # a process that ends is reported to the actor that owns its mesh
    owner = mesh.host_mesh.slice(hosts=0).spawn_procs().spawn("owner", SupervisorActor, procs)
    owner.end_one.call_one().get()
    while not (failures := owner.seen.call_one().get()):
        pass
    print("Failure received:", failures[0].splitlines()[0][:60])
