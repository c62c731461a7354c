"""Reading what a TrainerMon wrote, as its users do."""

import csv
import re
from pathlib import Path

FOLDER = re.compile(r"[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}-rank(\d+)-[0-9a-f]{8}")


def rank_folder(out, rank=0):
    """The one folder of a rank."""
    found = [path for path in Path(out).iterdir() if (match := FOLDER.fullmatch(path.name)) and match[1] == str(rank)]
    assert len(found) == 1, found
    return found[0]


def read_csv(path):
    """Header and rows of one file."""
    with Path(path).open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def files(out, rank=0):
    """All CSV files of a rank: name to (header, rows)."""
    return {path.name: read_csv(path) for path in sorted(rank_folder(out, rank).glob("*.csv"))}


def rows(out, prefix, rank=0):
    """All rows of one kind over all steps, as dicts."""
    found = []
    for path in rank_folder(out, rank).glob(f"{prefix}_*.csv"):
        if re.fullmatch(rf"{prefix}_\d+-\d+\.csv", path.name):
            header, lines = read_csv(path)
            found += [dict(zip(header, line, strict=True)) for line in lines]
    return sorted(found, key=lambda row: int(row["step"]))


def steps(out, prefix, rank=0):
    """The steps that have rows of one kind."""
    return sorted({int(row["step"]) for row in rows(out, prefix, rank)})
