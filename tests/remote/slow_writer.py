"""Writes steps of a run, a little slower than a disk, and says how it ended. Started by tests."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from made_runs import header, record
from vario.sinks.store import Store

store = Store(part_steps=40, small_part_bytes=0)
store.open(header(sys.argv[1]))
for step in range(int(sys.argv[2])):
    store.write(record(step, time=time.time()))
    time.sleep(0.02)
store.close("finished", None)
