"""The server: endpoints, and what all responses share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from vario.core.errors import ConfigError, RunError, RunNotFound, VarioError
from vario.web import writing
from vario.web.addresses import (
    attachments,
    charts,
    compare,
    effects,
    findings,
    model,
    overlay,
    overview,
    precision,
    ranks,
    table,
    vital_signs,
)
from vario.web.answer_cache import AnswerCache, run_names
from vario.web.api import openapi
from vario.web.api.answers import JSON, Answer, Endpoint, encode
from vario.web.api.parameters import read_query
from vario.web.live.streams import LIVE, Streams, live
from vario.web.mcp import address as mcp_address
from vario.web.pages import assets, gallery
from vario.web.reading import Readers, TooSlow
from vario.web.served import Served
from vario.web.server.security import Guard, refuse
from vario.web.server.users import OWNER, USER, Proxy, TokenFile

READERS = 3
"""The number of responses computed at the same time; others wait."""
LEAST_ZIPPED_BYTES = 1000


def make_app(
    folders: Path | Mapping[str, Path],
    token: str | None = None,
    hosts: Iterable[str] | None = None,
    is_writable: bool = False,
    tokens: TokenFile | None = None,
    proxy: Proxy | None = None,
) -> Starlette:
    """Build the dashboard for all runs below a folder, or below several by name.

    Without a `token` anybody who can reach it may read; `hosts` are the host names it accepts, None for any. If it is
    writable, notes on runs can be changed; runs themselves never are. `tokens` let others in by name, and so does a
    `proxy` that is trusted.
    """
    served = Served(folders, is_writable)
    cache = AnswerCache()
    streams = Streams(served, Readers(READERS))
    found = all_endpoints()
    routes: list[BaseRoute] = [Route(endpoint.path, _handler(endpoint, cache, streams)) for endpoint in found]
    # Built on the first request: it takes longer than everything else here.
    document = functools.cache(lambda: openapi.document(found))
    routes += writing.routes(streams)
    routes.append(mcp_address.route(served, streams.readers))
    routes += [
        Route("/openapi.json", _constant(lambda: encode(document()), JSON)),
        Route("/api", _constant(lambda: openapi.page(document()).encode(), "text/html; charset=utf-8")),
        Route("/healthz", _constant(lambda: b"ok", "text/plain; charset=utf-8")),
        *gallery.routes(),
        *assets.routes(),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, token=token, hosts=hosts, is_writable=is_writable, tokens=tokens, proxy=proxy),
            Middleware(GZipMiddleware, minimum_size=LEAST_ZIPPED_BYTES, compresslevel=1),
        ],
        exception_handlers={HTTPException: _http_error, VarioError: _own_error},
    )
    app.state.streams = streams
    # /api is a page, /api/ is not: no redirects.
    app.router.redirect_slashes = False
    return app


def all_endpoints() -> list[Endpoint]:
    """Return every endpoint of the API."""
    modules = (
        overview,
        table,
        overlay,
        effects,
        charts,
        findings,
        ranks,
        compare,
        model,
        precision,
        attachments,
        vital_signs,
    )
    return [*(endpoint for module in modules for endpoint in module.ENDPOINTS), LIVE]


def _handler(endpoint: Endpoint, cache: AnswerCache, streams: Streams) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        values = read_query(endpoint.parameters, request.query_params)
        if endpoint.is_stream:
            return await live(streams, values, request)
        what = ", ".join(run_names(values)) or endpoint.path
        served = streams.served if request.scope.get(USER, OWNER).may_write else streams.served.for_reading()
        answer = await streams.readers.read(what, _answer, endpoint, served, cache, values)
        # Numbers hardly compress, and compressing takes longer than sending.
        headers = {} if answer.media.startswith(("application/json", "text/")) else {"content-encoding": "identity"}
        if answer.file_name is not None:
            headers["content-disposition"] = f'attachment; filename="{answer.file_name}"'
        return Response(answer.body, media_type=answer.media, headers=headers)

    return handle


def _answer(endpoint: Endpoint, served: Served, cache: AnswerCache, values: Mapping[str, Any]) -> Answer:
    key = cache.key(endpoint, served, values)
    if key is not None and (known := cache.get(key)) is not None:
        return known
    with served.reading():
        found = endpoint.answer(served, values)
    answer = found if isinstance(found, Answer) else Answer(encode(found))
    if key is not None:
        cache.put(key, answer)
    return answer


async def _own_error(request: Request, error: Exception) -> Response:
    """The response for a VarioError: a bad request, or something that does not exist."""
    key = getattr(error, "key", None)
    if key is None and isinstance(error, (ConfigError, RunError)):
        # Messages begin with the parameter they are about.
        first = str(error).partition(":")[0]
        key = first if first.isidentifier() else None
    status = 404 if isinstance(error, RunNotFound) else 503 if isinstance(error, TooSlow) else 400
    return refuse(status, str(error), key)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "not found; /api lists all endpoints" if error.status_code == 404 else error.detail
    return refuse(error.status_code, text)


def _constant(body: Callable[[], bytes], media: str) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        return Response(body(), media_type=media)

    return handle
