"""The gallery of faults as a page of the dashboard: what common faults look like, and a section for every rule.

The faults are those of docs/gallery.md, which travels with the package. The page has no scripts and works offline.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from vario.core.package import docs_folder, read_docs
from vario.rules import RULES, Rule
from vario.web.pages.built_files import style_sheet

PAGE_PATH = "/gallery"
_PICTURE = re.compile(r"gallery-[a-z0-9-]{1,80}\.png")
_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|!\[([^\]]*)\]\(images/([^)]+)\)|\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True)
class Fault:
    """One section of the gallery."""

    anchor: str
    title: str
    text: str
    rules: tuple[str, ...]
    """The rules that its texts name."""


def routes() -> list[BaseRoute]:
    """Return the routes of the page and its pictures."""
    return [Route(PAGE_PATH, page), Route(PAGE_PATH + "/{name}", picture)]


async def page(request: Request) -> Response:
    """Serve the gallery."""
    return HTMLResponse(gallery_html())


async def picture(request: Request) -> Response:
    """Serve a picture of the gallery."""
    name = request.path_params["name"]
    path = docs_folder() / "images" / name
    if _PICTURE.fullmatch(name) is None or not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type="image/png", headers={"cache-control": "private, max-age=3600"})


def gallery_html() -> str:
    """Return the whole page."""
    found = faults()
    style = style_sheet()
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Gallery of faults · vario</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + (f'<link rel="stylesheet" href="{style}">' if style else "")
        + '</head><body><main class="page gallery"><p><a href="./">Back to the dashboard</a></p>'
        "<h1>Gallery of faults</h1>",
        "<p>What common faults look like, and what each rule of vario means.</p><h2>Faults</h2><ul>",
        *(f'<li><a href="#{fault.anchor}">{escape(fault.title)}</a></li>' for fault in found),
        "</ul>",
        *(
            f'<section class="card" id="{fault.anchor}"><h2>{escape(fault.title)}</h2>{to_html(fault.text)}</section>'
            for fault in found
        ),
        "<h2>Rules</h2>",
        *(_rule_section(known.part, [fault for fault in found if known.name in fault.rules]) for known in RULES),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def _rule_section(rule: Rule, examples: list[Fault]) -> str:
    links = ", ".join(f'<a href="#{fault.anchor}">{escape(fault.title)}</a>' for fault in examples)
    lines = [
        f'<section class="card" id="{escape(rule.name)}"><h3><code>{escape(rule.name)}</code></h3>',
        f"<p>{_inline(rule.summary)}</p>",
        f"<p><b>Why it matters:</b> {_inline(rule.why)}</p>" if rule.why else "",
        *(f"<p><b>Likely cause:</b> {_inline(cause)}.</p>" for cause in dict.fromkeys(rule.causes.values())),
        f"<p><b>Next:</b> {_inline(rule.next)}</p>" if rule.next else "",
        f"<p><b>In the gallery:</b> {links}</p>" if links else "",
        "</section>",
    ]
    return "".join(lines)


@functools.cache
def faults() -> tuple[Fault, ...]:
    """Return the sections of the gallery; none where the documentation is not installed."""
    _, *sections = re.split(r"^## ", read_docs("gallery.md"), flags=re.MULTILINE)
    found = []
    for section in sections:
        title, _, text = section.partition("\n")
        anchor = re.sub(r"[^a-z0-9]+", "-", title.strip().lower())
        rules = [known.name for known in RULES if re.search(rf"\b{re.escape(known.name)}\b", text)]
        found.append(Fault(anchor, title.strip(), text.strip(), tuple(rules)))
    return tuple(found)


def to_html(text: str) -> str:
    """Return the Markdown that the gallery uses as HTML: paragraphs, pictures, code and folded parts."""
    return "".join(_blocks(text))


def _blocks(text: str) -> Iterator[str]:
    for part in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            code = part.partition("\n")[2].removesuffix("```")
            yield f"<pre>{escape(code)}</pre>"
            continue
        for block in re.split(r"\n\s*\n", part):
            if not (words := block.strip()):
                continue
            if words.startswith(("<details", "</details", "<summary")):
                # The only markup that the gallery itself has.
                kept = re.sub(
                    r"<summary>(.*?)</summary>", lambda found: f"<summary>{escape(found[1])}</summary>", words
                )
                yield re.sub(r"<details[^>]*>", "<details>", kept)
            else:
                yield f"<p>{_inline(words)}</p>"


def _inline(text: str) -> str:
    found, at = [], 0
    for match in _INLINE.finditer(text):
        code, bold, alternative, image, link = match.groups()
        found.append(escape(text[at : match.start()]))
        if code is not None:
            found.append(f"<code>{escape(code)}</code>")
        elif bold is not None:
            found.append(f"<b>{escape(bold)}</b>")
        elif image is not None:
            name = PAGE_PATH.removeprefix("/") + "/" + image
            found.append(f'<img src="{escape(name)}" alt="{escape(alternative)}" loading="lazy">')
        else:
            found.append(escape(link))
        at = match.end()
    return "".join([*found, escape(text[at:])])
