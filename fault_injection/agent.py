"""`python -m fault_injection.agent ...`: a node's agent, whose GPUs are what `$FAKE_NVML/NODE.json` says (gpus.py)."""

from __future__ import annotations

import sys

from fault_injection import gpus

if __name__ == "__main__":
    gpus.stand_in(sys.argv)
    from agents import agent

    sys.exit(agent.main())
