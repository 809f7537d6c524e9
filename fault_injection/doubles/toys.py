"""Names the stand-ins for programs that import torch, with which the control plane is tried alone."""

TOYS = {
    "trainer": "fault_injection.doubles.toy_trainer",
    "warm": "fault_injection.doubles.toy_warm",
    "check": "fault_injection.doubles.toy_check",
    "check_device": "fault_injection.doubles.toy_check_device",
}
"""Values for the environment variable SUPERVISOR_PROGRAMS."""

WARM_TORCH = "TOY_TORCHFT"
"""Environment variable: the toys' warm processes import TorchFT, for toys that step in a real quorum."""
