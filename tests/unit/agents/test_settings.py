"""A node's settings reach the agent as they were given to its shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.shim.settings import Settings, parse

SERVICE = {"role": "service", "slots": 0}
FULL = {"host": "h9", "allocation": "debug-a1", "slots": 3, "lease_s": 7, "report_s": 0.5, "grace_s": 0.0, "cold": True}


@pytest.mark.parametrize("more", [{}, SERVICE, FULL])
def test_settings_survive_the_command_line(more: dict[str, object]) -> None:
    given = Settings(node="n1", home=Path("/runs/x"), etcd=("127.0.0.1:1", "127.0.0.1:2"), **more)  # type: ignore[arg-type]
    assert parse(given.arguments()) == given


def test_an_older_agent_is_given_no_option_that_it_may_not_know() -> None:
    given = Settings(node="n1", home=Path("/runs/x"), etcd=("127.0.0.1:1",)).arguments()
    assert not [option for option in given if option.startswith(("--host", "--security", "--cold"))]
