"""Tools about whole runs: which there are, the report of one, its settings, its speed, its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vario.reports.summary import summarise
from vario.runs.findings.desync import first_desync
from vario.runs.findings.rank_verdict import rank_verdict
from vario.runs.findings.time_verdict import time_verdict
from vario.runs.table.columns import Columns
from vario.runs.table.table import USUAL, check_sort, make_table, rows_json
from vario.runs.views.speed.overhead import read_overhead
from vario.runs.views.speed.throughput import read_throughput, throughput_lines
from vario.runs.views.status.quantity_size import rows_bytes
from vario.web.addresses.model import settings
from vario.web.addresses.overview import rows_of
from vario.web.addresses.ranks import CHECKSUM_BYTES
from vario.web.addresses.table import SORT, WHERE
from vario.web.api.answers import Values
from vario.web.api.parameters import Parameter
from vario.web.mcp.tools import MOST_ENTRIES, RUN, Tool, open_run
from vario.web.served import Served

MOST_RUNS = 200
PARTS = ("code", "packages", "diff", "output")
RANK = Parameter("rank", "The rank (default: the first).", "whole", low=0, high=10**6)


def list_runs(served: Served, values: Values) -> Mapping[str, Any]:
    """Return runs as rows, as `vario ls --columns --json` does, newest first unless sorted."""
    rows = rows_of(served)
    summaries, num_unread = rows.summaries()
    known = [run for run in summaries if values["archived"] or not run.note.is_archived]
    columns = [key for key in values["columns"] or USUAL if key not in ("run", "name")]
    table = make_table(known, columns, values["where"], check_sort(values["sort"]))
    found: dict[str, Any] = {
        "folder": served.name,
        "runs": rows_json(table)[: values["limit"]],
        "num_matching": len(table.rows),
        "num_runs": table.total,
        "num_unread": num_unread,
        "cannot_be_read": rows.read()["left_out"],
    }
    if values["known_columns"]:
        found["known_columns"] = [column.key for column in Columns(summaries).known()]
    return found


def report_run(served: Served, values: Values) -> Mapping[str, Any]:
    """Return what `vario report --json` prints."""
    name, run = open_run(served, values)
    found = summarise(run)
    return {"run": name, "text": str(found.diagnosis), **vars(found)}


def run_settings(served: Served, values: Values) -> Mapping[str, Any]:
    """Return hyper-parameters, options, versions and sessions of a run."""
    name, _ = open_run(served, values)
    return {"run": name, **settings(served, {"run": name})}


def run_origin(served: Served, values: Values) -> Mapping[str, Any]:
    """Return what `vario origin --json` prints: one part of it."""
    name, run = open_run(served, values)
    part = values["part"]
    if part in ("diff", "output"):
        return {"run": name, part: run.code_diff if part == "diff" else run.output}
    if part == "packages":
        return {"run": name, "packages": [f"{package} {version}" for package, version in run.origin.packages.items()]}
    found = dict(vars(run.origin))
    del found["packages"]
    return {"run": name, "started_with": run.command, **found}


def explain_speed(served: Served, values: Values) -> Mapping[str, Any]:
    """Return where the time of a step goes, as in `vario report --json`."""
    name, run = open_run(served, values)
    if values["rank"] is not None:
        run.check_rank(values["rank"])
    verdict = time_verdict(run, values["rank"])
    speed = read_throughput(run, values["rank"])
    return {
        "run": name,
        "verdict": verdict,
        "text": "Too little was recorded to say what limits the speed." if verdict is None else verdict.text,
        "throughput": None if speed is None else throughput_lines(speed),
        "overhead_of_vario": read_overhead(run),
    }


def compare_ranks(served: Served, values: Values) -> Mapping[str, Any]:
    """Return the states of all ranks, which one the others wait for, and where replicas began to differ."""
    name, run = open_run(served, values)
    states = run.rank_states
    is_readable = rows_bytes(run, "checksum") <= CHECKSUM_BYTES
    return {
        "run": name,
        "world_size": run.world_size,
        "states": Counter(state.state for state in states),
        "slowest": rank_verdict(run, run.alerts),
        "first_difference_of_replicas": first_desync(run) if is_readable else "too large to read here",
        # What is odd comes first: of very many ranks only the first are shown.
        "ranks": sorted(states, key=lambda state: (state.state in ("running", "finished"), state.rank)),
    }


TOOLS = (
    Tool(
        "list_runs",
        "List training runs",
        "Lists the recorded training runs, newest first: state (running, finished, crashed, interrupted, stalled), "
        "start (unix seconds), duration (seconds), last step, last loss, number of alerts. Call this first: the other "
        "tools take the `run` it names. Filter, sort and choose columns to compare many runs, such as a sweep.",
        list_runs,
        (
            WHERE,
            SORT,
            Parameter(
                "columns",
                "Columns instead of the usual ones: a fact of a run (state, started, duration, step, loss, alerts, "
                "memory, steps_per_second, ranks, host, command, commit, tags), a hyper-parameter such as lr, or a "
                "logged number such as val_loss, with :best, :last, :first, :min or :max after it.",
                is_repeated=True,
                most=MOST_ENTRIES,
            ),
            Parameter("limit", "The most runs to return.", "whole", 50, 1, MOST_RUNS),
            Parameter("archived", "Also runs that someone archived.", "switch", False),
            Parameter("known_columns", "Also list all columns that these runs can have.", "switch", False),
        ),
    ),
    Tool(
        "report_run",
        "Report of a run",
        "The summary of one training run: state and error, steps, loss (first, last, lowest), speed and what limits "
        "it, memory, gradient clipping, what broke first (`first_bad`, `diagnosis`), which tensors moved most, and "
        "parts of the recording that failed. Start here for a single run, then ask `diagnose` for the cause.",
        report_run,
        (RUN,),
    ),
    Tool(
        "run_settings",
        "Settings of a run",
        "Hyper-parameters and where they were found, vario's own options, versions, hosts, device mesh, sessions "
        "(restarts), and which parts of the recording were switched off and why.",
        run_settings,
        (RUN,),
    ),
    Tool(
        "run_origin",
        "Origin of a run",
        "What a run was started from: command, directory, git commit, changed files, seeds, environment variables "
        "that matter to training. Secrets are masked.",
        run_origin,
        (
            RUN,
            Parameter(
                "part",
                "`code`: all but the long parts; `packages`: installed packages; `diff`: changes since the commit; "
                "`output`: the first and last lines that the script printed.",
                default="code",
                choices=PARTS,
            ),
        ),
    ),
    Tool(
        "explain_speed",
        "What limits the speed",
        "Where the time of a training step goes (input, forward, backward, communication, optimizer, between steps, "
        "evaluation, checkpoints, vario itself), the one part that limits the speed, and what to try.",
        explain_speed,
        (RUN, RANK),
    ),
    Tool(
        "compare_ranks",
        "Ranks of a run",
        "For distributed training: the state of each rank (which crashed first, which only followed), the rank that "
        "the others wait for, and the first step at which replicas of a weight differ.",
        compare_ranks,
        (RUN,),
    ),
)
