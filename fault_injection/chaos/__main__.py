"""`python -m fault_injection.chaos ...` is `supervisor chaos ...`: how it starts itself again among network namespaces."""

from __future__ import annotations

from fault_injection.chaos.command import chaos

if __name__ == "__main__":
    chaos()
