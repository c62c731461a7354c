"""Which rules a command uses: --rules, --rule, --set and --config."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vario.core.errors import ConfigError

if TYPE_CHECKING:
    from vario.rules import Chosen
    from vario.runs.run import Run


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the flags for rules and their options."""
    parser.add_argument(
        "--rules", metavar="A,B", help="replay only these; `all` for every rule (default: those of the run)"
    )
    parser.add_argument(
        "--rule", metavar="A", action="append", default=[], help="like --rules, one at a time; repeatable"
    )
    parser.add_argument(
        "--set",
        metavar="A.OPTION=X",
        action="append",
        default=[],
        help="set an option of a rule; `vario rules` lists them",
    )
    parser.add_argument("--config", metavar="FILE", help="read `rules` from a .toml, .yaml or .json config file")


def is_chosen(arguments: argparse.Namespace) -> bool:
    """Whether rules or their options were given."""
    return bool(arguments.rules is not None or arguments.rule or arguments.set or arguments.config is not None)


def chosen_rules(arguments: argparse.Namespace, run: Run) -> list[Chosen]:
    """Return the requested rules, or those the run was watched with."""
    from vario.config import read_config
    from vario.rules import Chosen, choose, named
    from vario.runs.findings.replay import rules_of

    words = [word.strip() for text in [arguments.rules or "", *arguments.rule] for word in text.split(",")]
    names = [word for word in words if word]
    if names and arguments.config:
        raise ConfigError("--config: cannot be combined with --rules or --rule")
    if names:
        found = choose(None) if names == ["all"] else choose(names)
    elif arguments.config:
        found = choose(read_config(arguments.config).rules)
    else:
        found = rules_of(run)
    if not found:
        raise ConfigError("rules: no rule is left. `vario rules` lists them.")
    options: dict[str, dict[str, Any]] = {}
    for text in arguments.set:
        place, equals, value = text.partition("=")
        name, dot, option = place.strip().partition(".")
        if not (equals and dot):
            raise ConfigError(
                f"--set: cannot parse '{text}'. Expected RULE.OPTION=VALUE, for example grad_spike.factor=4."
            )
        rule = named(name)
        if rule.name not in {entry.rule.name for entry in found}:
            raise ConfigError(f"--set: rule '{rule.name}' is not in use. Add it to --rules.")
        options.setdefault(rule.name, {})[option] = _value(text, value.strip())
        rule.check_options(options[rule.name])
    return [Chosen(entry.rule, {**entry.options, **options.get(entry.rule.name, {})}) for entry in found]


def _value(text: str, value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return float(value) if any(mark in value.lower() for mark in (".", "e", "n")) else int(value)
    except ValueError:
        raise ConfigError(f"--set: cannot parse '{text}'. Expected a number, true or false after =.") from None
