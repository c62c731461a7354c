"""Check what vario is built and tested with for known vulnerabilities: pip-audit over the pinned requirements, npm
audit over the frontend's lock file.

    python tools/audit.py .audit/bin/pip-audit

Exit code: 0 if none is known, 1 if some are, 3 if an advisory service could not be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOUND, NOT_ASKED = 1, 3
SECONDS = 300


def main(pip_audit: str) -> int:
    """Run both, print the results and return the exit code."""
    files = sorted(path.name for path in ROOT.glob("requirements*.txt"))
    outcomes = [audit_python(pip_audit, files), audit_page()]
    return max(outcomes, key=[0, NOT_ASKED, FOUND].index)


def audit_python(pip_audit: str, files: list[str]) -> int:
    """Check the pinned Python packages against the Open Source Vulnerabilities database."""
    listed = [word for name in files for word in ("-r", name)]
    options = [
        "--no-deps",
        "--disable-pip",
        "--vulnerability-service",
        "osv",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    answer = _json_of([pip_audit, *options, *listed], ROOT)
    packages = answer.get("dependencies")
    if packages is None:
        return _say(NOT_ASKED, "Python packages", "the advisory service (osv.dev) did not respond")
    found = [f"{one['name']} {one['version']}: {hole['id']}" for one in packages for hole in one.get("vulns", ())]
    return _say(
        FOUND if found else 0, f"{len(packages)} pinned Python packages", "; ".join(found) or "no known vulnerabilities"
    )


def audit_page() -> int:
    """Check the frontend's packages with the configured npm registry."""
    answer = _json_of(["npm", "audit", "--json"], ROOT / "frontend")
    counts = answer.get("metadata", {}).get("vulnerabilities")
    if counts is None:
        return _say(NOT_ASKED, "frontend packages", "the npm registry returned no advisories")
    found = [f"{name} ({hole['severity']})" for name, hole in answer.get("vulnerabilities", {}).items()]
    return _say(FOUND if found else 0, "frontend packages", "; ".join(found) or "no known vulnerabilities")


def _json_of(command: list[str], folder: Path) -> dict[str, object] | dict[str, dict[str, object]]:
    """The JSON that a command prints; None if it prints something else, hangs or does not exist."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _say(code: int, what: str, outcome: str) -> int:
    sys.stdout.write(f"{what}: {'not checked: ' if code == NOT_ASKED else ''}{outcome}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
