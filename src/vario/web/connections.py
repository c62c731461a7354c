"""Connections within limits: nobody who sends slowly, or nothing, keeps others from being answered."""

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
"""A request has to be there whole after this long, headers and body, from its first byte or the connection's start."""
UNREAD_SECONDS = 60
"""An answer that is not taken for this long is given up."""
MOST_CONNECTIONS = 512
MOST_PER_CLIENT = 192
SPARE_FILES = 128
"""Descriptors that are left for the files of runs."""
LOG_RECORDS, LOG_SECONDS = 20, 10.0


class Connections:
    """All open connections of a server, the oldest first, by client."""

    def __init__(self, most: int | None = None, per_client: int = MOST_PER_CLIENT) -> None:
        self._most = most_connections() if most is None else most
        self._per_client = per_client
        self._by_client: dict[str, OrderedDict[LimitedProtocol, None]] = {}
        self._num_open = 0

    def add(self, connection: LimitedProtocol, client: str) -> bool:
        """Take in a connection; where there are too many the oldest that asks for nothing goes, or else this one."""
        own = self._by_client.setdefault(client, OrderedDict())
        own[connection] = None
        self._num_open += 1
        if len(own) <= self._per_client and self._num_open <= self._most:
            return True
        # Those of whoever has most: on a full server one client must not push out all others.
        crowd = own if len(own) > self._per_client else max(self._by_client.values(), key=len)
        waiting = next((other for other in crowd if other.is_waiting and other is not connection), None)
        (waiting or connection).give_up()
        return waiting is not None

    def remove(self, connection: LimitedProtocol, client: str) -> None:
        """A connection has gone."""
        own = self._by_client.get(client, OrderedDict())
        if connection in own:
            del own[connection]
            self._num_open -= 1
            if not own:
                del self._by_client[client]


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for every request, and a limit on connections."""

    limits: Connections
    """Of the server: `limited` makes a class with its own."""
    _timer: asyncio.TimerHandle | None = None
    _name = ""

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin; the request has to come in time."""
        super().connection_made(transport)
        self._name = self.client[0] if self.client else ""
        found = transport.get_extra_info("socket")
        if found is not None and found.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000)
        self._set_timer()
        self.limits.add(self, self._name)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of it."""
        self._drop_timer()
        self.limits.remove(self, self._name)
        super().connection_lost(exc)

    def data_received(self, piece: bytes) -> None:
        """Some bytes: a slow request is not given more time by each of them."""
        super().data_received(piece)
        if not self.is_waiting:
            self._drop_timer()
        elif self._timer is None:
            self._set_timer()

    def give_up(self) -> None:
        """Close it, without a word: whoever is too slow for a request is too slow for an answer."""
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
    """The protocol of one server."""
    return type("Limited", (LimitedProtocol,), {"limits": Connections(most, per_client)})


def most_connections() -> int:
    """As many as there are descriptors for, and not very many."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if files < 0 else max(16, min(MOST_CONNECTIONS, files - SPARE_FILES))


class RareRecords(logging.Filter):
    """Lets a number of records through in some seconds: whoever makes errors on purpose fills no disk with them."""

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
                record.msg, record.args = f"{record.getMessage()} ({self._num - self._most} like it left out)", ()
            self._began, self._num = now, 0
        self._num += 1
        return self._num <= self._most
