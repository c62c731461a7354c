"""What the conversions of msprobe's CSV files have in common: where they write, how far they are, what they say."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vario.compat.msprobe.csv_folders import RankFolder
from vario.compat.msprobe.output import time_tag
from vario.errors import ConfigError

log = logging.getLogger("vario")


@dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    output: Path
    """The folder or file it wrote."""
    ranks: list[int]
    num_rows: int
    """Rows of CSV that were converted."""
    remarks: list[str]
    """What was left out, and why."""


def check_found(files: Sequence[object], folders: Sequence[RankFolder], kinds: Sequence[str]) -> None:
    """Refuse to make something of nothing."""
    if not files:
        raise ConfigError(
            f"monitor_path: '{folders[0].path}' and {len(folders) - 1} further folders have no file "
            f"`<type>_<step>-<step>.csv` of these types: {', '.join(kinds)}"
        )


def output_folder(
    monitor_path: str | os.PathLike[str], output_dirpath: str | os.PathLike[str] | None, what: str
) -> Path:
    """Where the output goes: as asked, or into a folder of the time it is now."""
    if output_dirpath is not None:
        return Path(output_dirpath).expanduser()
    return Path(monitor_path).expanduser() / f"{time_tag(time.time())}-{what}"


def empty_folder(path: Path) -> None:
    """Make a folder; one that holds something is refused."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"output_dirpath: '{path}' exists and is not empty. Name a new folder, or empty that one.")
    path.mkdir(parents=True, exist_ok=True)


def watched(work: Iterable[str | tuple[int, int]], total_bytes: int) -> tuple[list[str], int]:
    """Do the work, with a bar where a person looks on; its remarks, each logged, and the number of rows."""
    from rich.console import Console
    from rich.progress import Progress

    remarks: list[str] = []
    num_rows = 0
    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("converting", total=total_bytes)
        for item in work:
            if isinstance(item, str):
                remarks.append(item)
                log.warning("%s", item)
            else:
                progress.update(bar, advance=item[0])
                num_rows += item[1]
    return remarks, num_rows
