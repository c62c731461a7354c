"""A process that records runs, one after another: jobs come as lines of JSON, and each is answered with a line.

With RANK and WORLD_SIZE set it is one rank of a group that is made once and serves many runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from zoo.record import record_here


def main() -> None:
    # What a run prints must not come between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    for line in sys.stdin:
        content = json.loads(line)
        began = time.perf_counter()
        try:
            record_here(content, rank, Path(content["runs"]))
            if ranks > 1:
                dist.barrier()
            answer: dict[str, object] = {"seconds": time.perf_counter() - began}
        except Exception:  # noqa: BLE001 - one run that fails must not end the recorder
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
