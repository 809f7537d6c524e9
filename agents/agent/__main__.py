"""`python -m agents.agent`."""

from __future__ import annotations

import sys

from agents.agent.main import main

sys.exit(main())
