"""Sentences for the person who launches a run: what refuses it by what was measured, and what is only noted."""

from __future__ import annotations

from supervisor.core.model.measured import NOTHING, Measured
from supervisor.core.model.spec import RunSpec
from supervisor.core.timeouts import solver
from supervisor.shell.control import webhook
from supervisor.shell.control.state_cache import Mirror
from supervisor.shell.engines import registry
from supervisor.shell.runfile import timeout_fit


def unsafe(mirror: Mirror, spec: RunSpec) -> tuple[list[str], Measured]:
    """Returns the timeouts that are unsafe by what a run of the same program took, as sentences; and those durations."""
    like, seen = timeout_fit.of_one_like_it(mirror, spec)
    rows = solver.unsafe(spec, seen)
    return [f"{row.sentence} (measured in run {like}, which trained the same)" for row in rows], seen


def notes(spec: RunSpec, seen: Measured = NOTHING) -> list[str]:
    """Returns problems that do not keep the run from starting."""
    webhook_note = webhook.not_here(spec.policy.webhook_file)
    return [*timeout_fit.short(spec, seen), *([webhook_note] if webhook_note else []), *registry.notes(spec)]
