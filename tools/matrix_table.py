"""Write the results of `make matrix` into docs/versions.md: a table by file and release, and why tests were skipped.

    python tools/matrix_table.py .matrix-2.6.0-4.57.6/results.xml .matrix-2.8.0-4.57.6/results.xml ...

The folder's name contains the release of torch and transformers. A later report of a release replaces an earlier one's
results for the same file.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).parents[1] / "docs" / "versions.md"
BEGIN, END = "<!-- results of make matrix -->", "<!-- end of results -->"
NO_GPU = "needs a CUDA device"
OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}

Outcome = tuple[str, str]
"""passed, failed or skipped, and for what reason."""
Release = dict[str, list[Outcome]]
"""The outcomes of each file's tests."""


def outcomes(report: Path) -> Iterator[tuple[str, Outcome]]:
    """Each test of a report: its file and what came of it."""
    for test in ElementTree.parse(report).iter("testcase"):
        parts = (test.get("classname") or test.get("name") or "").split(".")
        file = next((place for place, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
        name = "/".join(parts[1 : file + 1]) + ".py"
        unusual = next((child for child in test if child.tag in OUTCOMES), None)
        if unusual is None:
            yield name, ("passed", "")
        else:
            yield name, (OUTCOMES[unusual.tag], " ".join((unusual.get("message") or "").split()))


def read(reports: list[Path]) -> dict[str, Release]:
    """The outcomes by release and file."""
    releases: dict[str, Release] = {}
    for report in reports:
        torch, transformers = report.parent.name.removeprefix(".matrix-").split("-")
        found: Release = {}
        for name, outcome in outcomes(report):
            found.setdefault(name, []).append(outcome)
        releases.setdefault(f"torch {torch}, transformers {transformers}", {}).update(found)
    return releases


def cell(tests: list[Outcome] | None) -> str:
    """Return the cell for one file's tests on one release."""
    if tests is None:
        return "not run"
    counts = Counter(outcome for outcome, _ in tests)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome])


def text(releases: dict[str, Release]) -> str:
    """The table, and the reasons below it."""
    names = sorted({name for release in releases.values() for name in release})
    rows = [["tests", *releases], ["---"] * (len(releases) + 1)]
    rows += [[f"`{name}`", *(cell(release.get(name)) for release in releases.values())] for name in names]
    everything = [[test for tests in release.values() for test in tests] for release in releases.values()]
    rows.append(["all", *map(cell, everything)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", "Skipped, beside the tests that need a GPU:", ""]
    reasons: dict[str, list[str]] = {}
    for title, tests in zip(releases, everything, strict=True):
        counts = Counter(reason for outcome, reason in tests if outcome == "skipped" and NO_GPU not in reason)
        for reason, count in counts.items():
            reasons.setdefault(reason, []).append(f"{count} on {title.split(',')[0]}")
    return "\n".join([*lines, *(f"- {reason}: {', '.join(where)}" for reason, where in sorted(reasons.items()))])


def main() -> None:
    """Read the reports and replace the text between the marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text(read(parser.parse_args().reports))}\n\n{END}{after}")


if __name__ == "__main__":
    main()
