"""Read what a run was started from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vario.core.run_files import read_bytes
from vario.core.run_files.shapes import Each, Maybe, check_shape, read_json
from vario.core.run_format import DIFF, ORIGIN, OUTPUT
from vario.core.text import shown

MOST_BYTES = 2 << 20
"""The most of a diff or of what was printed; a writer keeps less."""
MOST_ENTRIES = 5000
CODE: dict[str, Any] = {
    **{key: Maybe(str) for key in ("commit", "branch", "remote", "subject", "root")},
    **{key: Maybe([str]) for key in ("changed", "untracked")},
    "diff_is_cut": Maybe(bool),
}
SHAPE: dict[str, Any] = {
    "command": Maybe([str]),
    "executable": Maybe(str),
    "directory": Maybe(str),
    "code": Maybe(CODE),
    "environment": Maybe(Each(str)),
    "seeds": Maybe({}),
    "packages": Maybe(Each(str)),
}


@dataclass(frozen=True)
class Origin:
    """What a run was started from; what is unknown is empty."""

    command: list[str] = field(default_factory=list)
    executable: str = ""
    directory: str = ""
    commit: str = ""
    branch: str = ""
    remote: str = ""
    subject: str = ""
    """The first line of the commit's message."""
    changed: list[str] = field(default_factory=list)
    """Files that differed from the commit."""
    untracked: list[str] = field(default_factory=list)
    diff_is_cut: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that matter to a training, without secrets."""
    seeds: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str]:
        """What is known of it: code, process, environment, packages."""
        known = {"code": self.commit, "process": self.directory, "packages": self.packages}
        known["environment"] = self.environment or self.seeds
        return frozenset(kind for kind, value in known.items() if value)

    def settings(self, kinds: Collection[str]) -> dict[str, Any]:
        """Return what two runs are compared by, by name, of these kinds."""
        found: dict[str, Any] = {}
        if "code" in kinds:
            found |= {"commit": self.commit, "branch": self.branch, "changed files": ", ".join(self.changed) or None}
        if "process" in kinds:
            found |= {"directory": self.directory, "executable": self.executable}
        if "environment" in kinds:
            found |= {f"seed of {name}": value for name, value in self.seeds.items()}
            found |= {f"variable {name}": value for name, value in self.environment.items()}
        if "packages" in kinds:
            found |= {f"package {name}": version for name, version in self.packages.items()}
        return found


def read_origin(path: Path, ranks: Sequence[int]) -> Origin:
    """Read what is known; empty for a run of an older version, or one that was told to keep nothing."""
    for rank in ranks:
        found = read_json(path / f"rank{rank}" / ORIGIN, 2)
        if found is not None:
            check_shape(path / f"rank{rank}" / ORIGIN, found, SHAPE)
            return _origin(found)
    return Origin()


def _origin(found: Mapping[str, Any]) -> Origin:
    code = found.get("code") or {}
    return Origin(
        command=list(found.get("command") or [])[:MOST_ENTRIES],
        executable=str(found.get("executable") or ""),
        directory=str(found.get("directory") or ""),
        commit=str(code.get("commit") or ""),
        branch=str(code.get("branch") or ""),
        remote=str(code.get("remote") or ""),
        subject=str(code.get("subject") or ""),
        changed=list(code.get("changed") or [])[:MOST_ENTRIES],
        untracked=list(code.get("untracked") or [])[:MOST_ENTRIES],
        diff_is_cut=bool(code.get("diff_is_cut")),
        environment=dict(list((found.get("environment") or {}).items())[:MOST_ENTRIES]),
        packages=dict(list((found.get("packages") or {}).items())[:MOST_ENTRIES]),
        seeds={name: value for name, value in (found.get("seeds") or {}).items() if isinstance(value, (int, str))},
    )


def read_diff(path: Path, ranks: Sequence[int]) -> str:
    """Return the changes since the commit, as git prints them; empty if there were none."""
    return _text(path, ranks, DIFF)


def read_output(path: Path, ranks: Sequence[int]) -> str:
    """Return what the script printed, its first and its last lines; control characters are escaped."""
    return shown(re.sub(r"\x1b\[[0-9;]*m", "", _text(path, ranks, OUTPUT)))


def _text(path: Path, ranks: Sequence[int], name: str) -> str:
    for rank in ranks:
        try:
            found = read_bytes(path / f"rank{rank}" / name, 2, MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return found.decode("utf8", "replace").rstrip("\n") + "\n"
    return ""
