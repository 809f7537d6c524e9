"""Commands that an agent sends to a rank: each once, and again if what it asks for has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agents.agent import rank_commands
from agents.agent.rank_commands import RankCommands
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.wire.records import TrainerDesired


class Steps:
    """A rank's progress: it steps."""

    newest = type("Newest", (), {"step": 7})()

    def stuck_s(self, now: float) -> float:
        return 0.0


def desired(**about: Any) -> TrainerDesired:
    return TrainerDesired(
        run="r", group=0, generation=1, world_size=1, groups=1, min_groups=1, gate="", run_dir="", titan=TitanSpec(),
        torchft=TorchFTSpec(), term_grace_s=1.0, **about,
    )  # fmt: skip


def test_a_drain_is_sent_again_if_the_state_is_to_be_saved_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`supervisor stop` in the middle of a relaunch from memory: the last step becomes a checkpoint."""
    sent = []

    async def ask(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        sent.append(request)
        return {"ok": True}

    async def told() -> None:
        commands, now = RankCommands(tmp_path), 0.0
        for from_memory in (2, 2, 0, 0):
            wanted = desired(stop_at_step=20, from_memory=from_memory)
            for _ in range(3):
                now += 100.0
                commands.update(wanted, Steps(), now)  # type: ignore[arg-type]
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    monkeypatch.setattr(rank_commands, "ask", ask)
    asyncio.run(told())
    drains = [request for request in sent if request["do"] == "drain"]
    assert [(each["at_step"], each["keep"]) for each in drains] == [(20, 2), (20, 0)]
