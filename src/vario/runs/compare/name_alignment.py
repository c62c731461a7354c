"""Maps names of one run to another: explicit renames, or the wrappers that trainers put around a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from vario.core.errors import ConfigError

ARROW = "=>"
WRAPPERS = ("module.", "_orig_mod.", "model.", "_forward_module.", "_fsdp_wrapped_module.", "base_model.")
"""Prefixes that wrapping a model adds to its names."""

Translate = Callable[[str], str]


def translation(renames: Iterable[str]) -> Translate:
    """Return a function from names of the first run to those of the second, for rules such as `old.*=>new.*`.

    Each side is a name, a prefix that ends in a dot, a glob, or `re:` and a regular expression.
    """
    rules = [_rule(text) for text in renames]

    def translate(name: str) -> str:
        for expression, replacement in rules:
            changed, count = expression.subn(replacement, name, count=1)
            if count:
                return changed
        return name

    return translate


def _rule(text: str) -> tuple[re.Pattern[str], str]:
    old, arrow, new = (part.strip() for part in text.partition(ARROW))
    if not arrow or not old:
        raise ConfigError(f"rename: cannot parse '{text}'. Expected 'old=>new', for example 'model.*=>encoder.*'.")
    if old.startswith("re:"):
        try:
            expression = re.compile(rf"^(?:{old[3:]})$")
            expression.sub(new, "")
        except (re.error, IndexError) as error:
            raise ConfigError(f"rename: '{text}' is not a valid regular expression and replacement: {error}") from error
        return expression, new
    if "*" in old:
        if new.count("*") > old.count("*"):
            raise ConfigError(f"rename: '{text}' has more * on its right than on its left")
        pieces = new.split("*")
        named = "".join(
            piece.replace("\\", r"\\") + (rf"\g<{number}>" if number < len(pieces) else "")
            for number, piece in enumerate(pieces, 1)
        )
        return re.compile("^" + "(.*)".join(map(re.escape, old.split("*"))) + "$"), named
    # A module's name includes everything in it.
    end = "" if old.endswith(".") else r"(?=$|[.:])"
    return re.compile("^" + re.escape(old) + end), new.replace("\\", r"\\")


def find_translation(ours: Sequence[str], theirs: Collection[str]) -> tuple[Translate, str]:
    """Find the wrapper to strip or add so that most names match, and its description; none if none helps."""
    known = set(theirs)

    def agreeing(translate: Translate) -> int:
        translated = {translate(name) for name in ours}
        return len(translated & known) if len(translated) == len(set(ours)) else -1

    best: tuple[Translate, str] = (lambda name: name, "")
    most = agreeing(best[0])
    without = {_bare(name): name for name in theirs}
    candidates: list[tuple[Translate, str]] = [(lambda name: without.get(_bare(name), name), "removing wrappers")]
    for wrapper in WRAPPERS:
        candidates.append((lambda name, wrapper=wrapper: wrapper + name, f"{ARROW}{wrapper}"))  # type: ignore[misc]
        candidates.append((lambda name, wrapper=wrapper: name.removeprefix(wrapper), f"{wrapper}{ARROW}"))  # type: ignore[misc]
    for translate, called in reversed(candidates):
        if (found := agreeing(translate)) > most:
            best, most = (translate, called), found
    return best


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if f"{part}." not in WRAPPERS)
