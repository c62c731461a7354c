"""Logs numbers of a run without a model until it is stopped or done. Started by tests with its options in JSON."""

import json
import logging
import sys
import time

import vario

logging.basicConfig(level=logging.INFO)
options = json.loads(sys.argv[1])
seconds = options.pop("seconds")
num_steps = options.pop("num_steps")
run = vario.start(**options)
sys.stdout.write(f"{run.path}\n")
sys.stdout.flush()
for step in range(num_steps):
    run.log(loss=1.0 / (step + 1))
    time.sleep(seconds)
began = time.monotonic()
run.stop()
sys.stdout.write(f"{time.monotonic() - began}\n")
