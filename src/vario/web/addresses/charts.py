"""Endpoints for charts: heat maps, curves, and the names of targets."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vario.core.errors import ConfigError
from vario.core.text import suggestion
from vario.runs.files.merged_parts import thinned_text
from vario.runs.run import Run
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.heat import Heat, read_heat
from vario.runs.views.name_search import matching
from vario.web import bodies
from vario.web.addresses.overview import RUN
from vario.web.api.answers import ARROW, BYTES, CSV, JSON, Answer, Endpoint, encode
from vario.web.api.parameters import BadParameter, Parameter
from vario.web.served import Served

MOST_STEP = 10**15
FOLDS = ("all", "min", "mean", "max", "spread")
MOST_POINTS = 1_000_000
"""The most points of all curves requested at full resolution."""

MOST_CURVES = 1024
"""The most curves of one answer."""
ALL_POINTS = 250_000
LEAST_POINTS = 60
"""Very many curves have fewer points each: about so many together, and at least so many each."""

QUANTITY = Parameter("quantity", "Which tensor of the targets, for example gradient; scalar for plain numbers.")
STATISTIC = Parameter("statistic", "Which statistic, for example norm (default: the quantity's usual one).", default="")
RANK = Parameter(
    "rank",
    "A rank, `all` for merged ranks, or `min`, `mean`, `max`, `spread` over the ranks' numbers.",
    default="all",
    pattern=r"^([0-9]{1,6}|all|min|mean|max|spread)$",
)
FIRST = Parameter("first", "The first step.", "whole", low=0, high=MOST_STEP)
LAST = Parameter("last", "The last step.", "whole", low=0, high=MOST_STEP)
ROWS = Parameter("rows", "The most rows; beyond that, neighbours share a row.", "whole", 800, 1, 5000)
SEARCH = Parameter(
    "search",
    "Only targets whose names contain these words; `*` and `?` are globs, `re:` begins a regular expression.",
    default="",
)
COLUMNS = Parameter("columns", "The most columns.", "whole", 1000, 1, 5000)


def read_rank(text: str, others: tuple[str, ...] = ()) -> int | str:
    """Parse the rank parameter."""
    if text.isascii() and text.isdecimal() and len(text) <= 6:
        return int(text)
    known = (*FOLDS, *others)
    if text not in known:
        raise BadParameter("rank", f"expected a number, {', '.join(known)}, got '{text}'. {suggestion(text, known)}")
    return text


def the_quantity(run: Run, name: str | None) -> str:
    """Return the requested quantity (default: the most informative one)."""
    if name:
        return name
    recorded = run.quantities("all") if run.ranks else []
    preferred = ("gradient", "activation", "weight", *recorded)
    found = next((candidate for candidate in preferred if candidate in recorded), None)
    if found is None:
        raise ConfigError("quantity: nothing recorded yet")
    return found


def heat(served: Served, values: Mapping[str, Any]) -> Answer:
    """Return the heat map of a quantity."""
    run = served.open(values["run"])
    found = read_heat(
        run,
        the_quantity(run, values["quantity"]),
        values["statistic"],
        read_rank(values["rank"]),
        values["first"],
        values["last"],
        values["rows"],
        values["columns"],
        values["search"],
    )
    return heat_answer(found, values["format"], {**heat_head(found), "search": values["search"]})


def heat_answer(found: Heat, format: str, head: bodies.HeatHead) -> Answer:
    """Encode a heat map as bytes or JSON."""
    if format == "json":
        table: bodies.HeatTable = {
            **head,
            "values": list(found.values),
            "bad": [(int(row), int(column)) for row, column in np.argwhere(found.bad)],
        }
        return Answer(encode(table))
    return Answer(heat_bytes(head, found), BYTES)


def heat_head(found: Heat) -> bodies.HeatHead:
    """Return the head of a heat map, without its numbers."""
    sizes = np.abs(found.values[[not kind for kind in found.kinds]] if found.kinds else found.values)
    shown = sizes[np.isfinite(sizes) & (sizes > 0)]
    return {
        "quantity": found.quantity,
        "statistic": found.statistic,
        "rank": found.rank,
        "targets": found.targets,
        "groups": found.groups,
        "first": found.first,
        "last": found.last,
        "rows": found.values.shape[0],
        "columns": found.values.shape[1],
        "is_rollup": found.is_rollup,
        "low": shown.min() if len(shown) else None,
        "high": shown.max() if len(shown) else None,
        "step": int(found.last[-1]) if len(found.last) else None,
        "kinds": found.kinds,
        "left_out": found.left_out,
    }


def heat_bytes(head: bodies.HeatHead, found: Heat) -> bytes:
    """Encode the head's length, the head in JSON, float32 values, and a flag byte for each: 1 recorded, 2 NaN or
    Inf."""
    text = encode(head)
    text += b" " * (-len(text) % 4)
    flags = found.has.astype(np.uint8) | (found.bad.astype(np.uint8) << 1)
    return b"".join([struct.pack("<I", len(text)), text, found.values.astype("<f4").tobytes(), flags.tobytes()])


def series(served: Served, values: Mapping[str, Any]) -> bodies.SeriesAnswer | Answer:
    """Return curves of one or more runs."""
    whole = values["format"] != "json"
    if whole:
        _check_number(served, values)
    names, runs = dict.fromkeys(values["series"]), dict.fromkeys(values["run"])
    points = None if whole else min(values["points"], max(LEAST_POINTS, ALL_POINTS // (len(names) * len(runs))))
    found: dict[str, list[tuple[str, Curve]]] = {}
    num_left = MOST_CURVES
    for text in names:
        found[text] = list(itertools.islice(_curves(served, text, values, points), num_left))
        num_left -= len(found[text])
        if not num_left:
            break
    # By run, in the requested order.
    curves = [(name, curve) for name in values["run"] for each in found.values() for run, curve in each if run == name]
    if values["format"] == "csv":
        return Answer(_csv(curves), CSV, "series.csv")
    if values["format"] == "arrow":
        return Answer(_arrow(curves), ARROW, "series.arrow")
    return {
        "curves": [{"run": name, **described_curve(curve)} for name, curve in curves],
        "text": _text(curves) if num_left else f"Only the first {MOST_CURVES:,} curves are read.",
    }


def _text(curves: list[tuple[str, Curve]]) -> str:
    """Say where curves are downsampled for good."""
    found = {thinned_text(f"{name} {curve.quantity}".strip(), curve.thinned): None for name, curve in curves}
    return " ".join(filter(None, found))


def _check_number(served: Served, values: Mapping[str, Any]) -> None:
    """Raise BadParameter for more points than are sent at once."""
    number = 0
    for name in values["run"]:
        run = served.open(name)
        for text in values["series"]:
            quantity, _, _ = split_series(text)
            steps = run.steps(quantity, "all") if quantity in run.quantities("all") else np.zeros(0, np.int64)
            last = MOST_STEP if values["last"] is None else values["last"]
            low, high = np.searchsorted(steps, [values["first"] or 0, last + 1])
            number += int(high - low) * (len(run.ranks) if values["rank"] == "each" else 1)
    if number > MOST_POINTS:
        raise BadParameter(
            "series",
            f"{number:,} points requested, but at most {MOST_POINTS:,} are sent at once. Request fewer series or"
            " steps, or run `vario export` on it.",
        )


def _curves(served: Served, text: str, values: Mapping[str, Any], points: int | None) -> Iterator[tuple[str, Curve]]:
    """The series of each run and rank that has it; raises if none has."""
    quantity, target, statistic = split_series(text)
    refusal: ConfigError | None = None
    is_found = False
    for name in dict.fromkeys(values["run"]):
        run = served.open(name)
        for rank in run.ranks if values["rank"] == "each" else [read_rank(values["rank"], ("each",))]:
            try:
                curve = read_curve(run, target, quantity, statistic, rank, values["first"], values["last"], points)
            except ConfigError as error:
                refusal = refusal or error
                continue
            is_found = True
            yield name, curve
    if refusal is not None and not is_found:
        raise refusal


def split_series(text: str) -> tuple[str, str, str]:
    """Split `QUANTITY|TARGET|STATISTIC`; the target may contain bars."""
    quantity, bar, rest = text.partition("|")
    target, second, statistic = rest.rpartition("|")
    if not bar or not quantity or not rest:
        raise BadParameter("series", f"expected QUANTITY|TARGET|STATISTIC, got '{text[:80]}'")
    return (quantity, target, statistic) if second else (quantity, rest, "")


def described_curve(curve: Curve) -> bodies.RankCurve:
    """Return a curve as columns."""
    return {
        "quantity": curve.quantity,
        "target": curve.target,
        "statistic": curve.statistic,
        "rank": curve.rank,
        "steps": curve.steps,
        "low": curve.low,
        "high": curve.high,
        "last": curve.last,
        "bad": curve.bad,
        "times": curve.times,
        "is_whole": curve.is_whole,
    }


def _table(curves: list[tuple[str, Curve]]) -> Any:
    import pyarrow as pa

    tables = [
        pa.table(
            {
                "run": pa.repeat(name, len(curve.steps)),
                "quantity": pa.repeat(curve.quantity, len(curve.steps)),
                "target": pa.repeat(curve.target, len(curve.steps)),
                "statistic": pa.repeat(curve.statistic, len(curve.steps)),
                "rank": pa.repeat(str(curve.rank), len(curve.steps)),
                "step": pa.array(curve.steps),
                "time": pa.array(curve.times),
                "value": pa.array(curve.last),
            }
        )
        for name, curve in curves
    ]
    return pa.concat_tables(tables) if tables else pa.table({"run": pa.array([], pa.string())})


def _arrow(curves: list[tuple[str, Curve]]) -> bytes:
    import pyarrow as pa

    table = _table(curves)
    sink = pa.BufferOutputStream()
    with pa.RecordBatchStreamWriter(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _csv(curves: list[tuple[str, Curve]]) -> bytes:
    import io

    from pyarrow.csv import write_csv

    sink = io.BytesIO()
    write_csv(_table(curves), sink)
    return sink.getvalue()


def targets(served: Served, values: Mapping[str, Any]) -> bodies.Targets:
    """Return the names of targets that contain all words of a search."""
    run = served.open(values["run"])
    found = matching(run.targets(values["quantity"] or None) if run.ranks else [], values["search"])
    return {"targets": found[: values["limit"]], "total": len(found)}


HEAT_FORMAT = Parameter(
    "format", "`binary`, as the dashboard uses, or json.", default="binary", choices=("binary", "json")
)
SERIES_FORMAT = Parameter(
    "format", "json, or at full resolution csv or arrow (a stream).", default="json", choices=("json", "csv", "arrow")
)
SERIES = Parameter(
    "series",
    "QUANTITY|TARGET|STATISTIC, for example gradient|head.weight|norm; repeatable.",
    pattern=r"^[^|]+\|[\s\S]+$",
    is_required=True,
    is_repeated=True,
    most=512,
)
RUNS = Parameter("run", "The run; repeatable, for curves of each.", is_required=True, is_repeated=True, most=200)
RANK_OR_EACH = Parameter(
    "rank",
    "A rank, `all` for merged ranks, `each` for a curve per rank, or `min`, `mean`, `max`, `spread` over them.",
    default="all",
    pattern=r"^([0-9]{1,6}|all|each|min|mean|max|spread)$",
)
POINTS = Parameter("points", "The most points per curve.", "whole", 1000, 2, 20_000)

ENDPOINTS = (
    Endpoint(
        "/api/heat",
        "A quantity at a glance: targets in model order by buckets of steps.",
        heat,
        (RUN, QUANTITY, STATISTIC, RANK, FIRST, LAST, ROWS, COLUMNS, SEARCH, HEAT_FORMAT),
        (BYTES, JSON),
        bodies.HeatTable,
        bodies.HeatHead,
    ),
    Endpoint(
        "/api/series",
        "Curves: lowest, highest and last value of each bucket of steps.",
        series,
        (RUNS, SERIES, RANK_OR_EACH, FIRST, LAST, POINTS, SERIES_FORMAT),
        (JSON, CSV, ARROW),
        bodies.SeriesAnswer,
    ),
    Endpoint(
        "/api/targets",
        "Names of targets in the order of their first observation.",
        targets,
        (
            RUN,
            QUANTITY,
            SEARCH,
            Parameter("limit", "The most names to return.", "whole", 200, 1, 100_000),
        ),
        body=bodies.Targets,
    ),
)
