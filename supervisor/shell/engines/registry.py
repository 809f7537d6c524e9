"""Engines, and what the shell needs of each: one row an engine. What the rules need of it is its row in core/model/engines.py.

`supervisor up` and `suspend.py` are the local engine's own, `supervisor submit` is Slurm's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.model.engines import TRAITS, EngineName
from supervisor.core.model.spec import AllocationSpec, RunSpec
from supervisor.ports.engine import Engine
from supervisor.shell.engines import local_room
from supervisor.shell.engines.local import LocalEngine
from supervisor.shell.engines.slurm import engine as slurm
from supervisor.shell.engines.slurm import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The system that an engine gives nodes to."""

    home: Path
    """The system's folder."""
    etcd: tuple[str, ...]
    """Endpoints, HOST:PORT."""
    security: str = ""
    """Path of the security file, if there is one."""


OfTerm = Callable[[str], Engine]
"""The engine for one term of a leader, from the system's name (keys.SYSTEM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An engine, as the shell needs it."""

    build: Callable[[Context], OfTerm] | None = None
    """Called once in a supervisor's life. Raises Fatal where the engine can never work. None: pools lend nodes of others."""
    problems: Callable[[AllocationSpec], list[str]] = lambda allocation: []
    """Sentences about its part of any run file, also of one that names another engine; empty when all is right."""
    notes: Callable[[RunSpec], list[str]] = lambda spec: []
    """Sentences that keep no run from starting, and that the person who launches it should know."""
    before_launch: Callable[[RunSpec, Context], str] = lambda spec, context: ""
    """A sentence for the person who launches a run on it; empty: nothing stands in the way. Raises Fatal where the run cannot start."""
    before_scale: Callable[[int, Context], str] = lambda more, context: ""
    """A sentence for the person whose live run needs that many nodes more; empty: nothing stands in the way."""
    knows_host: Callable[[str], bool] = lambda host: False
    """It has a host of this name, as far as it can be asked from here."""


def _local(context: Context) -> OfTerm:
    engine = LocalEngine(context.home)
    return lambda system: engine


def _slurm(context: Context) -> OfTerm:
    return lambda system: slurm.SlurmEngine(context.etcd, context.security, system)


def _pool_problems(allocation: AllocationSpec) -> list[str]:
    lends, pool = TRAITS[allocation.engine].lends, allocation.pool
    if lends and not pool:
        return [f'allocation.pool = "": engine = "{allocation.engine}" needs the name of a pool (supervisor pools)']
    if pool and not lends:
        return [f"allocation.pool = {pool!r}: has no effect with engine = {allocation.engine!r}: remove one of them"]
    return []


ENGINES: Mapping[EngineName, Row] = {
    "local": Row(
        build=_local,
        notes=lambda spec: [*local_room.not_here(spec)],
        before_launch=lambda spec, context: local_room.lacks(spec, context.home),
        before_scale=lambda more, context: local_room.lacks_more(more, context.home),
    ),
    "slurm": Row(
        build=_slurm,
        problems=validate.problems,
        notes=validate.notes,
        before_launch=lambda spec, context: slurm.before_launch(spec, context.etcd, context.security),
        knows_host=slurm.knows_host,
    ),
    "pool": Row(problems=_pool_problems),
}


def built(context: Context) -> Sequence[OfTerm]:
    """All engines. Raises Fatal where one can never work."""
    return [row.build(context) for row in ENGINES.values() if row.build is not None]


def problems(allocation: AllocationSpec) -> list[str]:
    """Sentences about all engines' parts of a run file; empty when all is right."""
    return [problem for row in ENGINES.values() for problem in row.problems(allocation)]


def notes(spec: RunSpec) -> list[str]:
    """Returns the notes of the run's engine (Row.notes)."""
    return ENGINES[spec.allocation.engine].notes(spec)


def before_launch(spec: RunSpec, context: Context) -> str:
    """Returns the note of the run's engine before a launch (Row.before_launch)."""
    return ENGINES[spec.allocation.engine].before_launch(spec, context)


def before_scale(before: RunSpec, after: RunSpec, context: Context) -> str:
    """Returns the note of the run's engine before a live run is scaled (Row.before_scale)."""
    now, then = before.allocation, after.allocation
    more = then.nodes + then.spares - now.nodes - now.spares
    return ENGINES[then.engine].before_scale(more, context) if more > 0 else ""


def know_host(host: str) -> bool:
    """Some engine has a host of this name, as far as it can be asked from here."""
    return any(row.knows_host(host) for row in ENGINES.values())
