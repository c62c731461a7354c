"""Real servers on loopback: OpenSSH, an S3 server, and a proxy in front of either that can be cut."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""
LIMIT_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def eventually(what: Callable[[], object], seconds: float = LIMIT_SECONDS) -> object:
    """What `what` returns as soon as it is true; fails if that takes too long."""
    limit = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < limit, "did not happen in time"
        time.sleep(0.05)
    return found


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def started(words: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it answers."""
    with open(log, "wb") as out, subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: process.poll() is not None or _answers(port))
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.kill()


class SshHost:
    """An OpenSSH server with keys of its own, and the `~/.ssh` of a user who may log in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        for name in ("host_key", "user_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(words, check=True)
        (folder / "authorized_keys").write_bytes((folder / "user_key.pub").read_bytes())
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
            "MaxStartups 100\n"
        )
        self.words = [SSHD, "-D", "-e", "-f", f"{folder}/sshd_config"]

    def trust(self, *ports: int) -> None:
        """What the user's `ssh` would have written down after they accepted the host's key."""
        key = (self.folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
        lines = [f"[127.0.0.1]:{port} {key}\n" for port in (self.port, *ports)]
        (self.home / ".ssh" / "known_hosts").write_text("".join(lines))
        config = f"Host 127.0.0.1\n  User {getpass.getuser()}\n  IdentityFile {self.folder}/user_key\n"
        (self.home / ".ssh" / "config").write_text(config)

    def url(self, path: Path, port: int | None = None) -> str:
        return f"sftp://127.0.0.1:{port or self.port}{path}"


def moto_words(port: int) -> list[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


class CutProxy:
    """Passes bytes on to a port, counts them, and can be cut and restored."""

    def __init__(self, to_port: int) -> None:
        self._to = to_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.num_bytes_down = 0
        self.num_bytes_up = 0
        self.is_cut = False
        self.is_silent = False
        self.cut_after: int | None = None
        """Cut when so many bytes went up."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and every new one."""
        self.is_cut = True
        with self._lock:
            broken, self._open = self._open, set()
        for one in broken:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self.is_cut = self.is_silent = False
        self.cut_after = None

    def close(self) -> None:
        self.cut()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_up: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if is_up:
                    self.num_bytes_up += len(piece)
                    if self.cut_after is not None and self.num_bytes_up >= self.cut_after:
                        self.cut()
                else:
                    self.num_bytes_down += len(piece)
                while self.is_silent:
                    time.sleep(0.05)
                target.sendall(piece)
        for one in (source, target):
            with self._lock:
                self._open.discard(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def objects(proxy: Any, prefix: str) -> dict[str, bytes]:
    """The content of every object below a prefix of the bucket."""
    pages = proxy.client.get_paginator("list_objects_v2").paginate(Bucket=proxy.bucket, Prefix=prefix)
    keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
    get = proxy.client.get_object
    return {key.removeprefix(prefix): get(Bucket=proxy.bucket, Key=key)["Body"].read() for key in keys}
