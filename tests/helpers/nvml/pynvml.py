"""Takes the place of nvidia-ml-py in an agent that has this folder on its PYTHONPATH: GPUs out of `$FAKE_NVML/NODE.json`. A node
without that file has no GPU."""

import json
import os
import sys
from pathlib import Path

from fault_injection.fake_nvml import FakeNvml

_node = next((a.partition("=")[2] for a in sys.argv if a.startswith("--node=")), "none")
_file = Path(os.environ["FAKE_NVML"]) / f"{_node}.json"
_fake = FakeNvml(lambda: json.loads(_file.read_text()) if _file.exists() else {"init": "LibraryNotFound"})


def __getattr__(name: str) -> object:
    return getattr(_fake, name)
