"""What the machine does while a training runs: CPU, memory, disk, network and GPUs.

A reading is a few numbers by name. `system` reads the host and the process, with psutil or from /proc, `gpus` the GPUs
with nvidia-ml-py. Neither package is required. `readings` turns totals into rates and gathers what is read between two
records; `Machine` does all of it for one process. Nothing here has a thread or a clock of its own.
"""

from __future__ import annotations
