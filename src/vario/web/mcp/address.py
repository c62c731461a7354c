"""The address of the server at which assistants ask: the Model Context Protocol over HTTP."""

from __future__ import annotations

import threading
from typing import Any

import anyio.to_thread
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vario.core.errors import MissingExtra
from vario.web.reading import Readers
from vario.web.served import Served
from vario.web.server.security import MCP_PATH, refuse


def route(served: Served, readers: Readers) -> Route:
    """Return the route; without the package it answers with its install line."""
    return Route(MCP_PATH, _Address(served, readers), methods=["POST"])


class _Address:
    """Imports the package on the first request: nobody else waits for it."""

    def __init__(self, served: Served, readers: Readers) -> None:
        self._served, self._readers = served, readers
        self._server: Any = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            protocol = await anyio.to_thread.run_sync(self._load)
        except MissingExtra as error:
            await refuse(501, str(error))(scope, receive, send)
            return
        await protocol.answer_request(self._server, scope, receive, send)

    def _load(self) -> Any:
        protocol = load_protocol()
        with self._lock:
            if self._server is None:
                self._server = protocol.make_server(self._served, self._readers)
        return protocol


def load_protocol() -> Any:
    """Import what speaks the protocol; raises MissingExtra without its package."""
    try:
        from vario.web.mcp import protocol
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("mcp", "mcp_types"):
            raise MissingExtra("the server for assistants", "mcp") from error
        raise
    return protocol
