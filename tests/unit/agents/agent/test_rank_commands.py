"""Commands that an agent sends to a rank: each once, and again if what it asks for has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.agent import rank_commands
from agents.agent.rank_commands import RankCommands
from supervisor.core.model.spec import TitanSpec, TorchFTSpec
from supervisor.wire.records import TrainerDesired


class Steps:
    """A rank's progress: it steps."""

    def __init__(self, phase: str = "step") -> None:
        self.newest = SimpleNamespace(step=7, phase=phase)

    def stuck_s(self, now: float) -> float:
        return 0.0


def desired(**about: Any) -> TrainerDesired:
    return TrainerDesired(
        run="r", group=0, generation=1, world_size=1, groups=1, min_groups=1, gate="", run_dir="", titan=TitanSpec(),
        torchft=TorchFTSpec(), term_grace_s=1.0, **about,
    )  # fmt: skip


def sent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, looks: Iterable[tuple[TrainerDesired, Steps]]
) -> list[dict[str, Any]]:
    """Returns what an agent sends while it sees these, each three times."""
    found = []

    async def ask(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
        found.append(request)
        return {"ok": True}

    async def look() -> None:
        commands, now = RankCommands(folder), 0.0
        for wanted, progress in looks:
            for _ in range(3):
                now += 100.0
                commands.update(wanted, progress, now)  # type: ignore[arg-type]
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    monkeypatch.setattr(rank_commands, "ask", ask)
    asyncio.run(look())
    return found


def test_a_drain_is_sent_again_if_the_state_is_to_be_saved_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`supervisor stop` in the middle of a relaunch from memory: the last step becomes a checkpoint."""
    looks = [(desired(stop_at_step=20, from_memory=n), Steps()) for n in (2, 2, 0, 0)]
    drains = [request for request in sent(tmp_path, monkeypatch, looks) if request["do"] == "drain"]
    assert [(each["at_step"], each["keep"]) for each in drains] == [(20, 2), (20, 0)]


def test_it_waits_and_goes_on_also_where_an_earlier_agent_had_it_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [(desired(), Steps()), (desired(wait=True), Steps()), (desired(wait=True), Steps("waiting"))]
    waits = {"do": "wait", "wait": True}
    goes_on = {"do": "wait", "wait": False}
    assert [each for each in sent(tmp_path, monkeypatch, looks) if each["do"] == "wait"] == [waits]
    assert goes_on in sent(tmp_path, monkeypatch, [(desired(), Steps("waiting"))])
    assert sent(tmp_path, monkeypatch, [*looks, (desired(), Steps("step"))])[-1] == goes_on
