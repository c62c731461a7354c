"""What a command prints in a terminal, as an SVG picture."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"


def save(name: str, command: str, printed: RenderableType) -> None:
    """Draw docs/images/NAME.svg: a prompt with the command, and what it prints."""
    console = Console(record=True, width=102, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(f"[bold green]$[/] {command}", highlight=False)
    console.print(printed)
    # No font from elsewhere, and a fixed id, so that drawing the same thing again changes nothing.
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", FONTS)
    IMAGES.mkdir(parents=True, exist_ok=True)
    unique = "vario" if name == "demo" else name
    console.save_svg(str(IMAGES / f"{name}.svg"), title="vario", code_format=form, unique_id=unique)
