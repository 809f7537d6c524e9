"""Prepares the memory of a run after its state was restored from a backup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.core.model.incident import Incident
from supervisor.core.model.memory import GroupMemory, Memory
from supervisor.core.model.observed import Checkpoint
from supervisor.core.model.reason import Code, Reason
from supervisor.core.model.spec import GroupsSpec
from supervisor.core.remediation.resume import fresh_start

GENERATIONS = 1000
"""Numbers that are skipped: a backup is older than what happened since, and no number may be used again. With the
default budgets a group is started at most 10 times an hour (3 restarts, and the run's 4 replacements and 3
allocations). So this is four days of a run that fails as often as it may, and months of one that does not. A store that
is away adds some 40 in half an hour, and then halts the run. Generations in the names of checkpoints are added to."""

DECISIONS = 1_000_000
"""Decisions that are skipped. They are what changes memory: a few for each start, and one for each checkpoint."""

ENDED = ("finished", "stopped", "halted")


def restored(memory: Memory, groups: GroupsSpec, checkpoint: Checkpoint | None, on_disk: Mapping[int, int]) -> Memory:
    """Returns the memory from which the run resumes at `checkpoint`; a run that had ended stays ended.

    `groups` is what the run file says. `on_disk` is the newest generation of each group that a checkpoint shows.
    """
    known = memory
    if memory.phase not in ENDED:
        # Groups that had no generation yet may have been started since.
        known = replace(memory, groups={g: memory.groups.get(g, GroupMemory(group=g)) for g in range(groups.count)})
    after = known if memory.phase in ENDED else fresh_start(known, memory.clock, GENERATIONS)
    if memory.phase == "stopping" and not memory.relaunching:
        # The wish to end the run stands: there is nothing left to drain.
        after = replace(after, phase="stopping", halt_reason=memory.halt_reason, stop_at_step=memory.stop_at_step)
    return replace(
        after,
        checkpoint=checkpoint,
        decisions=memory.decisions + DECISIONS,
        allocations_above=memory.allocations_above + GENERATIONS,
        incidents_seen=memory.incidents_seen + GENERATIONS,
        # groups that were dropped, or added after the backup
        generations_above=_highest(memory, on_disk) + GENERATIONS if memory.relaunches else memory.generations_above,
        groups={
            g: replace(
                group,
                size=groups.nodes_per_group,
                generation=max(known.groups[g].generation, on_disk.get(g, 0)) + GENERATIONS,
            )
            for g, group in after.groups.items()
        },
        lighthouse=replace(after.lighthouse, generation=memory.lighthouse.generation + GENERATIONS),
    )


def _highest(memory: Memory, on_disk: Mapping[int, int]) -> int:
    known = [group.generation for group in memory.groups.values()]
    return max([memory.generations_above, *known, *on_disk.values()])


def closed(incident: Incident) -> Incident:
    """Closes an incident that was open when the backup was made: how it ended is unknown."""
    return replace(incident, state="halted", considered=(*incident.considered, Reason.of(Code.RESTORED)))
