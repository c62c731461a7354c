"""Several ranks resume one run: all count sessions and steps alike, whoever comes first and whoever did not come."""

import json
import os

import pytest

from made_runs import check_rows, frame, header, record, small_parts
from vario.runs.run import open_run
from vario.sinks.store import Store


def come(path, rank, world_size=2, **changes):
    store = small_parts()
    store.open(header(path, rank=rank, world_size=world_size, resume=True, **changes))
    return store


def write(store, steps, rank, close="finished"):
    for step in steps:
        store.write(record(step, frame(step, rank=rank), loss=float(rank)))
    if close:
        store.close(close, None)


def first_session(path, lengths, close=None):
    for rank, length in enumerate(lengths):
        store = Store()
        store.open(header(path, rank=rank, world_size=len(lengths)))
        write(store, range(length), rank, close)


def session_of(path, rank):
    return json.loads((path / f"rank{rank}" / "rank.json").read_text())["session"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_rank_that_is_new_counts_sessions_as_the_others_do(tmp_path, order):
    path = tmp_path / "run"
    first_session(path, [4, 4])
    stores = {rank: come(path, rank, world_size=3) for rank in order}
    assert {store.first_step for store in stores.values()} == {4}
    for rank in order:
        write(stores[rank], [4, 5], rank)
        assert session_of(path, rank) == 1
    # A checkpoint of step 5 is loaded: all ranks' rows from there on are taken back.
    stores = {rank: come(path, rank, world_size=3, first_step=5) for rank in order}
    for rank in order:
        write(stores[rank], [5], rank)
        assert session_of(path, rank) == 2
    run = open_run(path)
    assert [session["first_step"] for session in run.sessions] == [0, 4, 5]
    for rank, steps in {0: range(6), 1: range(6), 2: (4, 5)}.items():
        check_rows(run.to_arrow("gradient", rank), steps, rank=rank)


def test_the_step_is_agreed_on_before_the_leading_rank_writes_more(tmp_path):
    path = tmp_path / "run"
    first_session(path, [4, 6])
    leading = come(path, 0)
    write(leading, range(4, 40), 0)
    late = come(path, 1)
    assert late.first_step == leading.first_step == 4
    write(late, range(4, 8), 1)
    check_rows(open_run(path).to_arrow("gradient", 1), range(8), rank=1)


def test_a_session_in_which_the_leading_rank_never_came_is_counted(tmp_path):
    path = tmp_path / "run"
    first_session(path, [3, 3])
    alone = come(path, 1)
    write(alone, [3, 4], 1, close=None)
    run = open_run(path)
    assert [session["first_step"] for session in run.sessions] == [0, 3], "known before run.json says so"
    os.utime(path / "session-1.json", (0, 0))  # the ranks to come are processes that began later
    stores = {rank: come(path, rank) for rank in (0, 1)}
    assert {store.first_step for store in stores.values()} == {3}
    for rank, store in stores.items():
        write(store, [3], rank)
        assert session_of(path, rank) == 2
    assert [session["first_step"] for session in run.sessions] == [0, 3, 3]
    for rank in (0, 1):
        check_rows(run.to_arrow("gradient", rank), range(4), rank=rank)


def test_resuming_where_nothing_is_starts_one_session_for_all(tmp_path):
    path = tmp_path / "run"
    for rank in (0, 1):
        write(come(path, rank), [0, 1], rank)
        assert session_of(path, rank) == 0
    assert len(open_run(path).sessions) == 1


def test_ranks_that_record_without_rank_0_go_by_the_lowest_of_them(tmp_path):
    path = tmp_path / "run"
    config = {"ranks": [1, 3]}
    for rank, length in ((3, 6), (1, 4)):
        store = Store()
        store.open(header(path, rank=rank, world_size=4, config=config))
        write(store, range(length), rank, close=None)
    stores = {rank: come(path, rank, world_size=4, config=config) for rank in (3, 1)}
    assert {store.first_step for store in stores.values()} == {4}
    for rank, store in stores.items():
        write(store, [4], rank)
    run = open_run(path)
    assert (run.ranks, run.world_size, len(run.sessions), run.state) == ([1, 3], 4, 2, "finished")
    for rank in (1, 3):
        check_rows(run.to_arrow("gradient", rank), range(5), rank=rank)


def test_where_the_leading_rank_recorded_nothing_the_others_tell_the_step(tmp_path):
    path = tmp_path / "run"
    store = Store()
    store.open(header(path, rank=1, world_size=2))
    write(store, range(5), 1, close=None)
    assert come(path, 0).first_step == come(path, 1).first_step == 5


def test_a_run_that_goes_on_with_fewer_ranks_is_not_held_to_be_crashed(tmp_path):
    path = tmp_path / "run"
    first_session(path, [2, 2], close="crashed")
    assert open_run(path).state == "crashed"
    store = come(path, 0, world_size=1)
    run = open_run(path)
    assert (run.state, run.error) == ("running", None)
    assert {found.rank: found.state for found in run.rank_states} == {0: "running", 1: "left"}
    write(store, [2], 0)
    assert (run.state, open_run(path).world_size, run.ranks) == ("finished", 1, [0, 1])
