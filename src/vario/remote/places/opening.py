"""Opens the place that a URL or a folder names."""

from __future__ import annotations

import os
from pathlib import Path

from vario.core.urls import checked_url, is_url, scheme_of
from vario.remote.places import Place
from vario.remote.places.local import Folder


def open_place(where: str | os.PathLike[str]) -> Place:
    """Open a place; nothing is asked of it yet."""
    if not isinstance(where, str) or not is_url(where):
        return Folder(Path(where))
    url = checked_url(where)
    scheme = scheme_of(url)
    if scheme in ("file", "local"):
        return Folder(Path(url.partition("://")[2] or "/"))
    if scheme in ("sftp", "ssh"):
        from vario.remote.places.sftp import Sftp

        return Sftp(url)
    from vario.remote.places.objects import Objects

    return Objects(url)
