"""Which names somebody means who typed a few words."""

from __future__ import annotations

import re
from collections.abc import Iterable


def matching(names: Iterable[str], text: str) -> list[str]:
    """The names that have all words of a text, in any order; `*` in a word, which then is the whole name, is anything.

    The page filters what it has by the same rule (`matches` in frontend/src/search.ts).
    """
    words = text.lower().split()
    plain = [word for word in words if "*" not in word]
    patterns = [re.compile(".*".join(map(re.escape, word.split("*")))) for word in words if "*" in word]
    return [
        name
        for name in names
        if all(word in name.lower() for word in plain) and all(each.fullmatch(name.lower()) for each in patterns)
    ]
