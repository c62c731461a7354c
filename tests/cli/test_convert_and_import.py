"""convert and import, on a few of msprobe's files with known numbers."""

import json
import sqlite3
from contextlib import closing

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vario.cli import main


@pytest.fixture
def monitor_output(run_folder):
    for rank in range(2):
        folder = run_folder / "monitor_output" / f"Dec03_21-34-4{rank}-rank{rank}-0a1b2c3d"
        folder.mkdir(parents=True)
        for kind in ("grad_reduced", "param_updated"):
            for step in range(3):
                row = f'0,head.weight,{step},{step + rank}.5,0.25,"[2, 2]",torch.float32\n'
                (folder / f"{kind}_{step}-{step}.csv").write_text(f"vpp_stage,name,step,norm,mean,shape,dtype\n{row}")
    return run_folder / "monitor_output"


def answer(capsys, *words):
    assert main(list(words)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_converting_to_tensorboard_says_where_it_went(monitor_output, capsys):
    words = ["--types", "grad_reduced", "--processes", "2", "--output", "events"]
    assert answer(capsys, "convert", "--to", "tensorboard", "monitor_output", *words) == "events  6 rows, 2 ranks\n"
    events = EventAccumulator("events/rank1/grad_reduced")
    events.Reload()
    assert [event.value for event in events.Scalars("vp0:head.weight/norm")] == [1.5, 2.5, 3.5]


def test_converting_to_sqlite_answers_in_json(monitor_output, capsys):
    words = ["--time-start", "Dec03_21-34-41", "--time-end", "Dec03_21-34-59", "--step-partition", "2", "--json"]
    done = json.loads(answer(capsys, "convert", "--to", "sqlite", "monitor_output", *words))
    assert (done["ranks"], done["num_rows"], done["remarks"]) == ([1], 6, [])
    with closing(sqlite3.connect(done["output"])) as connection:
        assert connection.execute("select norm from metric_1_step_2_3").fetchall() == [(3.5,)]


def test_an_imported_run_is_read_by_the_other_commands(monitor_output, capsys):
    said = answer(capsys, "import", "--from", "msprobe", "monitor_output", "--name", "old")
    assert said == "vario_runs/old  3 steps, 12 rows, 2 ranks\n"
    (listed,) = json.loads(answer(capsys, "ls", "--json"))
    assert (listed["last_step"], listed["quantities"]) == (2, ["gradient_applied", "weight"])
    report = json.loads(answer(capsys, "report", "old", "--json"))
    assert (report["first_step"], report["last_step"], report["num_steps"]) == (0, 2, 3)
    assert "3 (0 to 2)" in answer(capsys, "report", "old")
    (shown,) = json.loads(answer(capsys, "show", "old", "head.weight", "--quantity", "weight", "--json"))
    assert shown["values"] == [0.5, 1.5, 2.5]
    assert answer(capsys, "export", "old", "--format", "csv").count("3 rows") == 4


def test_import_takes_a_range_and_answers_in_json(monitor_output, capsys):
    words = ["--time-start", "Dec03_21-34-41", "--directory", "elsewhere", "--json"]
    done = json.loads(answer(capsys, "import", "--from", "msprobe", "monitor_output", *words))
    assert done["ranks"] == [1]
    assert done["path"].startswith("elsewhere/msprobe-")


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "--to", "sqlite", "nowhere"],
        ["convert", "--to", "tensorboard", "monitor_output", "--types", "grad"],
        ["convert", "monitor_output"],
        ["import", "--from", "msprobe", "nowhere"],
        ["import", "--from", "wandb", "monitor_output"],
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(monitor_output, capsys, words):
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "beginning"),
    [
        (["convert", "--to", "sqlite", "nowhere"], "DIR: 'nowhere' is not a folder"),
        (["convert", "--to", "sqlite", ".", "--types", "grad_reduced, x"], "--types: unknown 'x'. Known: actv, "),
        (["convert", "--to", "sqlite", ".", "--processes", "0"], "--processes: expected a whole number"),
        (["convert", "--to", "sqlite", ".", "--step-partition", "0"], "--step-partition: expected a whole number"),
        (["convert", "--to", "tensorboard", "monitor_output", "--output", "."], "--output: '.' exists"),
        (["convert", "--to", "tensorboard", ".", "--time-start", "now"], "--time-start: expected a time like"),
        (["import", "--from", "msprobe", "nowhere"], "DIR: 'nowhere' is not a folder"),
        (["import", "--from", "msprobe", ".", "--time-end", "now"], "--time-end: expected a time like"),
    ],
)
def test_a_mistake_is_named_as_it_was_typed(monitor_output, capsys, words, beginning):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"vario: {beginning}")


def test_types_that_nobody_knows_are_answered_with_the_list_once(monitor_output, capsys):
    assert main(["convert", "--to", "tensorboard", "monitor_output", "--types", "xyz"]) == 2
    assert capsys.readouterr().err.count("param_updated") == 1
