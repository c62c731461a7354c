import json
import os
import subprocess
import sys

import numpy as np
import pytest

from made_runs import NAMES, STATISTICS, check_rows, frame, header, record, small_parts, summary, tensor, write_run
from vario.core.errors import ConfigError, MissingExtra, RunCorrupt, RunNotFound, RunTooNew
from vario.core.records import COLUMNS
from vario.runs.files.status import STALLED_SECONDS
from vario.runs.run import list_runs, open_run
from vario.sinks.store import Store


def oracle(steps, target, statistic, micro_steps=(0,), ranks=(0,)):
    """The statistic of all elements behind a point at once, by numpy."""
    formulas = {
        "norm": np.linalg.norm,
        "mean": np.mean,
        "std": np.std,
        "max": np.max,
        "absmax": lambda values: np.abs(values).max(),
    }
    points = [
        np.concatenate([tensor(step, target, micro, rank) for micro in micro_steps for rank in ranks]) for step in steps
    ]
    return [formulas[statistic](values) for values in points]


@pytest.fixture(params=["live", "parts", "mixed"])
def micro_run(request, tmp_path):
    """Ten steps of two micro-steps: still in the live stream, all compacted, or some of each."""
    store = Store() if request.param == "live" else small_parts()
    records = [record(step, frame(step), frame(step, micro_step=1, order=4)) for step in range(10)]
    write_run(tmp_path / "run", records, store, close="finished" if request.param == "parts" else None)
    return open_run(tmp_path / "run")


@pytest.mark.parametrize("statistic", ["norm", "mean", "std", "max", "absmax"])
def test_a_series_merges_micro_steps_exactly(micro_run, statistic):
    series = micro_run.series("head.weight", "gradient", statistic)
    assert series.steps.tolist() == list(range(10))
    np.testing.assert_allclose(series.values, oracle(range(10), "head.weight", statistic, (0, 1)), rtol=1e-12)
    assert (series.target, series.quantity, series.statistic, series.rank) == (
        "head.weight",
        "gradient",
        statistic,
        "all",
    )


def test_micro_steps_can_be_kept_apart(micro_run):
    series = micro_run.series("head.weight", "gradient", "norm", micro_steps=True)
    assert series.steps.tolist() == sorted([*range(10)] * 2)
    assert series.micro_steps.tolist() == [0, 1] * 10
    expected = [oracle([step], "head.weight", "norm", (micro,))[0] for step in range(10) for micro in range(2)]
    np.testing.assert_allclose(series.values, expected, rtol=1e-12)


def test_a_frame_holds_all_rows_of_a_step_in_order(micro_run):
    table = micro_run.frame(7, "gradient")
    assert table.column("target").to_pylist() == [*NAMES, *NAMES]
    assert table.column("micro_step").to_pylist() == [0] * 4 + [1] * 4
    expected = [summary(tensor(7, name, micro)) for micro in range(2) for name in NAMES]
    assert [[row[name] for name in COLUMNS] for row in table.to_pylist()] == [list(row) for row in expected]


def test_a_step_that_was_not_recorded_names_the_nearest(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in (0, 10, 20)])
    with pytest.raises(ConfigError, match=r"gradient was not recorded at step 13\. The nearest is 10\."):
        open_run(tmp_path / "run").frame(13, "gradient")


def test_tables_have_the_schema_of_the_files_and_come_in_step_order(micro_run):
    table = micro_run.to_arrow("gradient")
    assert table.column_names == ["step", "micro_step", "order", "target", *COLUMNS]
    assert table.column("step").to_pylist() == sorted([*range(10)] * 8)
    pandas = micro_run.to_pandas("scalar")
    assert pandas["value"].tolist() == [1 / (step + 1) for step in range(10)]


def test_all_ranks_merge_into_one_series(tmp_path):
    for rank in range(3):
        write_run(
            tmp_path / "run", [record(s, frame(s, rank=rank), loss=rank) for s in range(4)], rank=rank, world_size=3
        )
    run = open_run(tmp_path / "run")
    series = run.series("head.weight", "gradient", "std", rank="all")
    np.testing.assert_allclose(series.values, oracle(range(4), "head.weight", "std", ranks=(0, 1, 2)), rtol=1e-12)
    one = run.series("head.weight", "gradient", "std", rank=2)
    np.testing.assert_allclose(one.values, oracle(range(4), "head.weight", "std", ranks=(2,)), rtol=1e-12)
    assert run.series("loss", "scalar", "value", rank="all").values.tolist() == [1.0] * 4
    answer = run.sql("select rank, max(value) as loss from scalar group by rank order by rank")
    assert answer.to_pydict() == {"rank": [0, 1, 2], "loss": [0.0, 1.0, 2.0]}


