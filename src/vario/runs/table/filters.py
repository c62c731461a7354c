"""Filters of runs: `lr > 0.001 and state = finished`. A small language of its own: nothing of it is executed as code.

filter      conditions joined by `and`, `or`, `not` and parentheses
condition   COLUMN OPERATOR VALUE with = != < <= > >= ~ (contains, or a glob with *) or `in (A, B)`; COLUMN alone
            is true where a run has a value that is not 0 or false
names       as in columns; with other characters in backquotes: `my setting`
values      numbers, words, or texts in quotes
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from vario.core.errors import ConfigError
from vario.runs.table.columns import Columns, Value
from vario.runs.table.summary import RunSummary
from vario.runs.views.name_search import matching

MOST_CHARACTERS = 2000
MOST_DEPTH = 40

Test = Callable[[RunSummary], bool]

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<operator><=|>=|!=|==|!~|[=<>~(),])
    |`(?P<name>[^`]+)`
    |"(?P<double>[^"]*)"
    |'(?P<single>[^']*)'
    |(?P<word>[^\s<>=!~(),`"']+)
    )""",
    re.VERBOSE,
)
_COMPARISONS = ("=", "==", "!=", "<", "<=", ">", ">=", "~", "!~")


@dataclass(frozen=True)
class _Token:
    kind: str
    """operator, name, text or word."""
    text: str
    at: int


def parse_filter(text: str, columns: Columns) -> Test:
    """Return a test of a run; raises ConfigError that says where the text is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"where: expected at most {MOST_CHARACTERS} characters")
    if not text.strip():
        return lambda _: True
    parser = _Parser(text, columns)
    test = parser.either()
    parser.end()
    return test


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(text, at, "an unfinished quote or an unknown character")
        kind = str(match.lastgroup)
        found.append(_Token("text" if kind in ("double", "single") else kind, match[kind], match.start(kind)))
        at = match.end()
    return found


def _wrong(text: str, at: int, what: str) -> ConfigError:
    return ConfigError(f"where: {what} at character {at + 1}: {text[:at]}>>>{text[at : at + 30]}")


class _Parser:
    """Reads a filter from left to right."""

    def __init__(self, text: str, columns: Columns) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self._columns = columns

    def either(self) -> Test:
        tests = [self._both()]
        while self._took_word("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda run: any(test(run) for test in tests)

    def end(self) -> None:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            raise _wrong(self._text, token.at, f"expected `and` or `or`, found '{token.text}'")

    def _both(self) -> Test:
        tests = [self._one()]
        while self._took_word("and"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda run: all(test(run) for test in tests)

    def _one(self) -> Test:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ConfigError("where: nested too deeply")
        try:
            if self._took_word("not"):
                inner = self._one()
                return lambda run: not inner(run)
            if self._took("("):
                inner = self.either()
                self._expect(")")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Test:
        token = self._take("a column")
        if token.kind not in ("word", "name"):
            raise _wrong(self._text, token.at, f"expected a column, found '{token.text}'")
        read = self._columns.find(token.text, "where").read
        if self._took_word("in"):
            self._expect("(")
            wanted = [self._value()]
            while self._took(","):
                wanted.append(self._value())
            self._expect(")")
            return lambda run: any(compare(read(run), "=", value) for value in wanted)
        if self._next < len(self._tokens) and self._tokens[self._next].text in _COMPARISONS:
            operator = self._take("an operator").text
            value = self._value()
            return lambda run: compare(read(run), operator, value)
        return lambda run: _is_true(read(run))

    def _value(self) -> str:
        token = self._take("a value")
        if token.kind == "operator":
            raise _wrong(self._text, token.at, f"expected a value, found '{token.text}'")
        return token.text

    def _take(self, what: str) -> _Token:
        if self._next >= len(self._tokens):
            raise _wrong(self._text, len(self._text), f"expected {what}")
        self._next += 1
        return self._tokens[self._next - 1]

    def _took(self, operator: str) -> bool:
        is_next = self._next < len(self._tokens) and self._tokens[self._next].kind == "operator"
        if is_next and self._tokens[self._next].text == operator:
            self._next += 1
            return True
        return False

    def _took_word(self, word: str) -> bool:
        is_next = self._next < len(self._tokens) and self._tokens[self._next].kind == "word"
        if is_next and self._tokens[self._next].text.lower() == word:
            self._next += 1
            return True
        return False

    def _expect(self, operator: str) -> None:
        if not self._took(operator):
            at = self._tokens[self._next].at if self._next < len(self._tokens) else len(self._text)
            raise _wrong(self._text, at, f"expected '{operator}'")


def _is_true(value: Value) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    return value is not None and value not in (0, False, "", "false")


def compare(value: Value, operator: str, wanted: str) -> bool:
    """Whether a value fulfils a condition: as numbers where both are, else as texts, upper and lower case alike."""
    if operator in ("!=", "!~"):
        return not compare(value, {"!=": "=", "!~": "~"}[operator], wanted)
    if value is None:
        return wanted.lower() in ("none", "null") and operator in ("=", "==")
    if operator == "~":
        return bool(matching([_text(value)], wanted))
    mine, theirs = _as_number(value), _as_number(wanted)
    if mine is not None and theirs is not None:
        if operator in ("=", "=="):
            return (
                mine == theirs or math.isclose(mine, theirs, rel_tol=1e-9) or (math.isnan(mine) and math.isnan(theirs))
            )
        return _ordered(mine, operator, theirs)
    if operator in ("=", "=="):
        return _text(value).lower() == wanted.lower()
    return mine is None and theirs is None and _ordered(_text(value).lower(), operator, wanted.lower())


def _ordered(a: float | str, operator: str, b: float | str) -> bool:
    if operator == "<":
        return a < b  # type: ignore[operator]
    if operator == "<=":
        return a <= b  # type: ignore[operator]
    return a > b if operator == ">" else a >= b  # type: ignore[operator]


def _as_number(value: Value) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _text(value: Value) -> str:
    return str(value)
