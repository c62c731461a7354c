"""This package: its version, its folder, and the versions of its dependencies.

Installed metadata is only a fallback: a copy on PYTHONPATH has none, and conda or system packages may lack it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from vario.core.errors import UnsupportedRelease

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.1.0"
"""The version; the wheel takes it from here."""

FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""This package's folder, as in its code objects; decides which stack frames are ours."""


def is_own_file(filename: str) -> bool:
    """Whether a file belongs to this package, whatever the names of its parent folders."""
    return filename.startswith(FOLDER)


def docs_folder() -> Path:
    """Return the folder of the documentation: of the installed package, or of the checkout."""
    from pathlib import Path  # not at the top, to keep `import vario` fast

    package = Path(FOLDER)
    installed = package / "demo_text"
    return installed if installed.is_dir() else package.parents[1] / "docs"


def read_docs(name: str) -> str:
    """Return the text of a page of the documentation; empty if it is not installed."""
    path = docs_folder() / name
    return path.read_text(encoding="utf8") if path.is_file() else ""


def versions() -> dict[str, str]:
    """Return the versions of Python, vario, numpy and pyarrow; skips a package whose version is unknown."""
    found = {"python": sys.version.split()[0], "vario": VERSION}
    for name in ("numpy", "pyarrow"):
        if version := _version_of(name):
            found[name] = version
    return found


def _version_of(name: str) -> str | None:
    loaded = getattr(sys.modules.get(name), "__version__", None)
    if loaded is not None:
        return str(loaded)
    from importlib.metadata import PackageNotFoundError, version

    try:
        # Damaged metadata gives None.
        return version(name) or None
    except (PackageNotFoundError, KeyError):
        return None


def release_of(version: str) -> tuple[int, int] | None:
    """Return major and minor number of a version such as `2.6.0a0+ecf3bae.nv25.01`; None if it has no such prefix."""
    import re  # not at the top, to keep `import vario` fast

    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def refuse_older(package: str, version: str, oldest: tuple[int, int], what: str) -> None:
    """Raise if a release is too old for `what`. A version that cannot be parsed passes."""
    release = release_of(version)
    if release is not None and release < oldest:
        needed = ".".join(map(str, oldest))
        raise UnsupportedRelease(
            f"{what} needs {package} {needed} or newer; this is {package} {version}. "
            f"Upgrade with: pip install --upgrade '{package}>={needed}'"
        )