def test_targets_come_in_the_order_they_were_observed(tmp_path):
    activations = ("embed:output", "layers.0:input", "layers.0:output")
    both = [
        record(
            step,
            frame(step, "activation", activations, order=0),
            frame(step, "gradient", ("z.weight", "a.weight"), order=3),
        )
        for step in range(9)
    ]
    for close in (None, "finished"):
        path = tmp_path / str(close)
        asked = {"statistics": STATISTICS, "quantities": ["gradient", "activation"]}
        write_run(path, both, small_parts(), close=close, config=asked)
        run = open_run(path)
        assert run.targets() == [*activations, "z.weight", "a.weight", "loss"]
        assert run.targets("gradient") == ["z.weight", "a.weight"]
        assert run.targets("activation", "layers.*") == ["layers.0:input", "layers.0:output"]
        assert run.targets(pattern=r"re:.*\.weight") == ["z.weight", "a.weight"]
        assert run.targets("activation", "embed:output") == ["embed:output"]
        assert run.quantities() == ["gradient", "activation", "scalar"]


def test_a_module_without_a_side_means_its_output(tmp_path):
    frames = [frame(0, "activation", ("mlp:input", "mlp:output", "attn:input"))]
    write_run(tmp_path / "run", [record(0, *frames)])
    run = open_run(tmp_path / "run")
    assert run.series("mlp", "activation", "norm").target == "mlp:output"
    with pytest.raises(ConfigError, match="Did you mean 'attn:input'"):
        run.series("attn", "activation", "norm")


def test_unknown_names_suggest_the_nearest(micro_run):
    with pytest.raises(ConfigError, match=r"target: unknown 'head\.wieght'\. Did you mean 'head\.weight'"):
        micro_run.series("head.wieght", "gradient", "norm")
    with pytest.raises(ConfigError, match=r"quantity: unknown 'gradiant'\. Did you mean 'gradient'"):
        micro_run.series("head.weight", "gradiant", "norm")
    with pytest.raises(ConfigError, match=r"statistic: unknown 'nrom'\. Did you mean 'norm'"):
        micro_run.series("head.weight", "gradient", "nrom")
    with pytest.raises(ConfigError, match=r"statistic: unknown 'norm'\. Known: value"):
        micro_run.series("loss", "scalar", "norm")
    with pytest.raises(ConfigError, match=r"rank: 3 recorded nothing\. Known: 0"):
        micro_run.series("head.weight", "gradient", "norm", rank=3)


def test_a_statistic_that_was_not_recorded_is_refused_not_invented(tmp_path):
    write_run(tmp_path / "run", [record(0)], config={"statistics": ["norm"]})
    run = open_run(tmp_path / "run")
    assert len(run.series("head.weight", "gradient", "norm")) == 1
    with pytest.raises(ConfigError, match=r"'absmax' needs min and max, which this run did not record"):
        run.series("head.weight", "gradient", "absmax")


def test_sql_sees_parts_live_rows_and_derived_statistics(micro_run):
    answer = micro_run.sql(
        "select step, norm, mean, rms, std, absmax from gradient "
        "where target = 'head.weight' and micro_step = 0 order by step"
    )
    for statistic in ("norm", "mean", "std", "absmax"):
        expected = oracle(range(10), "head.weight", statistic)
        np.testing.assert_allclose(answer.column(statistic).to_numpy(), expected, rtol=1e-9)
    with pytest.raises(ConfigError, match=r"sql: .*gradeint"):
        micro_run.sql("select * from gradeint")


def test_an_extra_that_is_missing_names_its_install_line(micro_run, monkeypatch):
    for package, extra, call in (
        ("duckdb", "sql", lambda: micro_run.sql("select 1")),
        ("pandas", "pandas", lambda: micro_run.to_pandas("scalar")),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtra, match=rf"pip install 'vario\[{extra}\]'"):
            call()


def test_a_run_is_found_by_folder_parent_or_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("first", "second", "third")):
        write_run(tmp_path / "vario_runs" / name, [record(0)], started=1000.0 + [0, 9, 5][number])
    assert open_run(tmp_path / "vario_runs" / "first").name == "first"
    assert open_run("vario_runs").name == "second", "the newest"
    assert open_run("third").name == "third"
    assert [run.name for run in list_runs("vario_runs")] == ["first", "third", "second"]
    with pytest.raises(RunNotFound, match=r"thrid: no such folder\. In vario_runs: Did you mean 'third'"):
        open_run("thrid")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunNotFound, match=r"not a run, and contains no runs\. A run is a folder with a run\.json"):
        open_run(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunNotFound, match="not a folder"):
        open_run(tmp_path / "file")
    assert list_runs(tmp_path / "nowhere") == []


