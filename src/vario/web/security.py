"""Who may ask: the token, the Host and the Origin of a request are checked before anything else is."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vario.core.errors import ConfigError
from vario.web.answers import JSON, encode
from vario.web.token_page import token_page

COOKIE = "vario_token"
NO_TOKEN = "the token is missing or wrong. Open the address that `vario serve` printed, or send it as a bearer."
OPEN_PATHS = ("/healthz",)
"""What is answered without a token: whether the server is there."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?")
LEAST_TOKEN, LEAST_LETTERS = 24, 10
"""How long a token is at least that other machines could guess at, and how many different characters it has."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def make_token(fixed: str | None = None, is_private: bool = True) -> str:
    """A token nobody can guess, or the one that was fixed, if it fits into a link and a cookie.

    Where other machines can ask (not `is_private`), a short one is refused: it could be tried.
    """
    if not fixed:
        return secrets.token_urlsafe(32)
    if not re.fullmatch(r"[A-Za-z0-9_.~-]+", fixed):
        raise ConfigError("VARIO_TOKEN: expected letters, digits and - _ . ~ only")
    if not is_private and (len(fixed) < LEAST_TOKEN or len(set(fixed)) < LEAST_LETTERS):
        raise ConfigError(
            f"VARIO_TOKEN: other machines could guess it. It needs {LEAST_TOKEN} characters, {LEAST_LETTERS} of them "
            f"different; leave it out to get a random one."
        )
    return fixed


def is_loopback(host: str) -> bool:
    """Whether a host to listen on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def known_hosts(host: str) -> frozenset[str] | None:
    """The names by which a browser may call a server that listens there; None where these cannot be known.

    On loopback a page of another site could call it by a name of its own that leads here (DNS rebinding), so only
    names that mean loopback are answered. Elsewhere the machine may have any name, and the token protects.
    """
    return frozenset({*LOOPBACK_NAMES, host}) if is_loopback(host) else None


class Guard:
    """Lets through what comes from the right place with the right token; adds the headers every answer has."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Iterable[str] | None) -> None:
        """`hosts` are the names the server answers to; None for any."""
        self._app = app
        self._token = token
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        answer = self._refusal(scope)
        cookie = None
        if answer is None and self._token is not None and _path(scope) not in OPEN_PATHS:
            asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            if any(key == "token" and self._is_right(value) for key, value in asked):
                answer, cookie = _without_token(scope, asked), _cookie(scope, self._token)
            elif not self._is_known(scope):
                answer = token_page(asked) if _is_page(scope) else refuse(401, NO_TOKEN)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                if cookie is not None:
                    headers.append("set-cookie", cookie)
            await send(message)

        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return refuse(403, f"this server does not answer to the name '{host[:80]}'. Open the address it printed.")
        origin = headers.get("origin")
        if origin is not None and not _is_same(origin, host, headers.get("x-forwarded-host")):
            return refuse(403, f"a page of '{origin[:80]}' may not ask this server")
        # To a cookie another port of this machine is the same site; to us it is not.
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign and headers.get("sec-fetch-mode") != "navigate":
            return refuse(403, "a page of another site may not ask this server")
        if scope["method"] not in ("GET", "HEAD"):
            answer = refuse(405, "this server only reads: use GET")
            answer.headers["allow"] = "GET, HEAD"
            return answer
        return None

    def _is_known(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        kept = cookie_parser(headers.get("cookie", "")).get(_cookie_name(scope), "")
        return (scheme.lower() == "bearer" and self._is_right(bearer.strip())) or self._is_right(kept)

    def _is_right(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf8", "replace"), self._token.encode())


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _is_for_scripts(path: str) -> bool:
    return path.startswith(("/api/", "/assets/")) or path == "/openapi.json"


def _is_page(scope: Scope) -> bool:
    """Whether somebody looks at the answer."""
    return "text/html" in Headers(scope=scope).get("accept", "") and not _is_for_scripts(_path(scope))


def _without_token(scope: Scope, asked: list[tuple[str, str]]) -> Response | None:
    """Where a page is sent to, so that no address bar shows the token; None for what is no page."""
    path = _path(scope)
    if _is_for_scripts(path):
        return None
    rest = urlencode([(key, value) for key, value in asked if key != "token"])
    # Relative: it stays below whatever prefix a proxy put before this server.
    return RedirectResponse(f"./{path.rpartition('/')[2]}{'?' + rest if rest else ''}", status_code=303)


def _cookie(scope: Scope, token: str) -> str:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{_cookie_name(scope)}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _cookie_name(scope: Scope) -> str:
    """Cookies do not tell ports apart, so their names do: two servers of one machine keep their own."""
    port = Headers(scope=scope).get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets; empty where it is not a name and a port."""
    found = HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()


def _is_same(origin: str, host: str, forwarded: str | None) -> bool:
    """Whether the page that asks came from this server, as the browser knows it."""
    own = urlsplit(origin).netloc.lower()
    return bool(own) and own in (host.lower(), (forwarded or host).lower())


def refuse(status: int, text: str, key: str | None = None) -> Response:
    """An error, in JSON."""
    return Response(encode({"error": text, "key": key}), status, media_type=JSON)
