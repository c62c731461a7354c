"""The text of a diagnosis: the likely cause and what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vario.rules.api.alerts import Alert
from vario.rules.api.rule import Rule

LOSS_ONLY = "the data, the labels or a term of the loss changed; the model itself behaves as before"
EMBEDDING = "the batch uses rows of this embedding that earlier batches did not: check the data and its preprocessing"
INPUT = "the model's input changed: check the data and its preprocessing"
OF_PARAMETERS = ("weight", "weight_before", "gradient", "gradient_local", "gradient_applied", "moment", "update")
"""Quantities whose targets are parameters of a module."""
ADVICE = "Look at the module or parameter named, in the steps around this one."


def explain(lead: Alert, rule: Rule | None) -> tuple[str, str]:
    """Return the likely cause and the next action: from the alert, else from its rule, else a general one."""
    causes = {} if rule is None else rule.causes
    cause = lead.cause or causes.get(lead.scope) or (_in_the_batch(lead) if lead.scope == "batch" else causes.get(""))
    summary = lead.text if rule is None else _as_clause(rule.summary)
    return cause or summary, with_names((rule.next if rule is not None else "") or ADVICE, lead)


def with_names(advice: str, lead: Alert) -> str:
    """Put the names of an alert into the commands of an advice: its target for NAME, its module, its rank."""
    target = lead.target if lead.target is not None else next(iter(lead.others), None)
    names: dict[str, str] = (
        {} if lead.rank is None else {"--rank RANK": f"--rank {lead.rank}", "--rank N": f"--rank {lead.rank}"}
    )
    if target is not None:
        module = target.partition(":")[0]
        if lead.quantity in OF_PARAMETERS:
            module = module.rpartition(".")[0]
        names |= {"NAME": target, "MODULE": module or "*", "LAYER": module or "*"}
    return re.sub(r"`[^`]*`", lambda found: _replaced(found[0], names), advice)


def _replaced(command: str, names: Mapping[str, str]) -> str:
    for placeholder, name in names.items():
        command = re.sub(rf"{placeholder}\b", name.replace("\\", r"\\"), command)
    return command


def _in_the_batch(lead: Alert) -> str:
    if lead.target_is_loss:
        return LOSS_ONLY
    return EMBEDDING if lead.quantity in ("gradient", "update") else INPUT


def _as_clause(sentence: str) -> str:
    """Turn a sentence into a clause: no capital, no period."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")
