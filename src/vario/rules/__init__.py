"""Rules: each looks at the steps of a run as they come and yields what it finds.

A module in a folder below adds rules by decorating functions with `rule`; so does any function handed to
`vario.watch(rules=[...])`, and other packages' entry points in the group `vario.rules`. See docs/rules.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vario.core.errors import ConfigError
from vario.core.registry import Registry
from vario.rules.api.rule import Finding, Rule, rule
from vario.rules.api.step_view import RanksStep, Rows, Step

RULES: Registry[Rule] = Registry("rules", __name__, lambda part: part.name if isinstance(part, Rule) else None)


@dataclass(frozen=True)
class Chosen:
    """A rule and the options it is used with."""

    rule: Rule
    options: Mapping[str, Any]


def choose(wanted: Sequence[str | Rule] | Mapping[str, Any] | bool | None) -> list[Chosen]:
    """The rules a config asks for: all by default, those of a list, or all with some options or some switched off.

    `["non_finite", my_rule]`, `{"grad_spike": {"threshold": 10}, "drift": False}`, `False` or `[]` for none.
    """
    if wanted is None or wanted is True:
        return [Chosen(found.part, {}) for found in RULES]
    if wanted is False:
        return []
    if isinstance(wanted, Mapping):
        return list(_with_options(wanted))
    if isinstance(wanted, (str, Rule)):
        wanted = [wanted]
    if not isinstance(wanted, Iterable):
        raise ConfigError(f"rules: expected names, a table of options, true or false, got {wanted!r}")
    return [Chosen(named(found), {}) for found in wanted]


def to_options(chosen: Iterable[Chosen]) -> dict[str, Any]:
    """A choice as plain values that choose the same again; rules that only exist in a process are left out."""
    wanted = {found.rule.name: dict(found.options) or True for found in chosen}
    return {found.name: wanted.get(found.name, False) for found in RULES}


def named(name: str | Rule) -> Rule:
    """A rule by its name, as `non_finite` or `NonFinite`; rules themselves are passed on."""
    if isinstance(name, Rule):
        return name
    if not isinstance(name, str):
        raise ConfigError(
            f"rules: expected a name or a rule, got {name!r}. Turn a function into a rule with @vario.rules.rule(...)"
        )
    spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() if name not in RULES else name
    if spelled not in RULES:
        raise ConfigError(RULES.refusal(name, "rules"))
    return RULES.get(spelled)


def _with_options(wanted: Mapping[str, Any]) -> Iterable[Chosen]:
    options: dict[str, Any] = {}
    for key, value in wanted.items():
        if not isinstance(value, (bool, Mapping)):
            raise ConfigError(f"rules.{key}: expected a table of its options, true or false, got {value!r}")
        found = named(key)
        options[found.name] = value
        if isinstance(value, Mapping):
            found.check_options(value)
    for registered in RULES:
        value = options.get(registered.name, True)
        if value is not False:
            yield Chosen(registered.part, value if isinstance(value, Mapping) else {})


__all__ = ["RULES", "Chosen", "Finding", "RanksStep", "Rows", "Rule", "Step", "choose", "named", "rule", "to_options"]
