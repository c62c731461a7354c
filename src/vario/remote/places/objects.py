"""Object stores and anything else that fsspec reads: `s3://`, `gs://`, `az://`, `hf://`, ..."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from vario.core.errors import ConfigError, MissingExtra
from vario.core.text import suggestion
from vario.core.urls import scheme_of
from vario.remote.places import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    MOST_DEPTH,
    MOST_FILES,
    MOST_NAMES,
    Entry,
    check_count,
    is_safe,
    told,
)

log = logging.getLogger("vario")

PACKAGES = {
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    "hf": "huggingface_hub",
    "oci": "ocifs",
    "oss": "ossfs",
}
"""What fsspec wants for a scheme, where its message does not end with it."""
_TAGS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "sha256", "LastModified", "last_modified", "mtime")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


class Objects:
    """A prefix in an object store. Objects are replaced whole."""

    can_append = False
    num_parallel = 8

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, self._root = _opened(url)
        self._root = self._root.rstrip("/")
        # Only such file systems take a limit for each call.
        self._limit = {"timeout": ANSWER_SECONDS} if getattr(self._files, "async_impl", False) else {}

    def listed(self, folder: str, most: int = MOST_NAMES) -> dict[str, Entry]:
        """Return what is directly in a folder."""
        return self._entries(folder, "/", most)

    def tree(self, folder: str, most: int = MOST_FILES) -> dict[str, Entry]:
        """Return the files below a folder."""
        found = self._entries(folder, "", most)
        return {name: entry for name, entry in found.items() if not entry.is_folder and name.count("/") < MOST_DEPTH}

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a range of bytes."""
        if end is not None and end <= start:
            return b""
        whole = {} if not start and end is None else {"start": start, "end": end}
        with told(self.url):
            return bytes(self._files.cat_file(self._path(name), **whole, **self._limit))

    def write(self, name: str, content: bytes) -> None:
        """Replace an object."""
        with told(self.url):
            self._files.pipe_file(self._path(name), content, **self._limit)

    def append(self, name: str, at: int, content: bytes) -> None:
        """Not offered: objects do not grow."""
        raise NotImplementedError

    def rename(self, name: str, new: str) -> None:
        """Not offered: objects are replaced at once."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Delete an object."""
        try:
            with told(self.url):
                self._files.rm_file(self._path(name), **self._limit)
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Do nothing: connections are shared and closed by fsspec."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _entries(self, folder: str, delimiter: str, most: int) -> dict[str, Entry]:
        path = self._path(folder)
        with told(self.url):
            try:
                listed = self._list(path, delimiter, most)
            except FileNotFoundError:
                return {}
        check_count(self.url, len(listed), most)
        found = {}
        for each in listed:
            full = str(each.get("name") or "").rstrip("/")
            name = full.removeprefix(f"{path}/")
            # Some stores list the folder itself as an empty object.
            if name != full and is_safe(name):
                found[name] = _entry(each)
        return found

    def _list(self, path: str, delimiter: str, most: int) -> list[Mapping[str, Any]]:
        """At most one more than wanted, where the store can list so."""
        files = self._files
        if hasattr(files, "_iterdir") and hasattr(files, "split_path"):
            from fsspec.asyn import sync

            bucket, key, _ = files.split_path(path)

            async def take() -> list[Mapping[str, Any]]:
                taken: list[Mapping[str, Any]] = []
                async for one in files._iterdir(bucket, delimiter=delimiter, prefix=f"{key}/" if key else ""):
                    taken.append(one)
                    if len(taken) > most:
                        break
                return taken

            return list(sync(files.loop, take, timeout=2 * ANSWER_SECONDS))
        if delimiter:
            return list(files.ls(path, detail=True, **self._limit))
        return list(_values(files.find(path, detail=True, **self._limit)))


def _values(found: Any) -> Iterable[Mapping[str, Any]]:
    return found.values() if isinstance(found, Mapping) else found


def _entry(told_of: Mapping[str, Any]) -> Entry:
    tag = next((str(told_of[key]) for key in _TAGS if told_of.get(key) is not None), "")
    return Entry(
        size=int(told_of.get("size") or 0),
        tag=tag,
        mtime=next((_seconds(told_of[key]) for key in _TIMES if told_of.get(key) is not None), 0.0),
        is_folder=told_of.get("type") == "directory",
    )


def _seconds(moment: Any) -> float:
    if isinstance(moment, datetime):
        return moment.timestamp()
    if isinstance(moment, (int, float)) and not isinstance(moment, bool):
        return float(moment)
    try:
        return datetime.fromisoformat(str(moment).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _opened(url: str) -> tuple[Any, str]:
    scheme = scheme_of(url)
    try:
        import fsspec
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra(f"{scheme}://", "remote") from error
    if scheme not in fsspec.available_protocols():
        hint = suggestion(scheme, [name for name in fsspec.available_protocols() if "::" not in name])
        raise ConfigError(f"{url}: no such kind of place. {hint}")
    try:
        with told(url):
            files, root = url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **_options(scheme))
    except Exception as error:
        missing = error.__cause__
        if isinstance(missing, (ImportError, ValueError)) and "install" in str(missing).lower():
            if scheme in ("s3", "s3a"):
                raise MissingExtra(f"{scheme}://", "remote") from error
            raise MissingExtra(f"{scheme}://", "", PACKAGES.get(scheme) or _named(str(missing))) from error
        raise
    if (loop := getattr(files, "loop", None)) is not None:
        # Requests that a broken connection took with them have failed where somebody waited for them.
        loop.set_exception_handler(lambda _, context: log.debug("%s: %s", scheme, context.get("message")))
    if scheme in ("s3", "s3a"):
        files.retries = 1  # who asks knows when to ask again
    return files, str(root)


def _options(scheme: str) -> dict[str, Any]:
    if scheme not in ("s3", "s3a"):
        return {}
    limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": ANSWER_SECONDS, "retries": {"max_attempts": 1}}
    return {"config_kwargs": limits}


def _named(text: str) -> str:
    """The package that fsspec's message names: in quotes, or after `install`."""
    found = re.search(r"[\"'`]([\w.-]+)|install (\w[\w.-]*)", text)
    return "the one that fsspec names: " + text if found is None else str(found[1] or found[2])
