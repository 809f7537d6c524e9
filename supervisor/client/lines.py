"""The lines of a run's logs, from its nodes."""

from __future__ import annotations

import time

from supervisor.client.errors import EverstepError
from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import remote_logs
from supervisor.shell.inspect.merged_log import Entry, Wish

NODES_GIVE = 1000
"""Lines that are asked for where no number is given."""


def of_nodes(store: Store, mirror: Mirror, run: str, wish: Wish) -> list[Entry]:
    """Asks the nodes. Raises EverstepError if one of them does not give all of its lines, or none has any; PortError if
    etcd is away."""
    wanted = remote_logs.Wish(
        run=run,
        group=wish.group,
        rank=wish.rank,
        lines=NODES_GIVE if wish.tail is None else wish.tail,
        since_s=None if wish.since is None else max(0.0, time.time() - wish.since),
        grep=wish.grep,
    )
    found, missing = remote_logs.read(store, mirror, wanted)
    if missing:
        raise EverstepError("\n".join(f"{node}: {why}" for node, why in missing.items()))
    if not (found or wanted.chosen):
        raise EverstepError(remote_logs.none_found(wanted))
    return found
