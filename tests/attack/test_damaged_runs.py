"""Damaged run folders: every function and command says which file is wrong, and how, or reads on."""

import contextlib
import io
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import PLAN, batches, run_batch
from hostile_runs import seeds, spoiled  # noqa: F401 - a fixture
from odd_tables import with_column

import vario
from vario.cli import main
from vario.core.errors import VarioError
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat
from vario.runs.views.status.brief import read_brief
from vario.runs.views.status.vitals import read_vitals

ASKED = 9
"""Of all questions, those that one case asks."""
DEAR = 8
"""SQL and a page cost as much as ten other questions: one case in so many asks for each."""


def questions(run):
    """What can be asked of a run, each by itself."""
    properties = (
        *("state", "error", "ended", "config", "parts_off"),
        *("rank_states", "alerts", "incidents", "last_step", "statistics"),
    )
    yield from ((name, lambda name=name: getattr(run, name)) for name in properties)
    yield from (("structure", run.structure), ("collectives", run.collectives))
    yield from (("vitals", lambda: read_vitals(run)), ("brief", lambda: read_brief(run)))
    yield from (("everything", run.to_arrow), ("names", run.targets), ("a step", lambda: run.frame(5)))
    for quantity in ("gradient", "scalar"):
        target = "loss" if quantity == "scalar" else "head.weight"
        asked = {
            "targets": lambda q=quantity: run.targets(q),
            "steps": lambda q=quantity: run.steps(q, "all"),
            "rows": lambda q=quantity: run.to_arrow(q),
            "frame": lambda q=quantity: run.frame(5, q),
            "merged frame": lambda q=quantity: run.frame(5, q, "all"),
            "series": lambda q=quantity, t=target: run.series(t, q),
            "series of a rank": lambda q=quantity, t=target: run.series(t, q, rank=0),
            "heat": lambda q=quantity: read_heat(run, q),
            "curve": lambda q=quantity, t=target: read_curve(run, t, q),
            "bad rows": lambda q=quantity: run.bad_rows(q, 0),
        }
        yield from ((f"{name} of {quantity}", ask) for name, ask in asked.items())


def chosen(chance, run):
    """The questions of one case, in any order: what is read first is kept for what comes after it."""
    everything = list(questions(run))
    yield from chance.sample(everything, ASKED)
    if chance.random() < 1 / DEAR:
        yield "sql", lambda: run.sql("select count(*), max(norm), min(target) from gradient")
    if chance.random() < 1 / DEAR:
        yield "page", run._repr_html_


@batches("run")
def test_a_damaged_run_is_read_as_far_as_it_is_whole_or_refused_by_name(seeds, tmp_path, batch, request):  # noqa: F811
    def attempt(chance, story):
        spoiled(seeds, tmp_path / "runs", chance, story)
        vario.list_runs(tmp_path / "runs")
        with contextlib.suppress(VarioError):
            for name, ask in chosen(chance, vario.open_run(tmp_path / "runs" / "run")):
                story.append(name)
                with contextlib.suppress(VarioError):
                    ask()

    run_batch("run", batch, request, attempt)


@batches("command")
def test_commands_on_damaged_runs_end_with_a_sentence(seeds, tmp_path, batch, request):  # noqa: F811
    def attempt(chance, story):
        whole = spoiled(seeds, tmp_path / "runs", chance, story)
        run = tmp_path / "runs" / "run"
        commands = (
            ("report", run),
            ("show", run, "*"),
            ("show", run, "head.weight", "--quantity", "gradient"),
            ("check", run, "--all"),
            ("diagnose", run),
            ("diagnose", run, "--stored"),
            ("changes", run),
            ("ls", tmp_path / "runs"),
            ("diff", run, whole),
            ("diff", whole, run),
            ("export", run, "--output", tmp_path / "out", "--force"),
            ("export", run, "--html", tmp_path / "page.html", "--force"),
            ("follow", run, "--once", "--keep"),
            ("progress", run),
        )
        for words in chance.sample(commands, 2):
            story.append(" ".join(map(str, words[::2])))
            answer = io.StringIO()
            with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(answer):
                main([str(word) for word in words])
            assert "Traceback" not in answer.getvalue()

    run_batch("command", batch, request, attempt)


def test_an_error_names_the_file_what_is_wrong_and_what_is_left(seeds, tmp_path):  # noqa: F811
    shutil.copytree(seeds / "parts", tmp_path / "run")
    (tmp_path / "run/rank0/gradient/part-000002.parquet").write_bytes(b"PAR1 nothing PAR1")
    run = vario.open_run(tmp_path / "run")
    with pytest.raises(VarioError, match=r"gradient/part-000002\.parquet: not readable as Parquet.*Move the file away"):
        run.to_arrow("gradient")
    assert run.to_arrow("weight").num_rows == 48, "what lies beside it is read"
    assert run.frame(1, "gradient").num_rows == 4, "and so are other parts of it"
    (tmp_path / "run/rank0/gradient/part-000002.parquet").unlink()
    assert vario.open_run(tmp_path / "run").to_arrow("gradient").num_rows == 32


def test_ten_times_the_plan_is_twenty_thousand_cases_of_every_kind():
    assert 10 * sum(PLAN.values()) >= 20_000
    assert 10 * (PLAN["run"] + PLAN["command"]) >= 2_400
    assert 10 * (PLAN["log"] + PLAN["config"]) >= 1_600


def test_numbers_that_cannot_be_and_times_that_are_missing_end_no_question(seeds, tmp_path, capsys):  # noqa: F811
    """What ten times as many cases of the above have found."""
    run = tmp_path / "run"
    shutil.copytree(seeds / "ranks", run)
    for rank in (0, 1):
        for part in (run / f"rank{rank}/gradient").glob("*.parquet"):
            rewrite(part, "infs", [2**63 - 1])
    assert max(vario.open_run(run).frame(5, "gradient", "all").column("infs").to_pylist()) == 2**62
    shutil.rmtree(run)
    shutil.copytree(seeds / "live", run)
    live = run / "rank0/weight.live.arrow"
    live.write_bytes(live.read_bytes()[:700])
    assert vario.open_run(run).to_arrow().num_rows
    shutil.rmtree(run)
    shutil.copytree(seeds / "parts", run)
    for part in (run / "rank0/scalar").glob("*.parquet"):
        rewrite(part, "time", [None])
    for words in (("progress", run), ("follow", run, "--once", "--keep")):
        main([str(word) for word in words])
        assert "a row has no time" in capsys.readouterr().err


def rewrite(part, name, value):
    """Give a column one value in every row."""
    table = pq.read_table(part)
    column = pa.array(value * table.num_rows, table.schema.field(name).type)
    pq.write_table(with_column(table, name, column), part)
