"""The endpoint for what mattered: a result of many runs and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.runs.table.effects import Effect, find_effects
from vario.web import bodies
from vario.web.addresses.overlay import SOME_RUNS, selected
from vario.web.addresses.table import WHERE
from vario.web.api.answers import Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served


def effects(served: Served, values: Mapping[str, Any]) -> bodies.SettingEffects:
    """Return how a result goes along with each setting."""
    runs, columns = selected(served, values)
    found = find_effects(runs, columns, values["result"])
    return {
        "result": found.result.key,
        "title": found.result.title,
        "is_better_higher": found.result.is_better_higher,
        "settings": [_described(effect) for effect in found.effects],
        "rows": [
            {
                "run": run.run,
                "name": run.name,
                "result": float(found.result.read(run) or 0.0),
                "values": [effect.setting.read(run) for effect in found.effects],
            }
            for run in found.runs
        ],
    }


def _described(effect: Effect) -> bodies.SettingEffect:
    return {
        "key": effect.setting.key,
        "title": effect.setting.title,
        "kind": effect.setting.kind,
        "num_runs": effect.num_runs,
        "correlation": effect.correlation,
        "linear": effect.linear,
        "share": effect.share,
        "importance": effect.importance,
        "is_log": effect.is_log,
        "means": [{"value": value, "mean": mean, "runs": runs} for value, mean, runs in effect.means],
        "same_as": effect.same_as,
        "text": effect.text,
    }


ENDPOINTS = (
    Endpoint(
        "/api/effects",
        "Which settings mattered: how a result goes along with each hyper-parameter in which runs differ.",
        effects,
        (
            Parameter("result", "A column with numbers, for example `val_loss:best`.", is_required=True),
            SOME_RUNS,
            WHERE,
        ),
        body=bodies.SettingEffects,
        is_cached=False,
    ),
)
