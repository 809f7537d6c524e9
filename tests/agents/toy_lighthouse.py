"""titan_actor.lighthouse with its quorum ids raised as the gate asks. To be dropped once titan_actor does that itself:
without it a second lighthouse gives out ids that were used before, and a rendezvous meets stale keys and hangs."""

from __future__ import annotations

import json
import os
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from agents.gate import QUORUM_IDS_ABOVE
from titan_actor import lighthouse

SECOND = timedelta(seconds=1)


def raise_ids(torchft: Any, address: str, above: int) -> None:
    """A throwaway replica asks for quorums and says each time that its commit failed: each gets a new id."""
    server = torchft.ManagerServer(
        replica_id="raise-ids",
        lighthouse_addr=address,
        hostname="127.0.0.1",
        bind="127.0.0.1:0",
        store_addr="",
        world_size=1,
        heartbeat_interval=timedelta(milliseconds=20),
        connect_timeout=SECOND,
        quorum_retries=0,
    )
    client = torchft.ManagerClient(server.address(), SECOND)
    request = {"group_rank": 0, "step": 0, "checkpoint_metadata": "", "shrink_only": False, "init_sync": False}
    while client._quorum(**request, commit_failures=1, timeout=SECOND).quorum_id <= above:
        pass
    server.shutdown()
    # it counts as alive for one heartbeat timeout more, and the first real quorum must not wait for it
    threading.Event().wait(0.3)


def main() -> None:
    above = int(os.environ.get(QUORUM_IDS_ABOVE, "0"))
    torchft = lighthouse.native()

    def server(**options: Any) -> Any:
        made = torchft.LighthouseServer(**options)
        if above:
            raise_ids(torchft, f"http://127.0.0.1:{made.address().rpartition(':')[2]}", above)
            print(json.dumps({"raised_above": above}), file=os.fdopen(os.dup(2), "w"), flush=True)
        return made

    patched = SimpleNamespace(LighthouseServer=server, LighthouseClient=torchft.LighthouseClient)
    lighthouse.native = lambda: patched
    lighthouse.main()


if __name__ == "__main__":
    main()
