"""Requests of any shape, to a server over whole and damaged runs: each gets a good answer or a refusal.

They go to the application itself, as a server would hand them over, so that nothing on the way tidies them up.
"""

import asyncio
import json
import re
import shutil
from urllib.parse import quote

import pytest
from cases import batches, run_batch
from hostile_runs import KINDS, seeds, spoiled  # noqa: F401 - a fixture

from vario.web.app import all_endpoints, make_app

UNEXPECTED = re.compile(r"cannot be read: [A-Z]\w*(Error|Exception)\b")
"""What the server says of an error that no reader raised on purpose."""
REAL = {
    "run": ("run", "run", "run", "whole", "../run", "", "run/rank0", "%2e%2e"),
    "a": ("run", "whole"),
    "b": ("whole", "run", "nowhere"),
    "quantity": ("gradient", "weight", "scalar", "gradiant"),
    "statistic": ("norm", "mean", "nans", "value", ""),
    "series": ("scalar|loss|value", "gradient|head.weight|norm", "weight|head|", "|||"),
    "rank": ("0", "1", "all", "each", "spread", "7"),
    "cursor": ("0.10.0", "0.-1.0", "3.2.1", "0.999999999.0", "x"),
    "target": ("head.weight", "loss", "step_seconds"),
    "format": ("json", "binary", "x"),
    "replay": ("0", "1"),
    "search": ("head", "re:(", "re:(a+)+$", "*"),
}
NUMBERS = ("0", "1", "5", "-1", "12", "9" * 30, "1e3", "NaN", "0x10", " 5", "\u0665")
TEXTS = ("", "\0", "\x1b[2J", "\ud800", "x" * 3000, "../../etc/passwd", "<script>", "%", "\u202e", "|" * 99)
PATHS = ("/", "/api", "/api/", "/openapi.json", "/healthz", "/assets/", "/assets/../app.py", "/run/run", "/favicon.ico")
HEADERS = (b"host", b"origin", b"cookie", b"authorization", b"accept-encoding", b"if-none-match", b"range", b"referer")
TOKEN = "a-token-that-nobody-guesses-0123456789"


async def _ask(app, scope, body):
    sent = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if not parts:
            # Whoever asked stays: a stream ends when its client goes.
            await asyncio.Event().wait()
        return parts.pop()

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent


def ask(app, path, query=b"", method="GET", headers=(), body=b"", raw_path=None):
    """Status, headers and body of an answer."""
    given = dict(headers)
    given.setdefault(b"host", b"localhost")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": raw_path or quote(path, errors="replace").encode(),
        "root_path": "",
        "query_string": query,
        "headers": sorted(given.items()),
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
    start, *rest = asyncio.run(_ask(app, scope, body))
    content = b"".join(message.get("body", b"") for message in rest)
    return start["status"], {key.lower(): value for key, value in start["headers"]}, content


