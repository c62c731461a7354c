"""Tools about what went wrong: the root cause, all incidents, recent changes, and how two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.rules.api.alerts import SEVERITIES
from vario.runs.compare.difference import diff
from vario.runs.findings.changes import rank_changes
from vario.runs.findings.diagnosis import diagnose
from vario.runs.findings.diagnosis_text import source_text
from vario.runs.views.status.quantity_size import check_size, rows_bytes
from vario.web.addresses.charts import QUANTITY
from vario.web.addresses.compare import COMPARED_BYTES
from vario.web.addresses.incidents import described
from vario.web.api.answers import Values
from vario.web.api.parameters import Parameter
from vario.web.mcp.tools import MOST_ENTRIES, RUN, Tool, open_run
from vario.web.served import Served


def diagnose_run(served: Served, values: Values) -> Mapping[str, Any]:
    """Return what `vario diagnose --json` prints, with fewer words for each incident."""
    name, run = open_run(served, values)
    found = diagnose(run)
    return {
        "run": name,
        "text": str(found),
        **vars(found),
        "first": None if found.first is None else described(found.first),
        "incidents": [described(incident) for incident in found.incidents],
    }


def list_incidents(served: Served, values: Values) -> Mapping[str, Any]:
    """Return the incidents of a run by step: one per root cause."""
    name, run = open_run(served, values)
    found = diagnose(run)
    least = SEVERITIES.index(values["severity"])
    kept = [incident for incident in found.incidents if SEVERITIES.index(incident.severity) >= least]
    return {
        "run": name,
        "incidents": [described(incident) for incident in kept[: values["limit"]]],
        "num_matching": len(kept),
        "num_incidents": len(found.incidents),
        "num_steps": found.num_steps,
        "rules": found.rules,
        "remark": source_text(found),
    }


def recent_changes(served: Served, values: Values) -> Mapping[str, Any]:
    """Return what `vario changes --json` prints."""
    name, run = open_run(served, values)
    return {"run": name, **vars(rank_changes(run, values["last"], values["quantity"], values["top"]))}


def compare_runs(served: Served, values: Values) -> Mapping[str, Any]:
    """Return what `vario diff --json` prints."""
    a, b = served.open(values["a"]), served.open(values["b"])
    quantity = values["quantity"]
    num_bytes = rows_bytes(a, quantity) + rows_bytes(b, quantity)
    check_size("quantity", num_bytes, COMPARED_BYTES, "Choose a smaller quantity, or run `vario diff`.")
    found = diff(a, b, values["rename"], [quantity] if quantity else None, values["top"])
    return {"text": str(found), **vars(found), "a": values["a"], "b": values["b"]}


TOOLS = (
    Tool(
        "diagnose",
        "What went wrong first, and why",
        "Explains what went wrong first in a training run, in one paragraph (`text`): step, rank, tensor, rule, value "
        "and usual range, consequences, likely causes with their evidence (`hypotheses`) and the next action. If "
        "nothing went wrong it says what was checked. Covers NaN, exploding and vanishing gradients, weights that "
        "change without the optimizer, repeated data, learning-rate jumps, ranks that differ, and more.",
        diagnose_run,
        (RUN,),
    ),
    Tool(
        "list_incidents",
        "Incidents of a run",
        "All incidents that rules found in a run, by step, one per root cause: severity (page: certainly wrong, warn: "
        "likely wrong, note: worth knowing), what was seen with numbers, where, likely cause, next action, and the "
        "`series` (QUANTITY|TARGET|STATISTIC) to look at with `read_series`.",
        list_incidents,
        (
            RUN,
            Parameter("severity", "Only this severity and higher ones.", default="note", choices=SEVERITIES),
            Parameter("limit", "The most incidents to return.", "whole", 30, 1, 200),
        ),
    ),
    Tool(
        "recent_changes",
        "What changed recently",
        "The series that changed most in the last steps, each compared with its own past: a new level, a trend, a "
        "spike, a NaN, a value that stopped changing. Works without any rule having found something.",
        recent_changes,
        (
            RUN,
            Parameter(
                "last", "How many steps count as recent (default: a tenth of the run).", "whole", low=1, high=10**9
            ),
            QUANTITY,
            Parameter("top", "The most changes to return.", "whole", 10, 1, 50),
        ),
    ),
    Tool(
        "compare_runs",
        "Compare two runs",
        "What was set differently between two runs (hyper-parameters, code, environment, packages), the first step "
        "and tensor at which they diverge by more than noise, and what differs most at the end.",
        compare_runs,
        (
            Parameter("a", "The first run, as `list_runs` names it.", is_required=True),
            Parameter("b", "The second run.", is_required=True),
            QUANTITY,
            Parameter(
                "rename",
                "How names of the first run become those of the second, such as `encoder.=>backbone.`.",
                is_repeated=True,
                most=MOST_ENTRIES,
            ),
            Parameter("top", "The most differences to return.", "whole", 10, 1, 50),
        ),
    ),
)
