"""Which rules a command is to use: --rules, --rule, --set and --config, as a config would say it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vario.core.errors import ConfigError

if TYPE_CHECKING:
    from vario.rules import Chosen
    from vario.runs.run import Run


def add_rules(parser: argparse.ArgumentParser) -> None:
    """The rules to use, and their options."""
    parser.add_argument("--rules", metavar="A,B", help="only these; `all` for every rule (default: those of the run)")
    parser.add_argument("--rule", metavar="A", action="append", default=[], help="like --rules, one by one")
    parser.add_argument(
        "--set",
        metavar="A.OPTION=X",
        action="append",
        default=[],
        help="an option of a rule, as `vario rules` lists it",
    )
    parser.add_argument("--config", metavar="FILE", help="read `rules` from a .toml, .yaml or .json config file")


def chosen_rules(arguments: argparse.Namespace, run: Run) -> list[Chosen]:
    """The rules that were asked for, else those the run was watched with."""
    from vario.config import read_config
    from vario.rules import Chosen, choose, named
    from vario.runs.findings.replay import rules_of

    words = [word.strip() for text in [arguments.rules or "", *arguments.rule] for word in text.split(",")]
    names = [word for word in words if word]
    if names and arguments.config:
        raise ConfigError("--config: names rules as --rules does; leave one out")
    if names:
        found = choose(None) if names == ["all"] else choose(names)
    elif arguments.config:
        found = choose(read_config(arguments.config).rules)
    else:
        found = rules_of(run)
    if not found:
        raise ConfigError("rules: none is left to look with. `vario rules` lists them.")
    options: dict[str, dict[str, Any]] = {}
    for text in arguments.set:
        place, equals, value = text.partition("=")
        name, dot, option = place.strip().partition(".")
        if not (equals and dot):
            raise ConfigError(f"--set: cannot understand '{text}'; expected RULE.OPTION=VALUE, as grad_spike.factor=4")
        rule = named(name)
        if rule.name not in {entry.rule.name for entry in found}:
            raise ConfigError(f"--set: '{rule.name}' is not among the rules that are used")
        options.setdefault(rule.name, {})[option] = _value(text, value.strip())
        rule.check_options(options[rule.name])
    return [Chosen(entry.rule, {**entry.options, **options.get(entry.rule.name, {})}) for entry in found]


def _value(text: str, value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return float(value) if any(mark in value.lower() for mark in (".", "e", "n")) else int(value)
    except ValueError:
        raise ConfigError(f"--set: cannot understand '{text}'; expected a number, true or false after =") from None
