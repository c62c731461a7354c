"""Open the dashboard: all runs in a folder, live, in a browser.

Listens on this machine only. The printed link contains a token that every request needs; set VARIO_TOKEN to choose it.
It never changes a run; notes on runs (name, tags, star, ...) are kept beside them. From another machine:
`ssh -L 8765:localhost:8765 HOST`, then open the printed link.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.cli.output import say
from vario.core.errors import ConfigError, MissingExtra
from vario.core.urls import is_url

if TYPE_CHECKING:
    from vario.web.server.listening import Listening

EXAMPLES = """
vario serve
vario serve s3://bucket/runs
vario serve outputs --port 9000 --no-browser
vario serve --uds dashboard.sock
vario serve /data/runs /data/sweeps
vario serve --token-file tokens.txt --host 0.0.0.0
vario serve --port 0 --json
vario vario_runs/demo
"""

TOKEN_VARIABLE = "VARIO_TOKEN"
SCREEN_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the folder and the address."""
    shared.add_directories(parser, "a run, or a folder with runs in it or its subfolders")
    parser.add_argument("--port", type=int, metavar="N", help="port (default: the first free one from 8765)")
    parser.add_argument(
        "--host", metavar="H", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--uds", metavar="PATH", help="listen on a Unix socket that only you can open, instead of a port"
    )
    parser.add_argument("--no-token", dest="token", action="store_false", help="require no token; loopback only")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="more tokens, of people who may only read: a line NAME TOKEN each; read again when it changes",
    )
    parser.add_argument(
        "--trust-header", metavar="NAME", help="the header in which a proxy says who asks, such as X-Remote-User"
    )
    parser.add_argument(
        "--proxy",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="the address or network from which that proxy connects; repeatable",
    )
    parser.add_argument(
        "--root-path", metavar="P", default="", help="prefix under which a proxy serves it, such as /vario"
    )
    parser.add_argument(
        "--read-only",
        action=argparse.BooleanOptionalAction,
        help="refuse changes of notes on runs (default: only where other machines or a proxy can connect)",
    )
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="print the link only")
    parser.add_argument("--json", action="store_true", help="print the link as one line of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        from vario.web import app
        from vario.web.server import security, users
        from vario.web.server.listening import listen, listen_on_path, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("starlette", "uvicorn", "anyio"):
            raise MissingExtra("the dashboard", "web") from error
        raise
    folders = shared.named_folders(arguments.directories)
    is_private = arguments.uds is not None or security.is_loopback(arguments.host)
    if not arguments.token and not is_private:
        raise ConfigError(f"--no-token: {arguments.host} can be reached from other machines, so a token is required")
    if arguments.token_file is not None and not arguments.token:
        raise ConfigError("--token-file: with --no-token nobody needs one. Leave out one of the two.")
    tokens = None if arguments.token_file is None else users.TokenFile(Path(arguments.token_file))
    proxy = users.make_proxy(arguments.trust_header, arguments.proxy)
    token = security.make_token(os.environ.get(TOKEN_VARIABLE), is_private) if arguments.token else None
    root_path = checked_root(arguments.root_path)
    host = "localhost" if arguments.uds is not None else arguments.host
    listening = listen_on_path(Path(arguments.uds)) if arguments.uds is not None else listen(host, arguments.port)
    # Ctrl-C is the normal way to end it, not an error.
    with contextlib.suppress(KeyboardInterrupt):
        _tell(arguments, folders, listening, token, root_path)
        is_alone = is_private and proxy is None
        is_writable = is_alone if arguments.read_only is None else not arguments.read_only
        # What is written beside a copy of runs elsewhere would be lost with the copy.
        is_writable = is_writable and not any(is_url(shared.place_of(text)) for text in arguments.directories)
        made = app.make_app(folders, token, security.known_hosts(host), is_writable, tokens, proxy)
        serve(made, listening, root_path)
    return 0


def _tell(
    arguments: argparse.Namespace,
    folders: Path | dict[str, Path],
    listening: Listening,
    token: str | None,
    root_path: str,
) -> None:
    """Print the link, and open it if someone is at the terminal."""
    if listening.passed_over is not None:
        print(f"Port {listening.passed_over} is in use; using {listening.port}.", file=sys.stderr)
    url = listening.url(token, root_path)
    if arguments.json:
        link = {"url": url, "host": listening.host, "port": listening.port, "uds": arguments.uds, "token": token}
        print(json.dumps(link), flush=True)
    else:
        names = ", ".join(map(shared.place_of, arguments.directories)) or shared.DEFAULT_DIRECTORY
        say(f"Dashboard for {names}:\n\n  {url}\n\nPress Ctrl-C to stop.")
    if arguments.browser and listening.path is None and _has_browser():
        import webbrowser

        webbrowser.open(url)


def _has_browser() -> bool:
    """Whether there is a screen: over ssh, Python would open a text browser inside the terminal."""
    has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, SCREEN_VARIABLES))
    return sys.stdout.isatty() and has_screen


def checked_root(text: str) -> str:
    """Return a prefix that starts with a slash and does not end with one."""
    found = text.rstrip("/")
    if found and (not found.startswith("/") or "//" in found or any(word in found for word in '?#\\ "<>')):
        raise ConfigError(f"--root-path: expected something like /vario, got '{text}'")
    return found
