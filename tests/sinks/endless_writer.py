"""Writes steps until it is killed, saying after each that the store has it. Started by test_store_kill.py."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from made_runs import header, record, small_parts

store = small_parts()
store.open(header(sys.argv[1], resume=True))
step = store.first_step
while True:
    store.write(record(step))
    os.write(1, f"{step}\n".encode())
    step += 1
