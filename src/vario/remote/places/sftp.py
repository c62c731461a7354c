"""Another host over SSH, by the settings, keys and known hosts of the user's `ssh`."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from vario.core.errors import MissingExtra, Unreachable
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

KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
RECENT_SECONDS = 3.0
Found = TypeVar("Found")


class Sftp:
    """A folder on another host. `sftp://HOST/~/runs` is below the home folder there."""

    can_append = True
    num_parallel = 1

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self._host, self._port, self._user = parts.hostname or "", parts.port, parts.username
        path = unquote(parts.path) or "/"
        self._root = path[3:] or "." if path.startswith("/~/") else "." if path == "/~" else path
        self._client: Any = None
        self._sftp: Any = None
        self._made: set[str] = set()
        # One answer at a time is waited for on a connection.
        self._lock = threading.RLock()

    def listed(self, folder: str, most: int = MOST_NAMES) -> dict[str, Entry]:
        """Return what is directly in a folder."""

        def ask(sftp: Any) -> dict[str, Entry]:
            found: dict[str, Entry] = {}
            # In pieces: a folder may have any number of names.
            for one in sftp.listdir_iter(self._path(folder), read_aheads=4):
                mode = one.st_mode or 0
                if is_safe(one.filename) and "/" not in one.filename and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    tag = _tag(one.filename, one.st_mtime or 0)
                    found[one.filename] = Entry(one.st_size or 0, tag, float(one.st_mtime or 0), stat.S_ISDIR(mode))
                    check_count(self.url, len(found), most)
            return found

        try:
            return self._ask(ask)
        except FileNotFoundError:
            return {}

    def tree(self, folder: str, most: int = MOST_FILES) -> dict[str, Entry]:
        """Return the files below a folder."""
        found: dict[str, Entry] = {}
        waiting = [("", 1)]
        while waiting:
            above, depth = waiting.pop()
            for name, entry in self.listed("/".join(filter(None, (folder, above.rstrip("/")))), most).items():
                if not entry.is_folder:
                    found[above + name] = entry
                elif depth < MOST_DEPTH and not name.startswith("."):
                    waiting.append((f"{above}{name}/", depth + 1))
            check_count(self.url, len(found) + len(waiting), most)
        return found

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a range of bytes."""

        def ask(sftp: Any) -> bytes:
            with sftp.open(self._path(name), "rb") as file:
                last = int(file.stat().st_size or 0)
                last = last if end is None else min(end, last)
                # All requests at once: one after the other would wait for as many round trips.
                return b"".join(file.readv([(start, last - start)])) if start < last else b""

        return self._ask(ask)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file."""
        folder, _, last = name.rpartition("/")
        unfinished = f"{folder}/.{last}.tmp" if folder else f".{last}.tmp"
        self.append(unfinished, 0, content)
        self.rename(unfinished, name)

    def append(self, name: str, at: int, content: bytes) -> None:
        """Write at a place of a file, which ends after that."""

        def ask(sftp: Any) -> None:
            path = self._path(name)
            self._make(sftp, os.path.dirname(path))
            with sftp.open(path, "r+b" if at else "wb") as file:
                if at:
                    file.truncate(at)
                    file.seek(at)
                file.set_pipelined(True)
                file.write(content)

        self._ask(ask)

    def rename(self, name: str, new: str) -> None:
        """Rename a file."""
        self._ask(lambda sftp: sftp.posix_rename(self._path(name), self._path(new)))

    def remove(self, name: str) -> None:
        """Delete a file."""
        try:
            self._ask(lambda sftp: sftp.remove(self._path(name)))
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Close the connection."""
        client, self._client, self._sftp = self._client, None, None
        self._made.clear()
        if client is not None:
            client.close()

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _make(self, sftp: Any, folder: str) -> None:
        if folder in self._made or folder in ("", "/", "."):
            return
        try:
            sftp.stat(folder)
        except FileNotFoundError:
            self._make(sftp, os.path.dirname(folder))
            try:
                sftp.mkdir(folder)
            except OSError:
                sftp.stat(folder)  # another rank was faster
        self._made.add(folder)

    def _ask(self, ask: Callable[[Any], Found]) -> Found:
        with self._lock, told(self.url):
            try:
                if self._sftp is None:
                    self._connect()
                return ask(self._sftp)
            except (FileNotFoundError, PermissionError):
                self._made.clear()
                raise
            except BaseException:
                self.close()  # the next request connects anew
                raise

    def _connect(self) -> None:
        paramiko = _paramiko()
        settings = _settings(paramiko, self._host)
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        for file in (*settings.get("userknownhostsfile", "").split(), *KNOWN_HOSTS):
            if os.path.isfile(path := os.path.expanduser(file)):
                client.load_system_host_keys(path)
        host, port = settings.get("hostname", self._host), self._port or int(settings.get("port", 22))
        user = self._user or settings.get("user")
        through = _through(paramiko, settings, host, port)
        self._client = client
        try:
            client.connect(
                host,
                port,
                user,
                key_filename=[os.path.expanduser(file) for file in settings.get("identityfile", [])] or None,
                sock=through,
                timeout=CONNECT_SECONDS,
                banner_timeout=CONNECT_SECONDS,
                auth_timeout=CONNECT_SECONDS,
                channel_timeout=CONNECT_SECONDS,
            )
        except paramiko.SSHException as error:
            if "not found in known_hosts" in str(error):
                raise Unreachable(
                    f"{self.url}: the key of this host is not known yet. Check and accept it with: ssh {self._host}"
                ) from error
            raise
        client.get_transport().set_keepalive(15)
        self._sftp = client.open_sftp()
        self._sftp.get_channel().settimeout(ANSWER_SECONDS)


def _tag(name: str, mtime: int) -> str:
    """SFTP tells whole seconds: what was written a moment ago may be written again without any difference."""
    is_recent = name.endswith(".json") and abs(time.time() - mtime) < RECENT_SECONDS
    return f"{mtime} {time.time()}" if is_recent else f"{mtime}"


def _paramiko() -> Any:
    try:
        import paramiko
    except ImportError as error:
        raise MissingExtra("sftp://", "remote") from error
    return paramiko


def _settings(paramiko: Any, host: str) -> dict[str, Any]:
    """What `~/.ssh/config` says of a host."""
    path = os.path.expanduser("~/.ssh/config")
    if not os.path.isfile(path):
        return {}
    return dict(paramiko.SSHConfig.from_path(path).lookup(host))


def _through(paramiko: Any, settings: dict[str, Any], host: str, port: int) -> Any:
    """The command that reaches a host behind another one; None: it is reached directly."""
    command = settings.get("proxycommand")
    if command is None and (jump := settings.get("proxyjump", "none")) != "none":
        command = f"ssh -o BatchMode=yes -W {host}:{port} {jump}"
    return None if command in (None, "none") else paramiko.ProxyCommand(command)
