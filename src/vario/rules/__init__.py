"""Rules: each one checks the steps of a run as they arrive and yields findings.

Modules in the folders below add rules by decorating functions with `rule`. Pass your own to `vario.watch(rules=[...])`,
or publish them through the entry point group `vario.rules`. See docs/rules.md.
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
    """Return the rules a config asks for: all by default, a list of them, or all with some options changed or off.

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
    """Return plain values that `choose` turns into the same rules; skips rules defined only in this process."""
    wanted = {found.rule.name: dict(found.options) or True for found in chosen}
    return {found.name: wanted.get(found.name, False) for found in RULES}


def named(name: str | Rule) -> Rule:
    """Look up a rule by name, `non_finite` or `NonFinite`; a rule is returned as it is."""
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