def check(answer):
    status, headers, content = answer
    assert status < 500, (status, content[:300])
    assert headers[b"x-content-type-options"] == b"nosniff"
    for name, value in headers.items():
        assert b"\n" not in name + value, "a header that holds another one"
        assert b"\r" not in name + value
    if b"content-encoding" in headers and headers[b"content-encoding"] != b"identity":
        return
    if headers.get(b"content-type", b"").startswith(b"application/json") and content:
        json.loads(content, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert not UNEXPECTED.search(content.decode("latin-1")), content[:500]


def query_of(chance, endpoint, wildness):
    """Parameters for an address: usual ones, and now and then anything else."""
    found = []
    for parameter in endpoint.parameters:
        usual = REAL.get(parameter.name, NUMBERS)
        if parameter.name == "once":
            usual = ("1",)
        needed = parameter.is_required or parameter.name in ("once", "quantity")
        if not needed and chance.random() < 0.5:
            continue
        value = chance.choice(usual)
        if parameter.name != "once" and chance.random() < wildness:
            value = chance.choice(NUMBERS + TEXTS)
        found += [(parameter.name, value)] * chance.choice((1, 1, 1, 1, 2 if chance.random() < wildness else 1))
    return found


def encoded(pairs):
    return "&".join(f"{quote(key)}={quote(value, errors='surrogatepass')}" for key, value in pairs).encode()


@batches("answer")
def test_a_damaged_run_costs_its_own_answer_and_is_told_of(seeds, tmp_path, batch, request):  # noqa: F811
    shutil.copytree(seeds / KINDS[batch % len(KINDS)], tmp_path / "served" / "whole")
    endpoints = all_endpoints()
    left = 0
    app = None

    def attempt(chance, story):
        nonlocal left, app
        if not left:
            spoiled(seeds, tmp_path / "copy", chance, story)
            shutil.rmtree(tmp_path / "served" / "run", ignore_errors=True)
            (tmp_path / "copy" / "run").rename(tmp_path / "served" / "run")
            app, left = make_app(tmp_path / "served"), 5
        left -= 1
        endpoint = chance.choice(endpoints)
        query = query_of(chance, endpoint, wildness=0.05)
        story.append(f"{endpoint.path} {query!a}")
        check(ask(app, endpoint.path, encoded(query)))
        if chance.random() < 0.1:
            status, _, content = ask(app, "/api/settings", b"run=whole")
            assert status == 200, content

    run_batch("answer", batch, request, attempt)


@batches("request")
def test_a_request_of_any_shape_is_answered_or_refused(seeds, batch, request):  # noqa: F811
    endpoints = all_endpoints()
    apps = {
        "open": make_app(seeds, hosts=("localhost", "127.0.0.1")),
        "closed": make_app(seeds, token=TOKEN, hosts=("localhost", "127.0.0.1")),
    }

    def attempt(chance, story):
        kind = chance.choice(("open", "open", "closed"))
        endpoint = chance.choice(endpoints)
        query = query_of(chance, endpoint, wildness=0.6)
        if chance.random() < 0.2:
            query.append((chance.choice(("x", "token", "run", "")), chance.choice(TEXTS)))
        path = endpoint.path
        if chance.random() < 0.4:
            path = chance.choice(PATHS) + chance.choice(("", "/", *TEXTS)).encode(errors="replace").decode()
        raw = encoded(query)
        if endpoint.is_stream and path == endpoint.path:
            raw = re.sub(rb"once=[^&]*", b"once=1", raw)
        elif chance.random() < 0.15:
            raw = chance.randbytes(chance.choice((1, 20, 3000)))
        headers = {chance.choice(HEADERS): _header(chance) for _ in range(chance.choice((0, 0, 1, 3)))}
        method = chance.choice(("GET",) * 6 + ("HEAD", "POST", "OPTIONS", "TRACE", "PUT", "X" * 50))
        body = chance.randbytes(chance.choice((0, 0, 100)))
        story.append(f"{kind} {method} {path!a:.80} {raw!a:.300} {headers!a:.300}")
        answer = ask(apps[kind], path, raw, method, headers.items(), body)
        check(answer)
        has_token = TOKEN.encode() in raw or any(TOKEN.encode() in value for value in headers.values())
        if kind == "closed" and not has_token and path.startswith("/api"):
            assert answer[0] in (400, 401, 403, 405), answer[0]

    run_batch("request", batch, request, attempt)


def _header(chance):
    usual = (
        b"localhost",
        b"127.0.0.1:8000",
        b"[::1]",
        b"http://localhost:8000",
        b"gzip",
        b"*",
        b"bytes=0-1",
        b"Bearer x",
    )
    odd = (b"", b"\xff\xfe", b"evil.com", b"[::1].evil.com", b"localhost:x.evil.com", b"a" * 9000, b"vario_token=x; ;=")
    if chance.random() < 0.2:
        return chance.randbytes(30).replace(b"\r", b"").replace(b"\n", b"")
    return chance.choice(usual + odd + (f"vario_token={TOKEN}".encode(), f"Bearer {TOKEN}".encode()))
