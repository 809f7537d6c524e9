"""Says who set each field of a config, and what of a recipe a run does not go by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from supervisor.core.model.spec import TitanSpec
from titan_actor import fields, recipes
from titan_actor.lift import Change
from titan_actor.overrides import fields_of, leaves

By = Literal["recipe", "run file", "supervisor"]

TOLD_APART = (
    "training.steps",
    "debug.seed",
    "checkpoint.enable",
    "training.disable_cuda_graphs",
    "fault_tolerance.enable",
)
"""Fields that `of_defaults`, the lift and the mends have a line for, and one that says what every run is."""


@dataclass(frozen=True)
class Setting:
    """One field of a resolved config. `by`: who set its value, None if it has no effect here."""

    key: str
    value: Any
    by: By
    reason: str = ""
    before: Any = None
    """The recipe's value, if another one set it."""


class Stages:
    """Looks at a config after each stage of its making, to tell who set a field."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._seen: list[tuple[By, dict[str, Any]]] = []

    def after(self, by: By, config: Any) -> None:
        self._seen.append((by, dict(leaves(config))))

    def mended(self, config: Any) -> None:
        """Takes note of what was changed since the last look, for the reasons in the table of fields."""
        before = self._seen[-1][1]
        for key, value in leaves(config):
            if key in before and before[key] != value and (row := fields.standing(key)) is not None:
                self.changes.append(Change(key, before[key], value, row.note))

    def settings(self) -> list[Setting]:
        told = {change.key: change for change in self.changes}
        first, last = self._seen[0][1], self._seen[-1][1]
        found = []
        for key, value in last.items():
            by, then = self._seen[0][0], first.get(key)
            for who, stage in self._seen[1:]:
                if stage.get(key) != then:
                    by, then = who, stage.get(key)
            if by == "recipe" and key.startswith("model_spec."):
                continue
            row, change = fields.standing(key), told.get(key)
            if by == "recipe" and row is not None and row.standing == "ours":
                by = "supervisor"  # whatever the recipe says
                value = None if change is not None else value
            noted = row is not None and (by == "supervisor" or row.always)
            reason = change.reason if change is not None else row.note if row is not None and noted else ""
            found.append(Setting(key, value, by, reason, None if by == "recipe" else first.get(key)))
        gone = (change for change in self.changes if change.key not in last)
        return [*found, *(Setting(each.key, None, "supervisor", each.reason, each.before) for each in gone)]


def of_defaults(config: Any, titan: TitanSpec) -> Iterator[Change]:
    """Names the steps and the seed of a recipe that those of the run file, unless it sets them, take the place of. Those of a
    shipped recipe are ours."""
    pairs = (("training.steps", "steps", config.training.steps), ("debug.seed", "seed", config.debug.seed))
    for key, name, own in pairs:
        value, usual = getattr(titan, name), getattr(TitanSpec(), name)
        if own not in (None, value) and value == usual and titan.recipe not in recipes.SHIPPED:
            yield Change(
                key, own, value, f"titan.{name} is {usual} unless it is set; titan.{name} = {own} keeps the recipe's"
            )


def given_up(made: Any, titan: TitanSpec) -> Iterator[Change]:
    """Names what a recipe sets to another value than TorchTitan's default, and a run has keys or ways of its own for."""
    ours = {"checkpoint.interval": titan.checkpoint_interval_steps, "checkpoint.keep_latest_k": titan.checkpoints_kept}
    if titan.recipe in recipes.SHIPPED:
        return
    for key, value in leaves(made):
        row = fields.standing(key)
        if row is None or row.standing != "ours" or key in TOLD_APART or key == "fault_tolerance.semi_sync_method":
            continue
        if value not in (_default(made, key), ours.get(key)):
            yield Change(key, value, ours.get(key), row.note)


def _default(made: Any, key: str) -> Any:
    *path, leaf = key.split(".")
    for name in path:
        made = getattr(made, name)
    if leaf not in fields_of(made):
        return None
    field = next(field for field in dataclasses.fields(made) if field.name == leaf)
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
