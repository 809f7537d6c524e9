"""The lines of a run's logs, from this machine's files or from the nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from supervisor.client.errors import EverstepError
from supervisor.ports.store import Store
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.inspect import logs, merged_log, remote_logs
from supervisor.shell.inspect.merged_log import Entry
from supervisor.wire.records import RunRecord

none_below = logs.none_below
NODES_GIVE = 1000
"""Lines that are asked for where no number is given."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which lines are wanted; None: all groups, ranks, times, and as many as there are."""

    group: int | None
    rank: int | None
    since: float | None
    tail: int | None
    grep: str


def of_this_machine(home: Path, record: RunRecord, wish: Wish) -> list[Entry] | None:
    """Returns the lines that this machine has; None if it has no log of the run."""
    joined = merged_log.Joined(logs.kept_in(home), record.spec.name, Path(record.run_dir), wish.group, wish.rank)
    found = joined.new()
    while joined.behind:
        found += joined.new()
    if joined.empty:
        return None
    found = [entry for entry in found if (wish.since is None or entry.t >= wish.since) and wish.grep in entry.text]
    return found if wish.tail is None else found[max(0, len(found) - wish.tail) :]


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
