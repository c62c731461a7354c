"""The OpenAPI description of all endpoints, generated from the parameters that validate them, and an HTML page of
it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vario.core.package import VERSION
from vario.web.api.answers import BYTES, CSV, EVENTS, JSON, Endpoint
from vario.web.api.schemas import Schema, Schemas

REFUSAL = {
    "type": "object",
    "description": "The error message.",
    "properties": {
        "error": {"type": "string"},
        "key": {"type": ["string", "null"], "description": "The parameter it is about."},
    },
    "required": ["error", "key"],
}
REFUSALS = {
    "400": "An invalid parameter, or the run cannot be read; the text says why.",
    "401": "Missing or wrong token.",
    "403": "Wrong host name, or a request from another site.",
    "404": "No such run.",
    "405": "The API is read-only.",
    "429": "Too many open pages.",
    "503": "Reading the run took too long.",
}

HEAD_AND_NUMBERS = (
    "The length of the head (uint32), the head in JSON (`x-head`), the numbers row by row (float32), and a byte of "
    "flags for each number: 1 recorded, 2 NaN or Inf. Little-endian."
)


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas = Schemas()
    paths = {endpoint.path: {"get": _operation(endpoint, schemas)} for endpoint in endpoints}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vario",
            "version": VERSION,
            "description": "The dashboard's API, for scripts. It is read-only. JSON is strict: a NaN or "
            "Inf is null, and flagged where that matters.",
        },
        "servers": [{"url": "."}],
        "security": [{"bearer": []}, {}],
        "components": {
            "schemas": {"Refusal": REFUSAL, **schemas.named},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "paths": paths,
    }


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    refusals = {status: {"description": text, "content": error} for status, text in REFUSALS.items()}
    content = {media: {"schema": _body(endpoint, media, schemas)} for media in endpoint.media}
    return {
        "operationId": endpoint.path.removeprefix("/api/").replace("/", "_"),
        "summary": endpoint.summary,
        "parameters": [parameter.described() for parameter in endpoint.parameters],
        "responses": {"200": {"description": "The response.", "content": content}, **refusals},
    }


def _body(endpoint: Endpoint, media: str, schemas: Schemas) -> Schema:
    if media in (JSON, EVENTS):
        assert endpoint.body is not None, f"{endpoint.path} answers in JSON and does not say what"
        return schemas.of(endpoint.body)
    if media == CSV:
        return {"type": "string"}
    found: Schema = {"type": "string", "format": "binary"}
    if media == BYTES and endpoint.head is not None:
        found["description"] = HEAD_AND_NUMBERS
        found["x-head"] = schemas.of(endpoint.head)
    return found


def page(described: Mapping[str, Any]) -> str:
    """Return the description as an HTML page, without scripts, styles or external files."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>vario: API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>',
        f"<h1>vario {escape(described['info']['version'])}</h1><p>{escape(described['info']['description'])}</p>",
        '<p>Machine-readable: <a href="openapi.json">openapi.json</a>. <a href="./">Back to the dashboard</a></p>',
    ]
    for path, methods in described["paths"].items():
        parts.append(_section(path, methods["get"]))
    return "\n".join([*parts, "</body></html>"])


def _section(path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(_row(parameter) for parameter in operation["parameters"])
    table = f"<table><tr><th>parameter</th><th>what</th><th>values</th></tr>{rows}</table>" if rows else ""
    answers = ", ".join(operation["responses"]["200"]["content"])
    return (
        f'<section><h2 id="{escape(operation["operationId"])}"><code>GET {escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])} Returns: {escape(answers)}.</p>{table}</section>"
    )


def _row(parameter: Mapping[str, Any]) -> str:
    name = escape(parameter["name"]) + (" (required)" if parameter.get("required") else "")
    schema = {key: value for key, value in parameter["schema"].items() if key not in ("maxLength", "minLength")}
    shown = escape(json.dumps(schema, ensure_ascii=False))
    return (
        f"<tr><td><code>{name}</code></td><td>{escape(parameter['description'])}</td><td><code>{shown}</code></td></tr>"
    )
