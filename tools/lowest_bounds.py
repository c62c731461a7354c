"""Print the oldest release of each package that pyproject.toml allows, in pip's format: `numpy==1.24`.

python tools/lowest_bounds.py torch transformers    # without these extras
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib  # novermin
else:
    import tomli as tomllib

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BOUND = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9][0-9.]*)\s*(;.*)?")


def lowest(project: dict[str, Any], without: set[str]) -> list[str]:
    """Return a requirement at the lower bound of each dependency and extra; raises if one has no lower bound."""
    extras = project["optional-dependencies"]
    if unknown := without - extras.keys():
        raise SystemExit(f"no such extra: {', '.join(sorted(unknown))}")
    wanted = [*project["dependencies"], *(one for name in sorted(extras.keys() - without) for one in extras[name])]
    found = []
    for requirement in wanted:
        match = BOUND.fullmatch(requirement)
        if match is None:
            raise SystemExit(f"pyproject.toml: '{requirement}' has no lower bound that can be tested")
        found.append(f"{match[1]}=={match[2]}{match[3] or ''}")
    return found


if __name__ == "__main__":
    lines = lowest(tomllib.loads(PROJECT.read_text())["project"], set(sys.argv[1:]))
    sys.stdout.write("\n".join(lines) + "\n")
