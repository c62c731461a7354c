"""This package: its version, the folder it lies in, and the versions of what it builds on.

Nothing here asks for installed metadata first: a copy on PYTHONPATH has none, and conda or system packages may lack it.
"""

from __future__ import annotations

import os
import sys

from vario.core.errors import UnsupportedRelease

VERSION = "0.1.0"
"""The one place where the version stands; the wheel takes it from here."""

FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""Where this package lies, as its code objects name it; decides which frames of a stack are ours."""


def is_own_file(filename: str) -> bool:
    """Whether a file belongs to this package, whatever the folders above it are called."""
    return filename.startswith(FOLDER)


def versions() -> dict[str, str]:
    """Versions of Python, vario, numpy and pyarrow; a package whose version cannot be found is left out."""
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
        # Metadata that is there but damaged gives None.
        return version(name) or None
    except (PackageNotFoundError, KeyError):
        return None


def release_of(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version such as `2.6.0a0+ecf3bae.nv25.01`; None where it does not begin so."""
    import re  # not at the top: `import vario` is to stay quick

    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def refuse_older(package: str, version: str, oldest: tuple[int, int], what: str) -> None:
    """Raise for a release that is too old for `what`. A version that cannot be read is let through."""
    release = release_of(version)
    if release is not None and release < oldest:
        needed = ".".join(map(str, oldest))
        raise UnsupportedRelease(
            f"{what} needs {package} {needed} or newer, and this is {package} {version}. "
            f"Upgrade with: pip install --upgrade '{package}>={needed}'"
        )
