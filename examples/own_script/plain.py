"""A script that knows no supervisor: it prints a line now and then, and ends."""

from __future__ import annotations

import sys
import time

for step in range(int(sys.argv[1])):
    print(f"step {step}")
    time.sleep(0.2)
