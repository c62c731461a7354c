"""Draw docs/images/demo.svg: what `vario report` prints about a run of `vario demo`.

Run `vario demo`, then `python tools/make_picture.py [RUN]` in the same folder.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

import vario
from vario.reports.summary import summarise
from vario.reports.summary_text import render

FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"


def main() -> None:
    """Draw the run named on the command line, or the newest one."""
    run = vario.open_run(sys.argv[1] if len(sys.argv) > 1 else "vario_runs")
    console = Console(record=True, width=102, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print("[bold green]$[/] vario report")
    console.print(render(summarise(run)))
    # No font from elsewhere, and a fixed id, so that drawing the same run again changes nothing.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", FONTS)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(PICTURE), title="vario", code_format=form, unique_id="vario")


if __name__ == "__main__":
    main()
