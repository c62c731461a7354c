"""Replay rules over a run and say what they find: each cause once, with what followed from it.

Any run will do: one that is still written, one watched without rules, one imported from another tool. The rules are
those the run was watched with, unless others are named. Ends with exit code 0 when nothing was found, 1 when something
was, and 2 when what was asked cannot be done.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output, rule_choice

EXAMPLES = """
vario check
vario check vario_runs/demo --rules non_finite,grad_spike
vario check vario_runs/demo --rule grad_spike --set grad_spike.threshold=10
vario check vario_runs/demo --config vario.toml --all
vario check vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, the rules and how to answer."""
    shared.add_run(parser)
    rule_choice.add_rules(parser)
    parser.add_argument("--all", action="store_true", help="list every alert, not only what they come to")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay, and say what was found."""
    from vario.runs.findings.replay import check, warn_of_failure

    found = shared.find_run(arguments.run)
    rules = rule_choice.chosen_rules(arguments, found)
    result = check(found, rules, failed=warn_of_failure)
    if arguments.json:
        output.print_json(
            {
                "run": found.path,
                "num_steps": result.num_steps,
                "rules": {entry.rule.name: {**entry.rule.options, **entry.options} for entry in rules},
                "incidents": [incident.to_json() for incident in result.incidents],
                "alerts": [alert.to_json() for alert in result.alerts],
            }
        )
    else:
        from vario.reports.check_text import render_check

        output.stdout().print(render_check(found.name, result, len(rules), arguments.all))
    return 1 if result.incidents else 0
