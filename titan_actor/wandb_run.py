"""Names a rank's run at Weights & Biases, so that its restarts go on with it."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from supervisor.wire.records import TrainerLaunch

FILE = "wandb-id"
"""In the run's folder: a later run of the same name has another, and so does not go on with this one's."""

WITHIN_S = 5.0
"""Seconds within which the rank that makes it has written it."""


def name(launch: TrainerLaunch) -> None:
    """Has W&B go on with this group's run, and show those of all groups together. The user's own variables count, but an id
    of theirs gets the group's number: W&B keeps one process's steps under an id. Raises OSError."""
    rank = f"-rank-{launch.rank}" if launch.rank else ""  # ranks but the first write with metrics.save_for_all_ranks
    mine, own = f"{launch.run}-group-{launch.group}{rank}", os.environ.get("WANDB_RUN_ID")
    os.environ["WANDB_RUN_ID"] = f"{own}-group-{launch.group}{rank}" if own else f"{mine}-{_id(Path(launch.run_dir))}"
    others = {"WANDB_RUN_NAME": mine, "WANDB_RUN_GROUP": launch.run, "WANDB_RESUME": "allow"}
    for variable, value in others.items():
        os.environ.setdefault(variable, value)


def _id(run_dir: Path) -> str:
    """Returns the id of the run, which its first rank makes."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path, new = run_dir / FILE, run_dir / f"{FILE}.{uuid.uuid4().hex}"
    if not path.exists():
        new.write_text(uuid.uuid4().hex[:8])
        try:
            os.link(new, path)  # the first one's counts, and is there whole: other ranks read it
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            with suppress(FileExistsError), open(path, "x") as file:
                file.write(new.read_text())
        new.unlink()
    until = time.monotonic() + WITHIN_S
    while not (found := path.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    if not found:
        raise OSError(f"{path} is empty: remove it, so that the next start of a rank makes another")
    return found
