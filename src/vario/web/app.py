"""The server: addresses, and what stands around every answer."""

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
from vario.web import assets, charts, compare, findings, model, openapi, overview, ranks
from vario.web.answers import JSON, Answer, Endpoint, encode
from vario.web.kept import Kept, run_names
from vario.web.live import LIVE, Streams, live
from vario.web.parameters import read_query
from vario.web.reading import Readers, TooSlow
from vario.web.security import Guard, refuse
from vario.web.served import Served

READERS = 3
"""Answers that are worked out at the same time; others wait."""
LEAST_ZIPPED_BYTES = 1000


def make_app(folder: Path, token: str | None = None, hosts: Iterable[str] | None = None) -> Starlette:
    """The dashboard over all runs below a folder.

    Without a `token` everybody who can reach it may read; `hosts` are the names it answers to, None for any.
    """
    served = Served(folder)
    kept = Kept()
    streams = Streams(served, Readers(READERS))
    found = all_endpoints()
    routes: list[BaseRoute] = [Route(endpoint.path, _handler(endpoint, kept, streams)) for endpoint in found]
    # Made when somebody asks: it takes longer than everything else here.
    document = functools.cache(lambda: openapi.document(found))
    routes += [
        Route("/openapi.json", _constant(lambda: encode(document()), JSON)),
        Route("/api", _constant(lambda: openapi.page(document()).encode(), "text/html; charset=utf-8")),
        Route("/healthz", _constant(lambda: b"ok", "text/plain; charset=utf-8")),
        *assets.routes(),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, token=token, hosts=hosts),
            Middleware(GZipMiddleware, minimum_size=LEAST_ZIPPED_BYTES, compresslevel=1),
        ],
        exception_handlers={HTTPException: _http_error, VarioError: _own_error},
    )
    app.state.streams = streams
    # /api is a page, /api/ is not: no address is turned into another one.
    app.router.redirect_slashes = False
    return app


def all_endpoints() -> list[Endpoint]:
    """Every address that answers with numbers."""
    modules = (overview, charts, findings, ranks, compare, model)
    return [*(endpoint for module in modules for endpoint in module.ENDPOINTS), LIVE]


def _handler(endpoint: Endpoint, kept: Kept, streams: Streams) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        values = read_query(endpoint.parameters, request.query_params)
        if endpoint.is_stream:
            return await live(streams, values, request)
        what = ", ".join(run_names(values)) or endpoint.path
        answer = await streams.readers.read(what, _answer, endpoint, streams.served, kept, values)
        # Numbers hardly shrink, and it takes longer than sending them.
        headers = {} if answer.media.startswith(("application/json", "text/")) else {"content-encoding": "identity"}
        if answer.file_name is not None:
            headers["content-disposition"] = f'attachment; filename="{answer.file_name}"'
        return Response(answer.body, media_type=answer.media, headers=headers)

    return handle


def _answer(endpoint: Endpoint, served: Served, kept: Kept, values: Mapping[str, Any]) -> Answer:
    key = kept.key(endpoint, served, values)
    if key is not None and (known := kept.get(key)) is not None:
        return known
    with served.reading():
        found = endpoint.answer(served, values)
    answer = found if isinstance(found, Answer) else Answer(encode(found))
    if key is not None:
        kept.put(key, answer)
    return answer


async def _own_error(request: Request, error: Exception) -> Response:
    """An error raised on purpose: what was asked for cannot be used, or is not there."""
    key = getattr(error, "key", None)
    if key is None and isinstance(error, (ConfigError, RunError)):
        # Texts begin with the option they are about.
        first = str(error).partition(":")[0]
        key = first if first.isidentifier() else None
    status = 404 if isinstance(error, RunNotFound) else 503 if isinstance(error, TooSlow) else 400
    return refuse(status, str(error), key)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "there is nothing at this address; /api lists what there is" if error.status_code == 404 else error.detail
    return refuse(error.status_code, text)


def _constant(body: Callable[[], bytes], media: str) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        return Response(body(), media_type=media)

    return handle
