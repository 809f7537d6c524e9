"""The stand-ins for programs that import torch, in tests of the control plane."""

TOYS = {
    "trainer": "tests.agents.toy_trainer",
    "warm": "tests.agents.toy_warm",
    "check": "tests.agents.toy_check",
    "check_device": "tests.agents.toy_check_device",
}
"""Values for the environment variable SUPERVISOR_PROGRAMS."""
