"""Checks that a submitted job can be recognized as ours; cancels one that cannot."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from supervisor.ports.errors import Fatal, Retryable
from supervisor.shell.engines.slurm.commands import ONCE_MORE_S, Commands

log = logging.getLogger(__name__)


def undone(commands: Commands, number: int, comment: str, before: Collection[int]) -> str:
    """Returns empty if a job of ours has this comment. Otherwise cancels job `number` (0: unknown) if it is ours, and
    returns why it is useless. Submitting again would only make one more. `before` holds the job numbers listed
    before the submission. Raises what the list raises."""
    for attempt in range(2):
        if attempt:
            time.sleep(ONCE_MORE_S)
        jobs = commands.jobs()
        if any(job.ours and f"{job.comment} ".startswith(f"{comment} ") for job in jobs):
            return ""
    found = next((job for job in jobs if number and job.id == number and job.id not in before), None)
    what = f"Slurm accepted job {number}" if number else "Slurm accepted a job without printing its number"
    if found is None:
        why = f"and it is not in this cluster's list with the comment {comment!r}"
    elif not found.ours:
        why = f"and it belongs to user {found.uid}, not to ours"
    else:
        why = f"and its comment is {found.comment!r}, not {comment!r}"
    if found is not None and not found.ours:
        left = " (it is not ours to cancel)"
    elif number and number not in before and cancelled(commands, [number]):
        left = ""
    else:
        left = " (if it exists, cancel it by hand)"
    return (
        f"{what}, {why}: the supervisor recognises its jobs by their comment. A plugin of the site (job_submit, cli_filter) must leave "
        f"--comment and the cluster of a supervisor's jobs as they are{left}"
    )


def cancelled(commands: Commands, jobs: Sequence[int]) -> bool:
    """Returns true if scancel accepted the jobs; logs it if not. The next look tries again."""
    try:
        commands.cancel(jobs)
    except (Fatal, Retryable) as error:
        log.warning("not cancelled: %s: %s", ", ".join(map(str, jobs)), error)
        return False
    return True
