"""A node's settings reach the agent as they were given to its shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.shim.settings import Settings, parse

SERVICE = {"role": "service", "slots": 0}
FULL = {"host": "h9", "allocation": "debug-a1", "slots": 3, "lease_s": 7, "report_s": 0.5, "grace_s": 0.0, "cold": True}


@pytest.mark.parametrize("more", [{}, SERVICE, FULL])
def test_settings_survive_the_command_line(more: dict[str, object]) -> None:
    given = Settings(node="h9.n1", home=Path("/runs/x"), etcd=("127.0.0.1:1", "127.0.0.1:2"), **more)  # type: ignore[arg-type]
    assert parse(given.arguments()) == given


@pytest.mark.parametrize(
    ("node", "host", "right"), [("n1", "n1", True), ("h9.7", "h9", True), ("n1", "h9", False), ("h9", "h9.7", False)]
)
def test_a_node_is_called_after_its_host(node: str, host: str, right: bool) -> None:
    """The leader believes no other host of a node's records."""
    problem = Settings(node=node, host=host, home=Path("/runs/x"), etcd=("127.0.0.1:1",)).malformed()
    assert (problem is None) is right
    assert right or f"--host {host!r}" in str(problem)


def test_an_older_agent_is_given_no_option_that_it_may_not_know() -> None:
    given = Settings(node="n1", home=Path("/runs/x"), etcd=("127.0.0.1:1",)).arguments()
    assert not [option for option in given if option.startswith(("--host", "--security", "--cold"))]
