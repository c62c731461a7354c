"""Access control: checks the token, the Host and the Origin of a request before anything else."""

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
from vario.web.api.answers import JSON, encode
from vario.web.server.token_page import token_page
from vario.web.server.users import (
    IS_ALLOWED,
    LEAST_LETTERS,
    LEAST_TOKEN,
    LOOPBACK,
    OWNER,
    TOKEN_LETTERS,
    USER,
    Proxy,
    TokenFile,
    User,
    is_from,
    is_weak,
)

COOKIE = "vario_token"
NO_TOKEN = "missing or wrong token. Open the link that `vario serve` printed, or send the token as a bearer token."
NOTE_PATH, TRASH_PATH, CHARTS_PATH = "/api/note", "/api/trash", "/api/charts"
WRITING_PATHS = (NOTE_PATH, TRASH_PATH, CHARTS_PATH)
"""The addresses at which something is changed, by POST, and only of a server that is writable."""
MCP_PATH = "/mcp"
"""Where assistants ask, by POST; nothing is changed there."""
VITAL_SIGNS_PATH = "/metrics"
"""Where Prometheus reads."""
OPEN_PATHS = ("/healthz",)
"""Paths that need no token: whether the server is up."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?")
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
    """Return a random token, or the fixed one if it fits into a link and a cookie.

    If other machines can reach the server (not `is_private`), a short token is rejected: it could be guessed.
    """
    if not fixed:
        return secrets.token_urlsafe(32)
    if not TOKEN_LETTERS.fullmatch(fixed):
        raise ConfigError("VARIO_TOKEN: use only letters, digits and - _ . ~")
    if not is_private and is_weak(fixed):
        raise ConfigError(
            f"VARIO_TOKEN: too easy to guess. It needs {LEAST_TOKEN} characters, {LEAST_LETTERS} of them "
            f"different. Unset it to get a random one."
        )
    return fixed


def is_loopback(host: str) -> bool:
    """Whether a host to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def known_hosts(host: str) -> frozenset[str] | None:
    """Return the host names a browser may use for a server that listens there; None if they cannot be known.

    On loopback, another site could use its own name that resolves here (DNS rebinding), so only loopback names are
    accepted. Elsewhere the machine may have any name, and the token protects it.
    """
    return frozenset({*LOOPBACK_NAMES, host}) if is_loopback(host) else None


class Guard:
    """Lets through requests with the right origin and token; adds the headers of every response."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        hosts: Iterable[str] | None,
        is_writable: bool = False,
        tokens: TokenFile | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        """`hosts` are the accepted host names; None for any. If writable, notes on runs can be changed.

        Without a `token` everybody may read; `tokens` are those of other people, and `proxy` may name who asks.
        """
        self._is_writable = is_writable
        self._app = app
        self._token = token
        self._tokens = tokens
        self._proxy = proxy
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        answer = self._refusal(scope)
        cookie = None
        if answer is None and _path(scope) not in OPEN_PATHS:
            asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            given = next((value for key, value in asked if key == "token" and self._find(value) is not None), None)
            user = self._user(scope) if given is None else self._find(given)
            if user is None:
                answer = token_page(asked) if _is_page(scope) else refuse(401, NO_TOKEN)
            elif _path(scope) in WRITING_PATHS and scope["method"] == "POST" and not user.may_write:
                answer = refuse(403, f"{user.name} may only read here")
            else:
                scope[USER], scope[IS_ALLOWED] = user, lambda: self._find(given or "") or self._user(scope) is not None
            if given is not None and answer is None:
                answer, cookie = _without_token(scope, asked), self._cookie(scope, given)

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
            return refuse(403, f"unknown host name '{host[:80]}'. Open the link that `vario serve` printed.")
        origin = headers.get("origin")
        if origin is not None and not _is_same(origin, host, headers.get("x-forwarded-host")):
            return refuse(403, f"requests from '{origin[:80]}' are not allowed")
        # Cookies treat another port of this machine as the same site; we do not.
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_foreign and headers.get("sec-fetch-mode") != "navigate":
            return refuse(403, "requests from another site are not allowed")
        path = _path(scope)
        if scope["method"] == "POST" and (path == MCP_PATH or (self._is_writable and path in WRITING_PATHS)):
            # A form of another site cannot send JSON, and a script of one is refused above.
            is_json = headers.get("content-type", "").partition(";")[0].strip() == JSON
            return None if is_json else refuse(415, "expected JSON")
        if scope["method"] not in ("GET", "HEAD"):
            answer = refuse(405, "this server is read-only: use GET")
            answer.headers["allow"] = "GET, HEAD"
            return answer
        return None

    def _user(self, scope: Scope) -> User | None:
        """Who asks, by what the proxy says, a bearer token or the cookie; the owner if no token is needed."""
        headers = Headers(scope=scope)
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        kept = cookie_parser(headers.get("cookie", "")).get(_cookie_name(scope), "")
        found = None if self._proxy is None else self._proxy.user(scope)
        if found is None and scheme.lower() == "bearer":
            found = self._find(bearer.strip())
        found = self._find(kept) if found is None and kept else found
        return OWNER if found is None and self._token is None else found

    def _find(self, given: str) -> User | None:
        """Whose token this is."""
        if self._token is not None and hmac.compare_digest(given.encode("utf8", "replace"), self._token.encode()):
            return OWNER
        return None if self._tokens is None else self._tokens.find(given)

    def _cookie(self, scope: Scope, token: str) -> str:
        forwarded = Headers(scope=scope).get("x-forwarded-proto", "")
        is_from_proxy = is_from(scope, (*LOOPBACK, *(() if self._proxy is None else self._proxy.addresses)))
        is_secure = scope.get("scheme") == "https" or (is_from_proxy and forwarded == "https")
        secure = "; Secure" if is_secure else ""
        return f"{_cookie_name(scope)}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _is_for_scripts(path: str) -> bool:
    return path.startswith(("/api/", "/assets/")) or path in ("/openapi.json", MCP_PATH, VITAL_SIGNS_PATH)


def _is_page(scope: Scope) -> bool:
    """Whether the response is shown in a browser."""
    return "text/html" in Headers(scope=scope).get("accept", "") and not _is_for_scripts(_path(scope))


def _without_token(scope: Scope, asked: list[tuple[str, str]]) -> Response | None:
    """Where to redirect a page so that the address bar does not show the token; None if it is not a page."""
    path = _path(scope)
    if _is_for_scripts(path):
        return None
    rest = urlencode([(key, value) for key, value in asked if key != "token"])
    # Relative: it works below any prefix of a proxy.
    return RedirectResponse(f"./{path.rpartition('/')[2]}{'?' + rest if rest else ''}", status_code=303)


def _cookie_name(scope: Scope) -> str:
    """Cookies are shared between ports, so their names contain the port: two servers on one machine stay separate."""
    port = Headers(scope=scope).get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets; empty if it is invalid."""
    found = HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()


def _is_same(origin: str, host: str, forwarded: str | None) -> bool:
    """Whether the requesting page came from this server."""
    own = urlsplit(origin).netloc.lower()
    return bool(own) and own in (host.lower(), (forwarded or host).lower())


def refuse(status: int, text: str, key: str | None = None) -> Response:
    """Return an error as JSON."""
    return Response(encode({"error": text, "key": key}), status, media_type=JSON)
