"""What was found in a run: during training, as stored, or by replaying rules over its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vario.rules import RULES, Chosen
from vario.rules.api.alerts import Alert, Incident
from vario.runs.files.listing_cache import listings_cached
from vario.runs.files.merged_parts import thinned_text
from vario.runs.findings.alert_lines import has_trace_of_rules
from vario.runs.findings.rank_comparison import Comparison, compare_ranks, comparing_rules, known_comparison
from vario.runs.findings.replay import Failed, Keep, Wanted, chosen_of, rules_of
from vario.runs.findings.replay import replay as run_rules
from vario.runs.findings.stored_alerts import read_stored
from vario.runs.reader import RunReader

Source = Literal["stored", "replay"]

NOT_WATCHED = "no rules ran during training"
NO_TRACE = "rules left no trace during training"
SWITCHED_OFF = "the rules were disabled during training"
NOT_COMPARED = "ranks are not compared during training"


@dataclass(frozen=True)
class Check:
    """What rules found in a run, and when they ran."""

    alerts: Sequence[Alert]
    incidents: Sequence[Incident]
    num_steps: int
    source: Source = "replay"
    """`stored`: found during training. `replay`: found now, over the stored rows."""
    missing: str = ""
    """What rules did not cover during training; empty: nothing."""
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The rules that ran, and their options."""
    replayed: tuple[str, ...] = ()
    """The rules that ran over the stored rows: all, none, or the ones that compare ranks."""
    thinned: str = ""
    """Which rows a replay did not see, because they were dropped as they grew old; empty: it saw all."""


@listings_cached()
def check(
    run: RunReader,
    rules: Wanted = None,
    keep: Keep | None = None,
    failed: Failed | None = None,
    *,
    replay: bool = False,
) -> Check:
    """Return what was found in a run: the incidents stored during training, or what a replay finds now.

    With `replay`, or if `rules` are given, rules run over the stored rows: names, rules or a table of options, as in a
    config (default: those the run was watched with). `keep(quantity, step)` filters the frames of a replay. A rule that
    raises ends the check, unless `failed(part, error)` is given. A run without rules is replayed too. Rules that
    compare ranks never run during training: they run once over an ended run, whoever opens it first, and each time over
    one that goes on. `source`, `missing` and `replayed` say so.
    """
    if replay or rules is not None or keep is not None:
        return _replayed(run, rules_of(run) if rules is None else chosen_of(rules), "", keep, failed)
    if missing := _missing(run):
        return _replayed(run, rules_of(run), missing, None, failed)
    return stored_check(run, compare_ranks(run, however_long=True, failed=failed))


@listings_cached()
def found_check(run: RunReader) -> Check:
    """Return what was found during training, and by comparing the ranks of an ended run if that takes seconds."""
    return stored_check(run, compare_ranks(run))


@listings_cached()
def known_incidents(run: RunReader) -> list[Incident]:
    """Return the incidents that are known without running any rule: for lists of many runs."""
    compared = known_comparison(run)
    return read_stored(run, () if compared is None else compared.alerts).incidents


@listings_cached()
def stored_check(run: RunReader, compared: Comparison | None = None) -> Check:
    """Return what was found during training, and in a comparison of the ranks."""
    missing = _missing(run)
    found = read_stored(run, () if compared is None else compared.alerts)
    ran = () if compared is None else compared.rules
    return Check(
        found.alerts,
        found.incidents,
        num_steps(run),
        "stored",
        missing or _not_compared(run, compared),
        {
            **({} if missing == NO_TRACE else _told_rules(run)),
            **_options([entry for entry in comparing_rules(run) if entry.rule.name in ran]),
        },
        ran,
    )


def _not_compared(run: RunReader, compared: Comparison | None) -> str:
    """What a comparison of the ranks left out; empty: nothing."""
    if compared is not None:
        count = len(compared.left_out)
        left = f"{count} rule{'s' if count > 1 else ''} that compare{'' if count > 1 else 's'} ranks"
        return f"{left} would take long ({compared.reason})" if compared.left_out else ""
    return NOT_COMPARED if comparing_rules(run) else ""


def _missing(run: RunReader) -> str:
    """Why the stored findings are incomplete; empty if they are complete."""
    if not _told_rules(run):
        return NOT_WATCHED
    if run.state not in ("running", "stalled") and not has_trace_of_rules(run):
        return NO_TRACE
    return SWITCHED_OFF if any(part.part == "sink alerts" for part in run.parts_off) else ""


def num_steps(run: RunReader) -> int:
    """Return how many steps were recorded: all have plain numbers, except in imported runs."""
    quantities = run.quantities("all") if run.ranks else []
    return len(run.steps("scalar" if "scalar" in quantities else quantities[0], "all")) if quantities else 0


def _replayed(
    run: RunReader, chosen: Sequence[Chosen], missing: str, keep: Keep | None, failed: Failed | None
) -> Check:
    found = run_rules(run, chosen, keep, failed)
    names = tuple(entry.rule.name for entry in chosen)
    quantities = run.quantities("all") if run.ranks else []
    told = [text for name in quantities if (text := thinned_text(name, run.thinned(name)))]
    if told:
        told.append("Rules that compare steps with earlier ones may differ there from what they found during training.")
    options = _options(chosen)
    return Check(
        found.alerts, found.incidents, found.num_steps, "replay", missing, options, names, thinned=" ".join(told)
    )


def _options(chosen: Sequence[Chosen]) -> dict[str, Mapping[str, Any]]:
    return {entry.rule.name: {**entry.rule.options, **entry.options} for entry in chosen}


def _told_rules(run: RunReader) -> dict[str, Mapping[str, Any]]:
    """The rules that ran during training, from its config; those over ranks did not."""
    told = run.config.get("rules")
    found = told if isinstance(told, Mapping) else {}
    known = {entry.name: entry.part for entry in RULES}
    return {
        name: {**(known[name].options if name in known else {}), **(options if isinstance(options, Mapping) else {})}
        for name, options in found.items()
        if name not in known or known[name].over == "rank"
    }
