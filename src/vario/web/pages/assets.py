"""Serves the frontend's built files: the page and its assets."""

from __future__ import annotations

import mimetypes
from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from vario.web.pages.built_files import BUILT, why_missing

MISSING = """<!doctype html> <html lang="en"><meta charset="utf-8"><title>vario</title> <h1>The dashboard has not been
built</h1> <p>{why}</p> <p>The API works without it: <a href="api">list of endpoints</a>.</p> </html>
"""
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
MOST_NAME = 200
PAGES = ("/", "/index.html")


def routes() -> list[BaseRoute]:
    """Return the routes of the page and its files."""
    return [*(Route(path, page) for path in PAGES), Route("/assets/{name}", asset), Route("/favicon.ico", icon)]


async def page(request: Request) -> Response:
    """Serve the page; its query says what to show."""
    index = BUILT / "index.html"
    if index.is_file():
        return FileResponse(index, media_type="text/html")
    return HTMLResponse(MISSING.format(why=escape(why_missing())))


async def asset(request: Request) -> Response:
    """Serve an asset of the page; its name contains a hash of its content, so it never changes."""
    name = request.path_params["name"]
    path = BUILT / "assets" / name
    is_plain = len(name) <= MOST_NAME and name.isprintable() and not name.startswith(".")
    if not is_plain or "/" in name or "\\" in name or not path.is_file():
        raise HTTPException(404)
    media = TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return FileResponse(path, media_type=media, headers={"cache-control": "private, max-age=31536000, immutable"})


async def icon(request: Request) -> Response:
    """Serve the tab's icon, if the frontend has one."""
    for name in ("favicon.ico", "favicon.svg"):
        if (BUILT / name).is_file():
            return FileResponse(BUILT / name)
    return Response(status_code=204)
