"""`python -m fault_injection.in_rank.trainer LAUNCH_JSON`: titan_actor's trainer, which follows orders (causes.py)."""

from __future__ import annotations

import faulthandler
import sys
from typing import Any

from titan_actor import mends, process, trainer


def obey() -> None:
    """Makes this process, and those that it forks, build trainers that obey."""
    mends.apply()
    from fault_injection.in_rank.hooks import Obeying
    from titan_actor import heal, replica

    class ObeyingTrainer(Obeying, replica.ReplicaTrainer):
        pass

    class ObeyingHeal(heal.HealState):
        def save(self) -> dict[str, Any]:
            self._trainer.before_heal()
            return super().save()

    setattr(replica, "ReplicaTrainer", ObeyingTrainer)  # noqa: B010  (mypy: a class is not assigned to)
    setattr(replica, "HealState", ObeyingHeal)  # noqa: B010


if __name__ == "__main__":
    faulthandler.enable()
    if len(sys.argv) != 2:
        print("usage: python -m fault_injection.in_rank.trainer LAUNCH_JSON", file=sys.stderr)
        process.leave(2)
    obey()
    process.leave(trainer.main(sys.argv[1]))
