"""What a question reads once, and what it reads again."""

import json

import made_runs
import vario
from vario.runs.files.listing_cache import listings_cached


def two_ranks(path):
    for rank in range(2):
        made_runs.write_run(path / "run", [made_runs.record(step) for step in range(3)], rank=rank, world_size=2)
    return vario.open_run(path / "run")


def change_state(run, state):
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))


def test_within_a_question_the_state_stays_and_after_it_the_new_one_is_seen(tmp_path):
    run = two_ranks(tmp_path)
    with listings_cached():
        assert run.state == "finished"
        change_state(run, "crashed")
        assert run.state == "finished"
        with listings_cached():  # a question that another one asks
            assert run.state == "finished"
    assert run.state == "crashed"
    with listings_cached():
        assert run.state == "crashed"


def test_without_a_question_everything_is_read_anew(tmp_path):
    run = two_ranks(tmp_path)
    assert run.state == "finished"
    change_state(run, "crashed")
    assert run.state == "crashed"


def test_a_question_that_fails_leaves_nothing_behind(tmp_path):
    run = two_ranks(tmp_path)
    try:
        with listings_cached():
            assert run.state == "finished"
            raise KeyError
    except KeyError:
        change_state(run, "crashed")
    assert run.state == "crashed"


def test_rows_that_come_during_a_question_are_read(tmp_path):
    store = made_runs.small_parts()
    store.open(made_runs.header(tmp_path / "run"))
    store.write(made_runs.record(0))
    run = vario.open_run(tmp_path / "run")
    with listings_cached():
        assert run.series("loss", "scalar").steps.tolist() == [0]
        store.write(made_runs.record(1))
        assert run.series("loss", "scalar").steps.tolist() == [0, 1]
    store.close("finished", None)
