"""A stand-in for nvidia-ml-py in an agent that has this folder on its PYTHONPATH: its GPUs are
fault_injection/doubles/gpus.py's."""

import sys

from fault_injection.doubles import gpus

gpus.stand_in(sys.argv)  # another module is in our place from here on
