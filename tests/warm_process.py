"""Runs programs in copies of one process that has imported torch already, which takes a fraction of a fresh start.

Read one line of JSON per program (`words` as after `python`, and the `folder` to run in), answer with its exit code.
"""

import json
import os
import runpy
import sys
from pathlib import Path


def run_copy(words, folder):
    """Run in a fork; its output goes to files in the folder."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.chdir(folder)
        for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), number)
        # Buffered anew: this process may have written to the old ones.
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
        code = _run(words)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _run(words):
    try:
        sys.argv = list(words)
        if words[0] == "-m":
            from vario.cli import main

            sys.argv[:2] = ["vario"]
            return main(list(words[2:])) or 0
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
        return 0
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - what the interpreter does with one that nobody caught
        sys.excepthook(*sys.exc_info())
        return 1


if __name__ == "__main__":
    import torch
    import torch._dynamo  # what the first optimizer of a process imports

    import vario.cli
    import vario.training.launch
    import vario.training.monitor  # noqa: F401 - what every program would import again

    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = run_copy(asked["words"], asked["folder"])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
