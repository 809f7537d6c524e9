"""TorchTitan's own trainer on a recipe, with nothing of Everstep around it: `python -m benchmarks.plain_titan SPEC`.

SPEC is a RunRecord's file. Prints one JSON line: the wall-clock time at the end of each step, in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from supervisor.wire.address import free_port
from supervisor.wire.records import RunRecord, decode
from titan_actor import mends


def main(spec_file: str) -> None:
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    mends.apply()
    from titan_actor import config as configs

    titan = decode(Path(spec_file).read_bytes(), RunRecord).spec.titan
    config = configs.from_spec(titan)
    config.dump_folder = tempfile.mkdtemp(prefix="plain-titan-")
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(place, MASTER_PORT=str(free_port("127.0.0.1")))
    trainer = type(config)._owner(config)
    ends: list[float] = []
    step = trainer.train_step

    def timed(*given: Any) -> Any:
        made = step(*given)
        ends.append(time.time())
        return made

    trainer.train_step = timed
    trainer.train()
    trainer.close()
    answer.write(json.dumps(ends) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
