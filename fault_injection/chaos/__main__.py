"""`python -m fault_injection.chaos ...`: the same as `supervisor chaos ...`, which starts itself again this way in
network namespaces."""

from __future__ import annotations

from fault_injection.chaos.command import chaos

if __name__ == "__main__":
    chaos()
