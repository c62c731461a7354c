"""List the rules: what each one finds, why it matters and what to do about it.

Kinds: exact rules check what is true of every correct run, limits are physical, and relative rules compare a series
with its own past. Set options in a config as [rules.NAME], or with `vario check --set NAME.OPTION=VALUE`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared
from vario.cli import output

if TYPE_CHECKING:
    from vario.rules.api.rule import Rule

EXAMPLES = """
vario rules
vario rules non_finite grad_spike
vario rules -v
vario rules --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add names, -v and --json."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="show only these rules, in full")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every rule in full")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the rules."""
    from vario.rules import RULES, named

    wanted = [named(name).name for name in arguments.names]
    found = [entry for entry in RULES if not wanted or entry.name in wanted]
    rows = [{**describe(entry.part), "origin": entry.origin} for entry in found]
    if arguments.json:
        output.print_json(rows)
        return 0
    from vario.reports.rules_text import rules_list, rules_table

    whole = arguments.verbose or bool(wanted)
    output.stdout().print(rules_list(rows) if whole else rules_table(rows))
    return 0


def describe(rule: Rule) -> dict[str, Any]:
    """Return the description of one rule."""
    from vario.rules.api.rule import SEVERITY

    return {
        "name": rule.name,
        "kind": rule.kind,
        "severity": SEVERITY[rule.kind],
        "over": rule.over,
        "is_quiet": rule.is_quiet,
        "options": dict(rule.options),
        "summary": rule.summary,
        "why": rule.why,
        "causes": dict(rule.causes),
        "points_to": {scope: dict(weights) for scope, weights in rule.points_to.items()},
        "stage": rule.stage,
        "chart": rule.chart,
        "next": rule.next,
    }
