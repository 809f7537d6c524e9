"""Holds the optimizer to the settings of the run file: a checkpoint brings those of its own run file with it, so that a
relaunch with another weight decay would change nothing.

The settings with which a program began are kept beside each checkpoint. Those that the run file has changed since are
set again after a load. All others stay as the checkpoint has them: some are changed in the course of a training.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FILE = "optimizer.json"
"""In a checkpoint's folder: for each optimizer its groups of parameters, for each of these its settings."""

Settings = list[list[dict[str, Any]]]

_NO_SETTINGS = ("params", "param_names", "lr")
"""Parts of a group that no run file sets. The learning rate is the schedule's: `set_rates`."""


def of(trainer: Any) -> Settings:
    """Returns the settings as JSON has them. Call it before anything is loaded."""
    optimizers = trainer.optimizers.optimizers
    return [[_of_group(group) for group in optimizer.param_groups] for optimizer in optimizers]


def _of_group(group: dict[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    found = {}
    for name, value in group.items():
        values = value if isinstance(value, tuple | list) else [value]
        if name not in _NO_SETTINGS and all(isinstance(each, plain) for each in values):
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def write(folder: Path, settings: Settings) -> None:
    """Raises OSError."""
    (folder / FILE).write_text(json.dumps(settings))


def restore(trainer: Any, folder: Path, own: Settings) -> list[str]:
    """Sets what differs between the program that wrote the checkpoint and this one, which has just loaded it. Returns the
    changes, a sentence each. A checkpoint without the file changes nothing."""
    try:
        before: Settings = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return []
    return set_again(trainer, before, own)


def set_rates(trainer: Any) -> None:
    """Sets the learning rates that the schedule of this run file has at its place, once that was loaded. A loaded
    optimizer has those of the program before, and the schedule would set its own after the next step only."""
    for optimizer, schedule in zip(trainer.optimizers.optimizers, trainer.lr_schedulers.schedulers, strict=True):
        for group, first, now in zip(optimizer.param_groups, schedule.base_lrs, schedule.get_last_lr(), strict=True):
            group.update(initial_lr=first, lr=now)


def set_again(trainer: Any, before: Settings, own: Settings) -> list[str]:
    """Sets what differs between the program of which a state is, and this one, which has just loaded it; `restore`."""
    said = {}
    for number, (optimizer, groups) in enumerate(zip(trainer.optimizers.optimizers, own, strict=True)):
        # with a pipeline each rank has parts of its own, and rank 0 wrote the file
        known = before[number % len(before)] if before else []
        if len(known) != len(groups):
            continue
        for group, was, now in zip(optimizer.param_groups, known, groups, strict=True):
            for name in now.keys() & group.keys():
                if was.get(name) != now[name]:
                    group[name] = tuple(now[name]) if isinstance(group[name], tuple) else now[name]
                    said[name] = f"{name} of the optimizer is {now[name]}, as the run file says: it was {was.get(name)}"
    return [said[name] for name in sorted(said)]
