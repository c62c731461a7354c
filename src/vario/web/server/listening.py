"""Listening on an address and port, and the printed link."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from vario.core.errors import ConfigError
from vario.web.server.connections import RareRecords, limited

FIRST_PORT = 8765
PORTS_TRIED = 64
BACKLOG = 128
ACCEPTED_AT_ONCE = 32
WARM_SECONDS = 60.0
ENDING_SECONDS = 10.0
SHUTDOWN_SECONDS = 3
"""The time limit for open requests at shutdown."""


@dataclass(frozen=True)
class Listening:
    """A listening socket and its address."""

    socket: socket.socket
    host: str
    port: int | None
    path: Path | None = None
    """The path of a Unix socket."""
    passed_over: int | None = None
    """The default port, if another program uses it."""

    def url(self, token: str | None, root_path: str = "") -> str:
        """Return the address to open."""
        query = "" if token is None else f"?token={token}"
        if self.path is not None:
            return f"unix:{self.path} (as http://localhost{root_path}/{query})"
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.host in ("0.0.0.0", "::"):
            name = socket.gethostname()
        return f"http://{name}:{self.port}{root_path}/{query}"


def listen(host: str, port: int | None) -> Listening:
    """Listen on the given port, or on the first free one from 8765."""
    if port is not None and not 0 <= port < 1 << 16:
        raise ConfigError(f"--port: expected a number from 0 (any free one) to 65535, got {port}")
    candidates = [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED)
    for number in candidates:
        try:
            return Listening(
                bound := _bound(host, number),
                host,
                int(bound.getsockname()[1]),
                passed_over=FIRST_PORT if port is None and number != FIRST_PORT else None,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"--host: cannot listen on {host}, port {number}: {error.strerror}") from error
    if port is not None:
        raise ConfigError(f"--port: {port} is in use by another program. Omit --port to use the next free one.")
    raise ConfigError(f"--port: all from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} are in use. Choose a free one.")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def listen_on_path(path: Path) -> Listening:
    """Listen on a Unix socket that no other user can open."""
    if path.exists() or path.is_symlink():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"--uds: {path} exists and is not a socket")
        if _is_answered(path):
            raise ConfigError(f"--uds: another program listens on {path}")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Private from the start: setting the mode later would leave a moment in which others can connect.
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ConfigError(f"--uds: cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)
    return Listening(bound, "localhost", None, path)


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(str(path))
        except OSError:
            return False
        return True


class _Server(uvicorn.Server):
    """Ends open event streams first, which would otherwise never end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.streams.end()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def server_config(app: Starlette, root_path: str = "", **changes: Any) -> uvicorn.Config:
    """Return the server's settings, with limits for slow and incomplete requests."""
    options: dict[str, Any] = {
        "root_path": root_path,
        "http": limited(),
        # This many connections are accepted before the first is handled, and each takes a descriptor.
        "backlog": ACCEPTED_AT_ONCE,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        # Who connects is who is at the other end: what a header says counts only from a proxy that is trusted.
        "proxy_headers": False,
        "lifespan": "off",
        "timeout_graceful_shutdown": SHUTDOWN_SECONDS,
        "h11_max_incomplete_event_size": 1 << 16,
    }
    return uvicorn.Config(app, **{**options, **changes})


def serve(app: Starlette, listening: Listening, root_path: str = "") -> None:
    """Serve until interrupted."""

    config = server_config(app, root_path)
    for name in ("uvicorn.error", "asyncio", "vario"):
        logging.getLogger(name).addFilter(RareRecords())
    # Read while the browser starts: with very many runs the first list would be incomplete.
    rows = app.state.streams.rows
    reading = threading.Thread(target=rows.read, args=(WARM_SECONDS,), name="vario-rows", daemon=True)
    reading.start()
    try:
        _Server(config).run(sockets=[listening.socket])
    finally:
        # An interpreter that exits while a thread imports or reads may hang.
        rows.end()
        reading.join(ENDING_SECONDS)
        listening.socket.close()
        if listening.path is not None:
            listening.path.unlink(missing_ok=True)
