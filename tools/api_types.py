"""The TypeScript types of what the server answers, from its OpenAPI description."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from vario.web import openapi
from vario.web.answers import JSON
from vario.web.app import all_endpoints

WIDTH = 120
INTRO = """// Made by tools/make_docs.py from the types in src/vario/web/bodies; edit those, then run `make docs`.

/** What the server answers. */

/** A number that is not finite comes as null. */
export type Maybe = number | null;
"""
NAMES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def api_types() -> str:
    """The whole file."""
    described = openapi.document(all_endpoints())
    schemas = described["components"]["schemas"]
    parts = [INTRO, *(_declared(name, schemas[name]) for name in sorted(schemas)), _answers(described["paths"])]
    return "\n".join(parts)


def _declared(name: str, schema: Mapping[str, Any]) -> str:
    comment = _comment(schema.get("description", ""), "")
    if not schema["properties"]:
        return f"{comment}export type {name} = Record<string, never>;\n"
    lines = []
    for key, inside in schema["properties"].items():
        mark = "" if key in schema["required"] else "?"
        lines.append(f"{_comment(inside.get('description', ''), '  ')}  {key}{mark}: {_type(inside)};\n")
    return f"{comment}export interface {name} {{\n{''.join(lines)}}}\n"


def _answers(paths: Mapping[str, Any]) -> str:
    """Which address answers with which type."""
    lines = []
    for path, methods in paths.items():
        content = methods["get"]["responses"]["200"]["content"]
        if JSON in content:
            page = path.removeprefix("/api/")
            key = page if page.isidentifier() else f'"{page}"'
            lines.append(f"  {key}: {_type(content[JSON]['schema'])};\n")
    return f"/** The JSON of each address below api/. */\nexport interface Answers {{\n{''.join(lines)}}}\n"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return _union(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return _union(f'"{word}"' for word in schema["enum"])
    kind = schema.get("type")
    if "minItems" in schema and "items" in schema:
        return f"[{', '.join([_type(schema['items'])] * schema['minItems'])}]"
    if "prefixItems" in schema:
        return f"[{', '.join(_type(one) for one in schema['prefixItems'])}]"
    if kind == "array":
        inside = _type(schema["items"])
        return f"({inside})[]" if "|" in inside else f"{inside}[]"
    if kind == "object":
        return f"Record<string, {_type(schema['additionalProperties'])}>"
    if kind is None:
        return "unknown"
    return _union(NAMES[name] for name in ([kind] if isinstance(kind, str) else kind))


def _union(names: Iterable[str]) -> str:
    text = " | ".join(dict.fromkeys(names))
    return "Maybe" if text == "number | null" else text


def _comment(text: str, indent: str) -> str:
    if not text:
        return ""
    flat = " ".join(text.replace("*/", "* /").split())
    if len(line := f"{indent}/** {flat} */") <= WIDTH:
        return f"{line}\n"
    wrapped = textwrap.wrap(flat, WIDTH - len(indent) - 3)
    return f"{indent}/**\n" + "".join(f"{indent} * {line}\n" for line in wrapped) + f"{indent} */\n"
