"""`python -m fault_injection.doubles.agent ...`: a node's agent with fake GPUs (gpus.py) and a clock that can be moved
(clocks.py)."""

from __future__ import annotations

import sys

from fault_injection.doubles import clocks, gpus

if __name__ == "__main__":
    clocks.follow(sys.argv)
    gpus.stand_in(sys.argv)
    from agents.agent import main

    sys.exit(main.main())
