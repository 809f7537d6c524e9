"""`python -m fault_injection.chaos ...`: `supervisor chaos ...`, which restarts itself so in network namespaces."""

from __future__ import annotations

from fault_injection.chaos.command import chaos

if __name__ == "__main__":
    chaos()
