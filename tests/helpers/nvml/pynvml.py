"""Takes the place of nvidia-ml-py in an agent that has this folder on its PYTHONPATH: GPUs as fault_injection/doubles/gpus.py has them."""

import sys

from fault_injection.doubles import gpus

gpus.stand_in(sys.argv)  # another module is in our place from here on
