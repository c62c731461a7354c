"""The state of the code: git's commit, and what was changed since."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from vario.core.masking import masked

SECONDS = 10.0
"""How long one call of git may take."""
MOST_BYTES = 1 << 20
"""The most of a diff that is kept."""
MOST_UNTRACKED = 100
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def script_folder() -> str:
    """Return the folder of the script that runs; without one, the working directory."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else os.getcwd()


@functools.cache
def read_code(folder: str) -> tuple[dict[str, Any], str]:
    """Return commit, branch and changed files of the repository around a folder, and the diff; empty without one.

    Once per process: what is imported does not change after that.
    """
    commit = _git(folder, "rev-parse", "HEAD").strip()
    if not commit:
        return {}, ""
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color")
    names = _git(folder, "status", "--porcelain", "--untracked-files=normal").splitlines()
    found = {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD").strip(),
        "remote": masked(_git(folder, "config", "--get", "remote.origin.url").strip()),
        "subject": _git(folder, "log", "-1", "--format=%s").strip()[:200],
        "root": _git(folder, "rev-parse", "--show-toplevel").strip(),
        "changed": [name[3:] for name in names if not name.startswith("??")][:MOST_UNTRACKED],
        "untracked": [name[3:] for name in names if name.startswith("??")][:MOST_UNTRACKED],
        "diff_is_cut": len(diff) >= MOST_BYTES,
    }
    return found, masked(diff)


def _git(folder: str, *words: str) -> str:
    """What git prints, cut; empty if it fails, takes too long or is not there."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            ["git", *_SAFE, "-C", folder, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=Path("/"),
        )
    except OSError:
        return ""
    late = threading.Timer(SECONDS, process.kill)
    late.daemon = True
    late.start()
    assert process.stdout is not None
    try:
        with process.stdout:
            told = process.stdout.read(MOST_BYTES)
        if len(told) == MOST_BYTES:
            process.kill()
        code = process.wait()
    finally:
        late.cancel()
    return told.decode("utf8", "replace") if code == 0 or len(told) == MOST_BYTES else ""
