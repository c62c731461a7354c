"""Finds msprobe's CSV files: folders in a time range, their ranks and their steps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from vario.compat.msprobe.wording import counted
from vario.core.errors import ConfigError
from vario.core.text import unknown

TENSOR_KINDS = (
    "actv",
    "actv_grad",
    "exp_avg",
    "exp_avg_sq",
    "grad_unreduced",
    "grad_reduced",
    "param_origin",
    "param_updated",
    "param",
)
"""Prefixes of CSV files whose rows are tensors; `param` up to msprobe 1.3.0."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_TAG = re.compile(rf"({'|'.join(MONTHS)})(\d\d)_(\d\d)-(\d\d)-(\d\d)")
_FOLDER = re.compile(r"(?P<tag>[\w-]+?)-rank(?P<rank>\d{1,5})-\w+")
_FILE = re.compile(r"(?P<kind>\w+?)_(?P<first>\d+)-(?P<last>\d+)(?:_part_(?P<part>\d+))?\.csv")
_LEAP_YEAR = 2000


@dataclass(frozen=True)
class RankFolder:
    """What one rank wrote in one session of the monitor."""

    path: Path
    rank: int
    started: datetime
    """From the name, which has no year: that comes from the folder's last change."""


@dataclass(frozen=True)
class CsvFile:
    """One CSV file of one rank."""

    path: Path
    kind: str
    first_step: int
    last_step: int
    age: tuple[int, int]
    """The order among the files of its steps: by start of the folder, then by part."""
    num_bytes: int


def find_folders(
    monitor_path: str | os.PathLike[str], time_start: str | None = None, time_end: str | None = None
) -> list[RankFolder]:
    """Return all rank folders started in an inclusive range of time tags (`Dec03_21-34-40`), by rank and start.

    The path may also be one such folder. A range may span New Year. Raises ConfigError if there is none.
    """
    base = Path(monitor_path).expanduser()
    if not base.is_dir():
        raise ConfigError(f"monitor_path: '{monitor_path}' is not a folder")
    is_one = _FOLDER.fullmatch(base.resolve().name) is not None
    entries = [base] if is_one else sorted(base.iterdir())
    chosen = _chosen(entries, time_start, time_end)
    if chosen:
        return chosen
    others = [folder.path.resolve().name for folder in _chosen(entries, None, None)]
    if others:
        begun = f" {time_start} or later" if time_start else ""
        begun += " and" if time_start and time_end else ""
        begun += f" {time_end} or before" if time_end else ""
        more = f" and {counted(len(others) - 5, 'other')}" if len(others) > 5 else ""
        raise ConfigError(
            f"monitor_path: '{monitor_path}' has no folder started{begun}. It has {', '.join(others[:5])}{more}."
        )
    refuse_event_files(base)
    raise ConfigError(f"monitor_path: '{monitor_path}' has no folder `<time>-rank<n>-<id>`")


def refuse_event_files(folder: Path) -> None:
    """Raise ConfigError for a folder with TensorBoard event files of msprobe or of a conversion."""
    for above in ("", "*/", "*/*/", "*/*/*/"):
        if any(folder.glob(f"{above}*.tfevents.*")):
            raise ConfigError(f"monitor_path: '{folder}': contains event files, but import and convert read CSV")


def rank_folders(base: Path, time_start: str | None, time_end: str | None) -> list[tuple[int, Path]]:
    """Return rank and path of all folders in `base` started in that range, by rank and start; may be empty."""
    entries = sorted(base.iterdir()) if base.is_dir() else []
    return [(folder.rank, folder.path) for folder in _chosen(entries, time_start, time_end)]


def _chosen(entries: Iterable[Path], time_start: str | None, time_end: str | None) -> list[RankFolder]:
    start, end = _parse_tag("time_start", time_start), _parse_tag("time_end", time_end)
    # Across New Year the end has the smaller tag; more than half a year of that is a mistake.
    if start and end and end < start and end - start + timedelta(days=366) > timedelta(days=183):
        raise ConfigError(f"time_start: '{time_start}' is after the end, '{time_end}'")
    found = []
    for path in entries:
        match = _FOLDER.fullmatch(path.resolve().name)
        moment = _moment(match["tag"]) if match else None
        if match and moment and path.is_dir() and _is_between(moment, start, end):
            found.append(RankFolder(path, int(match["rank"]), _with_year(moment, path.stat().st_mtime)))
    return sorted(found, key=lambda folder: (folder.rank, folder.started, folder.path.name))


def find_files(folders: Iterable[RankFolder], kinds: Sequence[str] | None = None) -> dict[str, list[CsvFile]]:
    """Return the CSV files of one rank's folders by kind, of some kinds or all; each list by step, then by age."""
    found: dict[str, list[CsvFile]] = {}
    for nth, folder in enumerate(folders):
        for entry in os.scandir(folder.path):
            match = _FILE.fullmatch(entry.name)
            if match and (kinds is None or match["kind"] in kinds):
                file = CsvFile(
                    Path(entry.path),
                    match["kind"],
                    int(match["first"]),
                    int(match["last"]),
                    (nth, int(match["part"] or 0)),
                    entry.stat().st_size,
                )
                found.setdefault(file.kind, []).append(file)
    for files in found.values():
        files.sort(key=lambda file: (file.first_step, file.age))
    return dict(sorted(found.items()))


def kinds_in(folders: Iterable[RankFolder]) -> list[str]:
    """Return the kinds of CSV files in some folders, by name."""
    names = (entry.name for folder in folders for entry in os.scandir(folder.path))
    return sorted({match["kind"] for match in map(_FILE.fullmatch, names) if match})


def checked_kinds(asked: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the kinds of files in `data_type_list`, or all."""
    if not asked:
        return list(known)
    if isinstance(asked, str) or not isinstance(asked, Sequence):
        raise ConfigError(f"data_type_list: expected a list of {', '.join(known)}; got {asked!r}")
    for kind in asked:
        if kind not in known:
            raise ConfigError(unknown("data_type_list", str(kind), known))
    return list(dict.fromkeys(asked))


def checked_number(field: str, value: object) -> int:
    """Return a whole number of at least 1, or raise ConfigError with the field."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{field}: expected a whole number of at least 1, got {value!r}")
    return value


def _parse_tag(field: str, text: str | None) -> datetime | None:
    moment = _moment(text) if isinstance(text, str) else None
    if text is not None and moment is None:
        raise ConfigError(f"{field}: expected a time like Dec03_21-34-40, got {text!r}")
    return moment


def _moment(tag: str) -> datetime | None:
    """The moment in a leap year, where every tag has its place; None for anything else."""
    match = _TAG.fullmatch(tag)
    if match is None:
        return None
    month, *numbers = match.groups()
    day, hour, minute, second = map(int, numbers)
    try:
        return datetime(_LEAP_YEAR, MONTHS.index(month) + 1, day, hour, minute, second)
    except ValueError:
        return None


def _is_between(moment: datetime, start: datetime | None, end: datetime | None) -> bool:
    if start and end and start > end:
        return moment >= start or moment <= end
    return (start is None or moment >= start) and (end is None or moment <= end)


def _with_year(moment: datetime, changed: float) -> datetime:
    """The moment in the newest year in which it exists and is not after the folder's last change.

    A day is granted for clocks of other time zones.
    """
    latest = datetime.fromtimestamp(changed) + timedelta(days=1)
    for year in range(latest.year, latest.year - 9, -1):
        try:
            dated = moment.replace(year=year)
        except ValueError:
            continue  # 29 February
        if dated <= latest:
            return dated
    return moment
