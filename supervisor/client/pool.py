"""A pool of held nodes, and what it shares with a run. Functions import what they need: connecting costs most."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.client.errors import EverstepError, sentences

if TYPE_CHECKING:
    from supervisor.client.live import Client, Run
    from supervisor.client.mesh import Mesh
    from supervisor.core.model.spec import RunSpec
    from supervisor.shell.code.sync import Done
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.shell.engines.registry import Context
    from supervisor.shell.etcd import EtcdStore
    from supervisor.shell.inspect.pools import PoolStatus


def mirror_of(store: EtcdStore) -> Mirror:
    """Reads all that etcd holds."""
    from supervisor.shell.control.state_cache import Mirror
    from supervisor.wire import keys

    return Mirror(store.list(keys.PREFIX))


def synced(store: EtcdStore, name: str, folder: str | Path, most_mib: float, context: Context) -> Done:
    """Makes a folder the code of a pool or run."""
    from supervisor.shell.code import sync
    from supervisor.wire.security import load

    return sync.sync(store, name, Path(folder), load(context.security), most_mib)


class Pool:
    """Nodes that are held for runs (docs/POOLS.md), made by a Client. Each call reads its state again."""

    def __init__(self, store: EtcdStore, client: Client, name: str) -> None:
        self._store, self.client, self.name = store, client, name

    def __repr__(self) -> str:
        return f"<Pool {self.name}>"

    @sentences()
    def status(self) -> PoolStatus:
        """Returns its phase, its nodes and who uses them, and when its time is over."""
        from supervisor.shell.inspect import pools

        mirror = mirror_of(self._store)
        record = pools.named(mirror, self.name)
        if record is None:
            raise EverstepError(f"there is no pool {self.name!r} any more")
        return pools.pool_status(mirror, record)

    def launch(
        self,
        run: str | Path | Mapping[str, Any] | RunSpec,
        name: str | None = None,
        set: Mapping[str, Any] | None = None,
        resume_from: str | Path | None = None,
    ) -> Run:
        """Starts a run on its nodes: `Client.launch` with `on`."""
        return self.client.launch(run, name, set, on=self.name, resume_from=resume_from)

    @sentences()
    def mesh(self, nodes: int | None = None) -> Mesh:
        """Makes a Monarch mesh on its idle nodes, which runs do not get meanwhile: `with pool.mesh() as mesh`, and then
        `mesh.host_mesh`, a HostMesh. It needs `everstep[monarch]`, here and on the nodes (docs/MONARCH.md).

        `nodes`: how many; None: all that are idle. It takes seconds. Raises EverstepError if there are fewer, or if a
        node has no Monarch.
        """
        from supervisor.client import mesh

        return mesh.made(self._store, mirror_of(self._store), self.status(), nodes)

    @sentences()
    def sync(self, folder: str | Path, most_mib: float = 1024.0) -> Done:
        """Makes a folder the code of its runs: the next start of each group takes it (docs/CODE.md). Only what changed
        travels. `most_mib`: most MiB of it. Raises EverstepError with what must be changed."""
        return synced(self._store, self.name, folder, most_mib, self.client._context)

    @sentences()
    def release(self) -> str:
        """Gives all its nodes back to the engine. Raises EverstepError while a run uses it."""
        from supervisor.shell.inspect import pools

        return pools.release(self._store, mirror_of(self._store), self.name)
