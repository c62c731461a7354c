"""Finds names by what is typed into a search box: words, globs or a regular expression.

The dashboard filters by the same rule (`matches` in frontend/src/search.ts).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REGEX = "re:"


def matching(names: Iterable[str], text: str) -> list[str]:
    """Return the names that a search finds; upper and lower case are the same.

    Words are found in any order. A word with `*` or `?` is a glob for the whole name. After `re:` follows a regular
    expression, which is found anywhere in a name; one that is not valid finds nothing.
    """
    known = list(names)
    if text.startswith(REGEX):
        return _by_expression(known, text.removeprefix(REGEX))
    words = text.lower().split()
    plain = [word for word in words if not _is_glob(word)]
    patterns = [re.compile(_glob(word), re.DOTALL) for word in words if _is_glob(word)]
    return [
        name
        for name in known
        if all(word in name.lower() for word in plain) and all(each.fullmatch(name.lower()) for each in patterns)
    ]


def _is_glob(word: str) -> bool:
    return "*" in word or "?" in word


def _glob(word: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(part) or re.escape(part) for part in re.split(r"([*?])", word))


def _by_expression(names: list[str], expression: str) -> list[str]:
    """Arrow's expressions take linear time, whatever is typed: the search may come from another machine."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.match_substring_regex(pa.array(names, pa.string()), expression, ignore_case=True)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return []
    return [name for name, is_found in zip(names, found.to_pylist(), strict=True) if is_found]
