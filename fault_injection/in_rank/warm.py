"""`python -m fault_injection.in_rank.warm --fd N`: titan_actor's warm process, whose trainers follow orders (causes.py)."""

from __future__ import annotations

from fault_injection.in_rank.trainer import obey
from titan_actor import mends, warm

if __name__ == "__main__":
    if not mends.ask_aside_for_cuda():
        obey()
    warm.main()
