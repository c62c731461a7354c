"""Watches every program of `programs/`; with `--write PAGE` the results become a page of the documentation."""

import sys
import tempfile
from pathlib import Path

from driver import programs, watch_program

if __name__ == "__main__":
    wanted = sys.argv[1:]
    for kind in ("loops", "packages"):
        for path in programs(kind):
            if wanted and path.stem not in wanted:
                continue
            with tempfile.TemporaryDirectory() as folder:
                outcome = watch_program(path, Path(folder))
            print(
                f"{outcome.name:24} runs {outcome.runs} steps {outcome.steps}/{outcome.expected_steps} "
                f"loss {outcome.loss} {outcome.plain_seconds:.1f}s {outcome.watched_seconds:.1f}s",
                flush=True,
            )
            for problem in outcome.problems:
                print("    ", problem[:300], flush=True)
