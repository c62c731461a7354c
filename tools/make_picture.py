"""Draw docs/images/demo.svg: what `vario report` prints about a run of `vario demo`.

Run `vario demo`, then `python tools/make_picture.py [RUN]` in the same folder.
"""

from __future__ import annotations

import sys

import terminal_picture

import vario
from vario.reports.summary import summarise
from vario.reports.summary_text import render


def main() -> None:
    """Draw the run named on the command line, or the latest run."""
    run = vario.open_run(sys.argv[1] if len(sys.argv) > 1 else "vario_runs")
    terminal_picture.save("demo", "vario report", render(summarise(run)))


if __name__ == "__main__":
    main()
