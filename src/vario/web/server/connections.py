"""Limits on connections: a slow or silent client cannot block others."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""The time limit for a complete request, headers and body, from its first byte or the start of the connection."""
UNREAD_SECONDS = 60
"""A response that the client does not read for this long is dropped."""
MOST_CONNECTIONS = 512
MOST_PER_CLIENT = 192
SPARE_FILES = 128
"""File descriptors reserved for the files of runs."""
LOG_RECORDS, LOG_SECONDS = 20, 10.0


class Connections:
    """All open connections of a server by client, oldest first."""

    def __init__(self, most: int | None = None, per_client: int = MOST_PER_CLIENT) -> None:
        self._most = most_connections() if most is None else most
        self._per_client = per_client
        self._by_client: dict[str, OrderedDict[LimitedProtocol, None]] = {}
        self._num_open = 0

    def add(self, connection: LimitedProtocol, client: str) -> bool:
        """Add a connection; if there are too many, close the oldest idle one, or else this one."""
        own = self._by_client.setdefault(client, OrderedDict())
        own[connection] = None
        self._num_open += 1
        if len(own) <= self._per_client and self._num_open <= self._most:
            return True
        # From the client with the most connections: one client must not push out all others.
        crowd = own if len(own) > self._per_client else max(self._by_client.values(), key=len)
        waiting = next((other for other in crowd if other.is_waiting and other is not connection), None)
        (waiting or connection).give_up()
        return waiting is not None

    def remove(self, connection: LimitedProtocol, client: str) -> None:
        """Remove a closed connection."""
        own = self._by_client.get(client, OrderedDict())
        if connection in own:
            del own[connection]
            self._num_open -= 1
            if not own:
                del self._by_client[client]


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for every request, and a limit on connections."""

    limits: Connections
    """The server's limits: `limited` makes a class for each server."""
    _timer: asyncio.TimerHandle | None = None
    _name = ""

    @property
    def is_waiting(self) -> bool:
        """Whether the connection is idle."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start the timer for the request."""
        super().connection_made(transport)
        self._name = self.client[0] if self.client else ""
        found = transport.get_extra_info("socket")
        if found is not None and found.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
        self._set_timer()
        self.limits.add(self, self._name)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        self._drop_timer()
        self.limits.remove(self, self._name)
        super().connection_lost(exc)

    def data_received(self, piece: bytes) -> None:
        """Handle bytes; they do not extend the time limit of a slow request."""
        super().data_received(piece)
        if not self.is_waiting:
            self._drop_timer()
        elif self._timer is None:
            self._set_timer()

    def give_up(self) -> None:
        """Close the connection without a response: a client too slow for a request is too slow for a response."""
        self._drop_timer()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def _set_timer(self) -> None:
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        if self.is_waiting:
            self.give_up()

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limited(most: int | None = None, per_client: int = MOST_PER_CLIENT) -> type[LimitedProtocol]:
    """Return the protocol class of one server."""
    return type("Limited", (LimitedProtocol,), {"limits": Connections(most, per_client)})


def most_connections() -> int:
    """Return the connection limit: what the file descriptors allow, within reason."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if files < 0 else max(16, min(MOST_CONNECTIONS, files - SPARE_FILES))


class RareRecords(logging.Filter):
    """Rate-limits log records, so that a client cannot fill the disk with errors."""

    def __init__(self, most: int = LOG_RECORDS, seconds: float = LOG_SECONDS) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._began = float("-inf")
        self._num = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        now = time.monotonic()
        if now - self._began >= self._seconds:
            if self._num > self._most:
                record.msg, record.args = (
                    f"{record.getMessage()} ({self._num - self._most} similar records suppressed)",
                    (),
                )
            self._began, self._num = now, 0
        self._num += 1
        return self._num <= self._most
