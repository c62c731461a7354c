"""Opens the place that a URL or a folder names."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from vario.core.errors import MissingExtra
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


def check_packages(url: str) -> None:
    """Raise MissingExtra if what a place needs is not installed; imports nothing of it."""
    scheme = scheme_of(url)
    needs = {"sftp": "paramiko", "ssh": "paramiko", "s3": "s3fs", "s3a": "s3fs", "file": "os", "local": "os"}
    if importlib.util.find_spec(needs.get(scheme, "fsspec")) is None:
        raise MissingExtra(f"{scheme}://", "remote")
