"""What stands in the place of programs that import torch, in tests of the control plane."""

TOYS = {
    "trainer": "tests.agents.toy_trainer",
    "warm": "tests.agents.toy_warm",
    "check": "tests.agents.toy_check",
    "check_device": "tests.agents.toy_check_device",
}
"""For the environment variable SUPERVISOR_PROGRAMS."""
