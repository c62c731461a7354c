"""Starts a process that ships a run while it is written: it shares no interpreter lock with the training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from vario.core.package import FOLDER as PACKAGE
from vario.remote.shipping.state_file import FOLDER


def start_shipper(run: Path, url: str, rate: str = "") -> subprocess.Popen[bytes]:
    """Start `vario ship RUN URL --follow`, which goes on when this process ends.

    What it says is in `.shipping/<run>.log`.
    """
    folder = run.parent / FOLDER
    os.makedirs(folder, exist_ok=True)
    words = [sys.executable, "-m", "vario", "ship", str(run.absolute()), url, "--follow", "--own-ranks", "--quiet"]
    above = os.path.dirname(os.path.dirname(PACKAGE))
    known = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (above, known)))
    with open(folder / f"{run.name}.log", "ab") as log:
        return subprocess.Popen(
            [*words, *(["--rate", rate] if rate else [])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Python looks for modules where it is started: a script's folder may have one of any name.
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
