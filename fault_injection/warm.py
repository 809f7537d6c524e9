"""`python -m fault_injection.warm --fd N`: titan_actor's warm process, whose trainers do as they are ordered (causes.py)."""

from __future__ import annotations

from fault_injection.trainer import obey
from titan_actor import warm

if __name__ == "__main__":
    obey()
    warm.main()