def test_damage_names_the_file_and_the_reason(tmp_path):
    write_run(tmp_path / "run", [record(0)])
    part = tmp_path / "run" / "rank0" / "gradient" / "part-000001.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-20])
    with pytest.raises(RunCorrupt, match=r"part-000001\.parquet: not readable as Parquet"):
        open_run(tmp_path / "run").to_arrow("gradient")
    part.unlink()
    part.with_suffix(".arrow").write_text("some text that is no stream")
    with pytest.raises(RunCorrupt, match=r"part-000001\.arrow: not readable as an Arrow stream"):
        open_run(tmp_path / "run").to_arrow("gradient")
    part.with_suffix(".arrow").unlink()
    (tmp_path / "run" / "rank0" / "gradient.live.arrow").write_text("some text that is no stream")
    with pytest.raises(RunCorrupt, match=r"gradient\.live\.arrow: not readable as an Arrow stream"):
        open_run(tmp_path / "run").to_arrow("gradient")


def test_a_bad_description_names_the_file_and_spares_the_other_runs(tmp_path, caplog):
    for name in ("good", "broken", "newer", "odd"):
        write_run(tmp_path / name, [record(0)])
    (tmp_path / "broken" / "run.json").write_text('{"format": 1, "st')
    (tmp_path / "newer" / "run.json").write_text('{"format": 3}')
    (tmp_path / "odd" / "run.json").write_text("[]")
    with pytest.raises(RunCorrupt, match=r"run\.json: not readable as JSON"):
        open_run(tmp_path / "broken")
    with pytest.raises(RunCorrupt, match="expected an object"):
        open_run(tmp_path / "odd")
    with pytest.raises(RunTooNew, match=r"written by a newer vario \(format 3\); pip install -U vario"):
        open_run(tmp_path / "newer")
    assert [run.name for run in list_runs(tmp_path)] == ["good"]
    assert len(caplog.records) == 3


def test_the_state_is_checked_against_the_process_and_the_clock(tmp_path):
    write_run(tmp_path / "run", [record(0)], close=None)
    run = open_run(tmp_path / "run")
    assert run.state == "running"
    status = tmp_path / "run" / "rank0" / "rank.json"
    content = json.loads(status.read_text())

    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    status.write_text(json.dumps({**content, "pid": gone.pid}))
    assert run.state == "crashed"

    status.write_text(json.dumps({**content, "host": "another-machine", "pid": gone.pid}))
    assert run.state == "running"
    for entry in [tmp_path / "run" / "run.json", *(tmp_path / "run" / "rank0").iterdir()]:
        os.utime(entry, (0, entry.stat().st_mtime - STALLED_SECONDS - 1))
    assert run.state == "stalled"


def test_one_crashed_rank_makes_a_crashed_run(tmp_path):
    write_run(tmp_path / "run", [record(0)], world_size=2)
    write_run(tmp_path / "run2", [record(0)], world_size=2, close=None)
    write_run(tmp_path / "run2", [record(0)], rank=1, world_size=2, close="crashed")
    assert open_run(tmp_path / "run").state == "finished"
    assert open_run(tmp_path / "run2").state == "crashed"


def test_a_run_describes_itself(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(3)], started=1234.5)
    run = open_run(tmp_path / "run")
    assert (run.name, run.started, run.ranks, run.last_step, run.world_size) == ("run", 1234.5, [0], 2, 1)
    assert (run.config["eps"], run.versions, run.command) == (1e-8, {"vario": "0.1.0"}, "python train.py")
    assert run.structure()["modules"][0]["name"] == "head"
    assert (run.parts_off, run.dropped_steps, run.error) == ([], 0, None)
    assert len(run.id) == 12
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert open_run(moved).id == run.id


def test_a_reader_opened_before_a_resume_sees_what_was_taken_back(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(6)])
    run = open_run(tmp_path / "run")
    check_rows(run.to_arrow("gradient"), range(6))
    again = Store()
    again.open(header(tmp_path / "run", resume=True, first_step=2))
    check_rows(run.to_arrow("gradient"), range(2))
    again.write(record(2))
    check_rows(run.to_arrow("gradient"), range(3))
    assert run.series("head.weight", "gradient", "norm").steps.tolist() == [0, 1, 2]
    assert run.state == "running"
    again.close("finished", None)


def test_without_a_quantity_all_rows_come_together_in_the_order_of_observation(tmp_path):
    rows = [record(step, frame(step), frame(step, quantity="weight", order=4), loss=1.0) for step in range(3)]
    write_run(tmp_path / "run", rows)
    run = open_run(tmp_path / "run")
    together = run.to_arrow()
    apart = [run.to_arrow(name) for name in run.quantities() if name != "scalar"]
    assert together.num_rows == sum(table.num_rows for table in apart) > 0
    step = together.column("step")[0].as_py()
    shown = run.frame(step)
    assert set(shown.column("quantity").to_pylist()) == {"gradient", "weight"}
    order = shown.column("order").to_pylist()
    assert order == sorted(order)
    assert len(run.to_pandas()) == together.num_rows


def test_a_notebook_says_what_the_rules_did_not_cover(tmp_path):
    write_run(tmp_path / "run", [record(step) for step in range(3)])
    assert "no rules ran during training" in open_run(tmp_path / "run")._repr_html_()
