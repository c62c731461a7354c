"""Shared code of the conversions of msprobe's CSV files: output folder, progress and remarks."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vario.compat.msprobe.csv_folders import RankFolder, kinds_in, refuse_event_files
from vario.compat.msprobe.output import time_tag
from vario.compat.msprobe.wording import continued, counted
from vario.core.errors import ConfigError

log = logging.getLogger("vario")


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion."""

    output: Path
    """The folder or file it wrote."""
    ranks: list[int]
    num_rows: int
    """Rows of CSV that were converted."""
    remarks: list[str]
    """What was skipped, and why."""

    @property
    def line(self) -> str:
        """The result in one line."""
        return f"{self.output}  {counted(self.num_rows, 'row')}, {counted(len(self.ranks), 'rank')}"


def check_found(files: Sequence[object], folders: Sequence[RankFolder], kinds: Sequence[str] | None = None) -> None:
    """Raise ConfigError if there are no files."""
    if files:
        return
    present = kinds_in(folders)
    if not present:
        for folder in folders:
            refuse_event_files(folder.path)
    who = f"'{folders[0].path}' has"
    if len(folders) > 1:
        who = f"'{folders[0].path}' and {counted(len(folders) - 1, 'further folder')} have"
    types = f" of these types: {', '.join(kinds)}" if kinds else ""
    others = f"; there are {', '.join(present)}" if present else ""
    raise ConfigError(f"monitor_path: {who} no file `<type>_<step>-<step>.csv`{types}{others}")


def remarks_before(
    folders: Sequence[RankFolder], asked: Sequence[str] | None, converted: Sequence[str]
) -> Iterator[str]:
    """Yield remarks before a conversion: which folders are combined, and which kinds are not converted."""
    yield from continued(folders)
    left_out = [] if asked else [kind for kind in kinds_in(folders) if kind not in converted]
    if left_out:
        yield f"not converted: the files of {', '.join(left_out)}; `vario import` reads them"


def output_folder(
    monitor_path: str | os.PathLike[str], output_dirpath: str | os.PathLike[str] | None, what: str
) -> Path:
    """Return the output folder: the given one, or one named after the current time."""
    if output_dirpath is not None:
        return Path(output_dirpath).expanduser()
    return Path(monitor_path).expanduser() / f"{time_tag(time.time())}-{what}"


def is_free(path: Path) -> bool:
    """Whether a folder can be created there: nothing exists, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def watched(work: Iterable[str | tuple[int, int]], total_bytes: int) -> tuple[list[str], int]:
    """Run the conversion, with a progress bar on a terminal; returns its remarks, which are logged, and the number of
    rows."""
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
