"""Who asks: by the server's own token, by a token of the token file, or by a name that a proxy has checked."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import Scope

from vario.core.errors import ConfigError, RunCorrupt
from vario.core.run_files import read_bytes
from vario.core.text import reason

log = logging.getLogger("vario")

TOKEN_LETTERS = re.compile(r"[A-Za-z0-9_.~-]+")
LEAST_TOKEN, LEAST_LETTERS = 24, 10
"""The shortest token, and the fewest different characters, if other machines can reach the server."""
MOST_FILE_BYTES = 1 << 20
MOST_NAME = 100
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
WRITE = "write"
USER = "vario.user"
"""Where the scope of a request has its user."""
IS_ALLOWED = "vario.is_allowed"
"""Where it has a function that says whether its user may still read: a token may be revoked while a page is open."""


@dataclass(frozen=True)
class User:
    """Who asks."""

    name: str = ""
    """Empty for whoever has the server's own token."""
    may_write: bool = True
    """Whether notes can be changed, if the server is writable at all."""


OWNER = User()


def is_weak(token: str) -> bool:
    """Whether a token could be guessed by a machine that can reach the server."""
    return len(token) < LEAST_TOKEN or len(set(token)) < LEAST_LETTERS


class TokenFile:
    """Tokens by name, a line each: `NAME TOKEN`, or `NAME TOKEN write`. A token counts as long as its line is there."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._path = path
        self._stamp = self._look()
        self._known = self._read()

    def find(self, token: str) -> User | None:
        """Return whose token this is; reads the file again if it has changed."""
        self._refresh()
        given, found = _digest(token), None
        for digest, user in self._known:
            # All of them, however early one fits: how long it takes says nothing.
            if hmac.compare_digest(digest, given):
                found = user
        return found

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._known = self._read()
        except ConfigError as error:
            self._known = ()
            log.warning("%s. Until that is repaired, no token of this file counts.", error)

    def _look(self) -> object:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode

    def _read(self) -> tuple[tuple[bytes, User], ...]:
        try:
            mode = os.stat(self._path).st_mode
            text = read_bytes(self._path.resolve(), 1, MOST_FILE_BYTES).decode("utf8")
        except (OSError, RunCorrupt, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file: {self._path} cannot be read: {reason(error)}") from error
        if mode & stat.S_IRWXO:
            raise ConfigError(f"--token-file: every user of this machine can open it. chmod 600 {self._path}")
        found = tuple(self._lines(text))
        if len({digest for digest, _ in found}) < len(found) or len({user.name for _, user in found}) < len(found):
            raise ConfigError(f"--token-file: {self._path}: each name and each token may occur once")
        return found

    def _lines(self, text: str) -> Iterator[tuple[bytes, User]]:
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            place = f"--token-file: {self._path}, line {number}"
            if len(words) not in (2, 3) or words[2:] not in ([], [WRITE]):
                raise ConfigError(f"{place}: expected NAME TOKEN, or NAME TOKEN {WRITE}")
            name, token = words[:2]
            if checked_name(name) is None or TOKEN_LETTERS.fullmatch(token) is None or is_weak(token):
                raise ConfigError(
                    f"{place}: a token has at least {LEAST_TOKEN} letters, digits or - _ . ~, {LEAST_LETTERS} of them "
                    "different, and a name at most 100 characters"
                )
            yield _digest(token), User(name, len(words) == 3)


@dataclass(frozen=True)
class Proxy:
    """A proxy that has checked who asks, and says so in a header."""

    header: str
    addresses: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    """From where it connects; from anywhere else the header says nothing."""

    def user(self, scope: Scope) -> User | None:
        """Return the user that the proxy names."""
        if not is_from(scope, self.addresses):
            return None
        told = Headers(scope=scope).getlist(self.header)
        name = checked_name(told[0]) if len(told) == 1 else None
        return None if name is None else User(name)


def make_proxy(header: str | None, addresses: Sequence[str]) -> Proxy | None:
    """Return the proxy to trust, if any; raises ConfigError for a wrong option."""
    if header is None:
        if addresses:
            raise ConfigError("--proxy: needs --trust-header, the header with the user's name")
        return None
    if not addresses:
        raise ConfigError("--trust-header: needs --proxy, the address from which the proxy connects")
    if HEADER.fullmatch(header) is None or header.lower() in ("authorization", "cookie", "host", "origin"):
        raise ConfigError(f"--trust-header: expected the name of a header such as X-Remote-User, got '{header}'")
    try:
        return Proxy(header, tuple(ipaddress.ip_network(address) for address in addresses))
    except ValueError as error:
        raise ConfigError(f"--proxy: expected an address or a network such as 10.0.0.0/24: {error}") from error


LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1"))


def is_from(scope: Scope, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Whether the other end of a connection is in one of these networks."""
    try:
        address = ipaddress.ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address.version == network.version and address in network for network in networks)


def checked_name(text: str) -> str | None:
    """Return a name that can be shown; None for an empty or an odd one."""
    name = text.strip()
    return name if 0 < len(name) <= MOST_NAME and name.isprintable() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf8", "replace")).digest()
