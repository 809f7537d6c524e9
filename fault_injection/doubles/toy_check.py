"""A stand-in for titan_actor.check that imports nothing of TorchTitan, which would take seconds."""

from __future__ import annotations

import json
import sys

from supervisor.wire.records import RunRecord, decode

if __name__ == "__main__":
    decode(sys.stdin.read(), RunRecord)
    print(json.dumps({"problems": []}))
