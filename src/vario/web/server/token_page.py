"""The page for a request without a token: a field for the token, which keeps the rest of the address."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from starlette.responses import HTMLResponse

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 34rem; margin: 18vh auto; padding: 0 1.5rem; }
h1 { font-size: 1.4rem; }
form { display: flex; gap: 0.5rem; margin: 1.5rem 0; }
input { flex: 1; min-width: 0; }
input, button { font: inherit; padding: 0.5rem 0.75rem; border: 1px solid #8888; border-radius: 6px; }
code { font-size: 0.95em; }
"""


def token_page(asked: Iterable[tuple[str, str]]) -> HTMLResponse:
    """Return the page for an address with these parameters."""
    kept = [(key, value) for key, value in asked if key != "token"]
    is_wrong = "<p><b>Wrong token.</b></p>" if any(key == "token" for key, _ in asked) else ""
    hidden = "".join(f'<input type="hidden" name="{escape(key)}" value="{escape(value)}">' for key, value in kept)
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>vario</title><style>{STYLE}</style>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<h1>This page needs a token</h1>{is_wrong}"
        "<p>The token is at the end of the link that <code>vario serve</code> printed, after <code>token=</code>. Check"
        " that terminal, or ask the person who started it.</p>"
        f'<form method="get">{hidden}<input name="token" aria-label="Token" autocomplete="off" required autofocus>'
        "<button>Open</button></form></html>"
    )
    return HTMLResponse(text, 401, headers={"content-security-policy": POLICY})
