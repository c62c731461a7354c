"""Sends incidents to a webhook: Slack, Discord, or anything that accepts JSON."""

from __future__ import annotations

import html
import json
import threading
import urllib.error
import urllib.request
from typing import Any, ClassVar
from urllib.parse import urlsplit

from vario.core.errors import ConfigError
from vario.notices.message import Message
from vario.notices.secrets import MASK, check_text, is_named, reveal

TIMEOUT_SECONDS = 10.0
PAUSE_SECONDS = 0.5
"""The pause before the second and last attempt."""
MOST_CHARACTERS = 1900
"""Discord accepts 2,000."""
_WORDS_ONLY = ("slack.com", "discord.com", "discordapp.com")


class Webhook:
    """POSTs JSON to a URL: `text` for Slack, `content` for Discord, and the whole incident for others."""

    name: ClassVar[str] = "webhook"

    def __init__(self, options: str, rank: int | None = None) -> None:
        self._url = reveal(options, "notify.webhook")
        _check_url(self._url)
        # Its own opener, with the current proxies, not those of the first caller in this process.
        self._opener = urllib.request.build_opener()

    @staticmethod
    def check(options: Any) -> None:
        """Raise ConfigError for anything that is not an http(s) URL."""
        check_text(options, "notify.webhook", "a URL")
        if not is_named(options):
            _check_url(options)

    @staticmethod
    def shown(options: Any) -> str:
        """Return only the host: anybody who knows the full URL can post there."""
        if is_named(options):
            return str(options)
        url = urlsplit(options)
        return f"{url.scheme}://{url.hostname}/{MASK}"

    def send(self, message: Message) -> None:
        """Send it, and retry once if the server or the network fails."""
        body = json.dumps(self._content(message), allow_nan=False).encode()
        try:
            self._post(body)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                # Retrying the same request would fail again.
                if error.code < 500 and error.code != 429:
                    raise
            threading.Event().wait(PAUSE_SECONDS)
            self._post(body)

    def _content(self, message: Message) -> dict[str, Any]:
        line = message.line[:MOST_CHARACTERS]
        host = urlsplit(self._url).hostname or ""
        if any(host == known or host.endswith(f".{known}") for known in _WORDS_ONLY):
            return {
                "text": html.escape(line, quote=False),
                "content": line,
                "allowed_mentions": {"parse": []},
            }
        return {**message.to_json(), "text": line, "content": line}

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "vario"}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                response.read(1024)
        except urllib.error.HTTPError as error:
            error.close()
            raise


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or any(character.isspace() for character in url):
        # Without the value, which works like a password.
        raise ConfigError("notify.webhook: expected a URL that begins with http:// or https://")
