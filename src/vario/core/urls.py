"""Places that are named by a URL, such as `s3://bucket/runs`."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from vario.core.errors import ConfigError
from vario.core.masking import masked

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.*", re.DOTALL)


def is_url(place: object) -> bool:
    """Whether a text names a place elsewhere, and not a folder of this machine."""
    return isinstance(place, str) and _URL.fullmatch(place) is not None


def scheme_of(url: str) -> str:
    """Return `s3` for `s3://bucket/runs`."""
    return url.partition("://")[0]


def checked_url(url: str) -> str:
    """Return a URL without slashes at its end; raises ConfigError for one that cannot be used."""
    shown = masked(url)
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from None
    if password is not None:
        raise ConfigError(
            f"{shown}: a password in a URL would be stored with every run. Use an SSH key, or the files and variables "
            "in which the service looks for credentials. See docs/remote.md."
        )
    if not parts.netloc and parts.scheme != "file":
        raise ConfigError(f"{shown}: expected something like {parts.scheme}://NAME/FOLDER")
    if "\0" in url or any(name in (".", "..") for name in parts.path.split("/")):
        raise ConfigError(f"{shown}: has '.' or '..' in its path")
    return url.rstrip("/")


def below(url: str, name: str) -> str:
    """Return the URL of something in a place."""
    return f"{url.rstrip('/')}/{name}"


def last_name(url: str) -> str:
    """Return the last name in a URL: of `s3://bucket/runs` that is `runs`."""
    return os.path.basename(url.rstrip("/")) or "runs"
