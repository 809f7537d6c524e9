"""Refuses a start whose first quorum is behind what was trained before: training on would discard those steps."""

from __future__ import annotations

from pathlib import Path

from supervisor.wire.checkpoints import listed
from supervisor.wire.records import Progress, RecordError, TrainerLaunch, decode


class PeersGone(Exception):
    """The group started to heal from peers, and met none that has trained and is as far as the checkpoint; or several of
    its heals have failed."""


def before(launch: TrainerLaunch) -> str:
    """Returns the replica id of the group's last generation, which has ended on this node; empty: it was elsewhere, or had
    none."""
    name = f"{launch.run}.{launch.group}.{launch.generation - 1}.0"
    try:
        return decode((Path(launch.rank_dir).parent / name / "progress.json").read_bytes(), Progress).replica_id
    except (OSError, RecordError):
        return ""


def saved(run_dir: str) -> set[str]:
    """Returns the folders of the run's complete checkpoints."""
    return {str(folder) for _, folder, mark in listed(run_dir) if mark is not None}


def refuse_behind(launch: TrainerLaunch, step: int, saved_before: set[str]) -> None:
    """Raises PeersGone if `step`, that of the first quorum, is behind the others or the checkpoint. A checkpoint that is
    not in `saved_before`, those of this start, may exist by now: the group's next start looks for it."""
    known = launch.checkpoint.step if launch.checkpoint is not None else 0
    if launch.resume == "peers" and step < max(known, 1):
        raise PeersGone(f"at step {step}, {f'the checkpoint at {known}' if known else 'and the others had trained'}")
    late = saved(launch.run_dir) - saved_before if step == 0 else set()
    if late:
        raise PeersGone(f"at step 0, and {min(late)} was saved while it waited for its first quorum")
