"""One flag for each field of Config, generated from the dataclass so that the two cannot drift apart."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from vario.config import Config, make_config, read_config
from vario.core.docstrings import field_docs
from vario.core.errors import ConfigError


def _words(text: str) -> list[str]:
    # A regular expression may contain commas.
    return [text] if text.startswith("re:") else [word.strip() for word in text.split(",") if word.strip()]


def _whole_numbers(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _interval(text: str) -> int | dict[str, int]:
    if "=" not in text:
        return int(text)
    pairs = (word.partition("=") for word in _words(text))
    return {quantity.strip(): int(interval) for quantity, _, interval in pairs}


def _rules(text: str) -> list[str] | dict[str, dict[str, float]] | bool:
    if text in ("none", "all"):
        return text == "all"
    if "=" not in text:
        return _words(text)
    chosen: dict[str, dict[str, float]] = {}
    for word in _words(text):
        name, _, value = word.partition("=")
        rule, _, option = name.strip().partition(".")
        chosen.setdefault(rule, {})[option] = float(value)
    return chosen


def _notify(text: str) -> dict[str, Any]:
    key, _, value = text.partition("=")
    if not value:
        raise ValueError
    way, _, option = key.strip().partition(".")
    if not option:
        return {way: value}
    plain: Any = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
    return {way: {option: plain}}


def _machine(text: str) -> str | dict[str, float]:
    if "=" not in text:
        return text
    pairs = (word.partition("=") for word in _words(text))
    return {key.strip(): float(value) for key, _, value in pairs}


def _retention(text: str) -> str | dict[str, Any]:
    """`all`, `steps=N,bytes=X` or `gradient=all,activation.steps=N`."""
    if "=" not in text:
        return text
    chosen: dict[str, Any] = {}
    for word in _words(text):
        key, _, value = word.partition("=")
        quantity, _, option = key.strip().partition(".")
        plain: Any = int(value) if value.strip().isdecimal() else value.strip()
        if option:
            chosen.setdefault(quantity, {})[option] = plain
        else:
            chosen[quantity] = plain
    return chosen


def retention_from(text: str) -> str | dict[str, Any]:
    """Return the option `retention` from the text of a flag, checked."""
    found = make_config({"retention": _retention(text)}).retention
    return found if isinstance(found, str) else dict(found)


def _live(text: str) -> dict[str, Any]:
    """`A,B` or `A.OPTION=X`; a list of series is separated by commas."""
    from vario.core.params import read_value

    key, equals, value = text.partition("=")
    if not equals:
        return {name: {} for name in _words(text)}
    name, _, option = key.strip().partition(".")
    if not option or not value:
        raise ValueError
    return {name: {option: _words(value) if option == "series" else read_value(value)}}


def _actions(text: str) -> dict[str, list[str]]:
    key, _, value = text.partition("=")
    if not value:
        raise ValueError
    return {key.strip(): _words(value)}


def _params(text: str) -> dict[str, Any]:
    from vario.core.params import read_assignments

    return read_assignments(text)


def _joined(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the tables of several flags, nested tables included."""
    joined: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            known = joined.get(key)
            is_table = isinstance(value, dict) and isinstance(known, dict)
            joined[key] = {**known, **value} if is_table else value  # type: ignore[dict-item]
    return joined


PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Sequence[str]": ("A,B", _words),
    "Sequence[str] | Mapping[str, Callable[..., Any]]": ("A,B", _words),
    "Sequence[int]": ("N,N", _whole_numbers),
    "int | Mapping[str, int]": ("N | A=N,B=N", _interval),
    "Sequence[str] | Mapping[str, Any] | bool": ("A,B | A.OPTION=X | none", _rules),
    "Sequence[str] | Mapping[str, Any]": ("A,B | A.OPTION=X", _live),
    "Mapping[str, Any] | Callable[[Any], Any]": ("WAY=TEXT", _notify),
    "Mapping[str, Sequence[str]]": ("WHEN=A,B", _actions),
    "Mapping[str, Any]": ("NAME=VALUE", _params),
    "int": ("N", int),
    "int | None": ("N", int),
    "float": ("X", float),
    "float | str | None": ("SHARE", str),
    "str | Mapping[str, Any]": ("A=X,B=X | all", _retention),
    "float | str | Mapping[str, Any] | None": ("SECONDS | A=X,B=X | off", _machine),
    "str": ("TEXT", str),
    "str | None": ("TEXT", str),
}
"""How to parse a flag's text, by the field's annotation."""


_LISTS = ("Sequence[str]", "Sequence[str] | Mapping[str, Callable[..., Any]]", "Sequence[int]")
_TABLES = (
    "Sequence[str] | Mapping[str, Any]",
    "Mapping[str, Any] | Callable[[Any], Any]",
    "Mapping[str, Sequence[str]]",
    "Mapping[str, Any]",
)


def flag(field_name: str) -> str:
    """Return the flag that sets a field."""
    return "--" + field_name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every field."""
    group = parser.add_argument_group("what to watch", "each flag is also a key of the --config file")
    group.add_argument(
        "--config", metavar="FILE", help="read options from a .toml, .yaml or .json file; flags take precedence"
    )
    docs = field_docs(Config)
    for item in dataclasses.fields(Config):
        kind = str(item.type)
        common: dict[str, Any] = {"dest": f"option_{item.name}", "default": None, "help": _escape(docs[item.name])}
        if kind == "bool":
            group.add_argument(flag(item.name), action=argparse.BooleanOptionalAction, **common)
        else:
            shape, _ = PARSERS[kind]
            group.add_argument(flag(item.name), metavar=shape, action="append", **common)


def _escape(text: str) -> str:
    return text.replace("%", "%%").replace("`", "")


def config_from(arguments: argparse.Namespace, base: Config | None = None) -> Config:
    """Build the Config from the file and the flags, over `base`."""
    base = read_config(arguments.config, base) if arguments.config else base
    given: dict[str, Any] = {}
    for item in dataclasses.fields(Config):
        texts = getattr(arguments, f"option_{item.name}")
        if texts is not None:
            given[item.name] = texts if isinstance(texts, bool) else _value(item.name, str(item.type), texts)
    return make_config(given, base)


def _value(name: str, kind: str, texts: Sequence[str]) -> Any:
    parse = PARSERS[kind][1]
    try:
        values = [parse(text) for text in texts]
    except ValueError:
        raise ConfigError(f"{flag(name)}: cannot parse '{texts[-1]}'. Expected {PARSERS[kind][0]}.") from None
    if kind in _TABLES:
        return _joined(values)
    # Repeated list flags are joined; for anything else the last one wins.
    return [word for words in values for word in words] if kind in _LISTS else values[-1]
