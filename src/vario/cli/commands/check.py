"""List the incidents of a run: one per root cause, with its consequences.

Shows what the rules found during training, as stored in the run. With --replay, or if you name rules or set their
options, it runs the rules again over the stored steps: those the run was watched with, unless you name others. It also
replays a run that was watched without rules or imported from another tool. Rules that compare ranks never run during
training: they run once over an ended run, whoever opens it first, and each time over one that goes on. The output says
where each result comes from. Exit code: 0 if nothing was found, 1 if something was, 2 for a usage error.
"""

from __future__ import annotations

import argparse

from vario.cli import arguments as shared
from vario.cli import output, rule_choice

EXAMPLES = """
vario check
vario check vario_runs/demo --replay
vario check vario_runs/demo --rules non_finite,grad_spike
vario check vario_runs/demo --rule grad_spike --set grad_spike.threshold=10
vario check vario_runs/demo --config vario.toml --all
vario check vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run, the rules and the output options."""
    shared.add_run(parser)
    parser.add_argument("--replay", action="store_true", help="run the rules over the stored steps again")
    rule_choice.add_rules(parser)
    parser.add_argument("--all", action="store_true", help="list every alert, not only incidents")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, during training or in a replay."""
    from vario.runs.findings.check import check
    from vario.runs.findings.replay import warn_of_failure

    found = shared.find_run(arguments.run)
    rules = rule_choice.chosen_rules(arguments, found) if rule_choice.is_chosen(arguments) else None
    result = check(found, rules, failed=warn_of_failure, replay=arguments.replay)
    if arguments.json:
        output.print_json(
            {
                "run": found.path,
                "num_steps": result.num_steps,
                "source": result.source,
                "missing": result.missing,
                "replayed": result.replayed,
                "thinned": result.thinned,
                "rules": result.rules,
                "incidents": [incident.to_json() for incident in result.incidents],
                "alerts": [alert.to_json() for alert in result.alerts],
            }
        )
    else:
        from vario.reports.check_text import render_check

        output.stdout().print(render_check(found.name, result, arguments.all))
    return 1 if result.incidents else 0
