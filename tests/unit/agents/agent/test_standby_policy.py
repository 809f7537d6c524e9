"""The launch and the start that `policy.standby` leads to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from agents.agent import launch
from agents.shim.settings import Settings
from supervisor.core.model.spec import PolicySpec
from supervisor.shell.control import projection
from tests.unit.shell.control.test_projection import RUNNING, SPEC


@pytest.mark.parametrize(
    ("standby", "built", "cold"), [("built", True, False), ("warm", False, False), ("none", False, True)]
)
def test_a_start_is_prepared_as_its_policy_says(
    tmp_path: Path, standby: Literal["built", "warm", "none"], built: bool, cold: bool
) -> None:
    spec = replace(SPEC, policy=PolicySpec(standby=standby))
    (desired,) = projection.desired(spec, str(tmp_path), RUNNING)["n1"].trainers
    settings = Settings(node="n1", home=tmp_path, etcd=("127.0.0.1:1",))
    launch.write_launches(settings, desired, "127.0.0.1:2")
    request = launch.trainer_request(settings, desired, 0, {"env": {}})
    written = launch.read_launch(Path(request["folder"]))
    assert written is not None
    assert (written.standby, request["cold"]) == (built, cold)
    assert launch.trainer_request(replace(settings, cold=True), desired, 0, {"env": {}})["cold"], "as its node says"
