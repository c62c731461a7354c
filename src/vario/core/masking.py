"""Keeps secrets out of what is stored: a run folder is shared."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

MASK = "***"
SECRET = re.compile(
    r"(^|[_.\-])(token|secret|password|passwd|passphrase|pwd|(api|access|secret|private)[_-]?key|credentials?|auth|"
    r"cookie|dsn)$",
    re.IGNORECASE,
)
"""Names whose values are not stored."""
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])("
    r"hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"xox[abeprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""How widely used kinds of keys look."""
_IN_ADDRESS = re.compile(r"//[^/@\s:]*:?[^/@\s]*@")
_ASSIGNED = re.compile(
    r"((?:token|secret|passw(?:or)?d|passphrase|(?:api|access|secret|private)[_-]?key)[\"']?\s*[=:]\s*[\"']?)"
    r"(?!\d+\b)([^\s\"'&,;]{6,})",
    re.IGNORECASE,
)
_FOLDERS = ("PWD", "OLDPWD")
"""Variables that are called like passwords and are none."""
LEAST_SECRET = 8
"""The shortest value of a variable that is looked for in texts: shorter ones are words."""


def masked(text: str, values: Sequence[str] = ()) -> str:
    """Return a text with what looks like a secret masked, and with these values masked."""
    for value in values:
        text = text.replace(value, MASK)
    text = _IN_ADDRESS.sub(f"//{MASK}@", _TOKEN.sub(MASK, text))
    return _ASSIGNED.sub(rf"\g<1>{MASK}", text)


def masked_arguments(words: Sequence[str]) -> list[str]:
    """Return a command line with the values of secret options masked."""
    found: list[str] = []
    is_value = False
    for word in words:
        if is_value and not word.startswith("-"):
            found.append(MASK)
            is_value = False
            continue
        name, equals, _ = word.partition("=")
        is_secret = SECRET.search(name) is not None
        is_value = is_secret and not equals and name.startswith("-")
        found.append(f"{name}={MASK}" if is_secret and equals else masked(word))
    return found


def secret_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the values of secret environment variables, longest first, to mask them wherever they are printed."""
    secret = {name: value for name, value in environment.items() if SECRET.search(name) and name not in _FOLDERS}
    found = {value for value in secret.values() if len(value) >= LEAST_SECRET}
    return sorted(found, key=len, reverse=True)
