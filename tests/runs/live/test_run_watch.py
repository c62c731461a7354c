"""A run that is watched while it is written, step by step, however looks and steps fall: the same as a replay later."""

import os
import random

import numpy as np
import pytest

import made_runs
import vario
from vario.core.records import COUNT, MAX, MIN, NANS, SUM_SQUARES, Frame, Scalars, StepRecord
from vario.rules import choose
from vario.runs.live.rank_follower import QuantityFollower
from vario.runs.live.run_watch import RunWatch
from vario.store.compacting import compact_run

NAMES = ("a:output", "b:output", "c:output")
RANKS = 3
ODD_STEP = 42


def record(step, rank, odd=ODD_STEP, micro_steps=2, seconds=0.5):
    """A step of a rank whose activations are alike but for one moment of one rank."""
    rng = np.random.default_rng([step, rank])
    frames = []
    for micro in range(micro_steps):
        size = np.exp(rng.normal(0, 0.02, 3)) * (60 if (step, rank) == (odd, 1) else 1)
        rows = np.zeros((3, 8))
        rows[:, COUNT], rows[:, SUM_SQUARES], rows[:, MIN], rows[:, MAX] = 16, 16 * size**2, -2 * size, 2 * size
        rows[:, NANS] = 0
        orders = np.arange(3, dtype=np.int32) + 3 * micro
        frames.append(Frame("activation", step, micro, NAMES, orders, rows))
    loss = 1.0 + rng.normal(0, 0.01)
    return StepRecord(step, frames, Scalars(step, 100.0 + seconds * step, {"loss": loss, "step_seconds": seconds}))


def open_stores(path, **options):
    stores = []
    for rank in range(RANKS):
        store = made_runs.small_parts()
        store.open(made_runs.header(path, rank=rank, world_size=RANKS, **options))
        stores.append(store)
    return stores


def plain(alerts):
    return [alert.to_json() for alert in alerts]


@pytest.mark.parametrize("seed", range(4))
def test_looks_at_any_moment_find_what_a_replay_finds(tmp_path, seed):
    chance = random.Random(seed)
    stores = open_stores(tmp_path / "run")
    watch = RunWatch(tmp_path / "run", choose(None))
    found, told, at = [], [], [0] * RANKS
    while min(at) < 60:
        rank = chance.choice([rank for rank in range(RANKS) if at[rank] < min(60, min(at) + 5)])
        stores[rank].write(record(at[rank], rank))
        at[rank] += 1
        if chance.random() < 0.2:
            news = watch.look(now=200.0)
            found += news.alerts
            told += news.incidents
            assert not news.is_over
            assert news.num_steps <= min(at)
    for store in stores:
        store.close("finished", None)
    news = watch.look(now=200.0)
    assert news.is_over
    assert news.num_steps == 60
    later = vario.check(vario.open_run(tmp_path / "run"), choose(None))
    assert plain([*found, *news.alerts]) == plain(later.alerts)
    outlier = next(alert for alert in later.alerts if alert.rule == "rank_outlier")
    assert (outlier.rank, outlier.step) == (1, ODD_STEP)
    leads = [(one.lead.rule, one.lead.step, one.rank) for one in [*told, *news.incidents]]
    assert {(one.lead.rule, one.lead.step, one.rank) for one in later.incidents} <= set(leads)


def test_an_outlier_is_told_while_the_run_goes_on(tmp_path):
    stores = open_stores(tmp_path / "run")
    watch = RunWatch(tmp_path / "run", choose(["rank_outlier"]))
    told = {}
    for step in range(ODD_STEP + 10):
        for rank, store in enumerate(stores):
            store.write(record(step, rank))
        for incident in watch.look(now=200.0).incidents:
            told[incident.lead.step] = step
    # Known a step later, since a step is complete when the next one begins, and told after three more.
    assert told == {ODD_STEP: ODD_STEP + 4}


def test_each_row_is_read_once_however_its_stream_becomes_a_part(tmp_path):
    stores = open_stores(tmp_path / "run")
    follower = QuantityFollower(tmp_path / "run" / "rank0", "activation")
    rows = []
    sessions = [{"first_step": 0}]
    for step in range(25):
        stores[0].write(record(step, 0))
        if step % 3 == 0:
            rows += [row for table in follower.new_rows(sessions) for row in table.to_pylist()]
    stores[0].close("finished", None)
    rows += [row for table in follower.new_rows(sessions) for row in table.to_pylist()]
    assert not follower.new_rows(sessions)
    keys = [(row["step"], row["micro_step"], row["target"]) for row in rows]
    assert len(keys) == len(set(keys)) == 25 * 2 * 3
    assert keys == sorted(keys)
    for row in rows:
        expected = record(row["step"], 0).frames[row["micro_step"]].summaries[NAMES.index(row["target"])]
        assert row["sum_squares"] == expected[SUM_SQUARES]


def test_a_torn_batch_waits_until_it_is_whole(tmp_path):
    stores = open_stores(tmp_path / "run")
    for step in range(3):
        stores[0].write(record(step, 0))
    live = tmp_path / "run" / "rank0" / "activation.live.arrow"
    whole = live.read_bytes()
    follower = QuantityFollower(tmp_path / "run" / "rank0", "activation")
    seen = []
    for size in range(1, len(whole), 57):
        live.write_bytes(whole[:size])
        seen += [row for table in follower.new_rows([{"first_step": 0}]) for row in table.to_pylist()]
    live.write_bytes(whole)
    seen += [row for table in follower.new_rows([{"first_step": 0}]) for row in table.to_pylist()]
    assert [(row["step"], row["micro_step"]) for row in seen] == [
        (step, micro) for step in range(3) for micro in range(2) for _ in NAMES
    ]


def test_steps_that_are_trained_anew_are_looked_at_anew(tmp_path):
    path = tmp_path / "run"
    stores = open_stores(path)
    watch = RunWatch(path, choose(["rank_outlier"]))
    for step in range(50):
        for rank, store in enumerate(stores):
            store.write(record(step, rank))
    assert {alert.step for alert in watch.look(now=200.0).alerts} == {ODD_STEP}
    for store in stores:
        store.close("finished", None)
    watch.look(now=200.0)
    stores = open_stores(path, resume=True, first_step=40)
    found = []
    for step in range(40, 60):
        for rank, store in enumerate(stores):
            # This time it is another step that is odd.
            store.write(record(step, rank, odd=55))
        found += watch.look(now=200.0).alerts
    for store in stores:
        store.close("finished", None)
    found += watch.look(now=200.0).alerts
    later = vario.check(vario.open_run(path), ["rank_outlier"]).alerts
    assert plain(found) == plain(later)
    assert {alert.step for alert in found} == {55}


def test_a_rank_that_makes_no_step_is_told_once_and_so_is_its_return(tmp_path):
    stores = open_stores(tmp_path / "run")
    watch = RunWatch(tmp_path / "run", choose(["rank_outlier"]), stall_seconds=60)
    for step in range(5):
        for rank, store in enumerate(stores):
            store.write(record(step, rank, seconds=10.0))
    assert not watch.look(now=150.0).troubles
    for rank in (0, 1):
        stores[rank].write(record(5, rank, seconds=10.0))
    # A minute is not enough for steps of ten seconds: ten of them are.
    assert not watch.look(now=215.0).troubles
    (trouble,) = watch.look(now=241.0).troubles
    assert (trouble.rank, trouble.kind, trouble.last_step, trouble.usual_seconds) == (2, "stalled", 4, 10.0)
    assert trouble.seconds > 100
    assert not watch.look(now=260.0).troubles
    stores[2].write(record(5, 2, seconds=10.0))
    assert [(news.rank, news.kind) for news in watch.look(now=270.0).troubles] == [(2, "well")]
    for store in stores:
        store.close("finished", None)
    assert not watch.look(now=10_000.0).troubles


def test_a_rank_whose_process_is_gone_is_told_and_not_waited_for(tmp_path):
    stores = open_stores(tmp_path / "run")
    for step in range(40):
        for rank, store in enumerate(stores):
            store.write(record(step, rank))
    # As rank.json looks when the process that wrote it was killed.
    gone = os.posix_spawn("/bin/true", ["/bin/true"], {})
    os.waitpid(gone, 0)
    status = tmp_path / "run" / "rank2" / "rank.json"
    status.write_text(status.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {gone}'))
    news = RunWatch(tmp_path / "run", choose(["rank_outlier"])).look(now=120.0)
    assert [(trouble.rank, trouble.kind, trouble.last_step) for trouble in news.troubles] == [(2, "died", 39)]
    assert news.is_over
    assert news.num_steps == 40


@pytest.mark.parametrize("num_read", [0, 7, 23])
def test_rows_come_once_when_parts_are_merged_between_two_looks(tmp_path, num_read):
    store = made_runs.small_parts()
    store.open(made_runs.header(tmp_path / "run"))
    follower = QuantityFollower(tmp_path / "run" / "rank0", "activation")
    found = []
    for step in range(100):
        if step == num_read:
            found += follower.new_rows([{"first_step": 0}])
        store.write(record(step, 0))
    store.close("finished", None)
    compact_run(tmp_path / "run", "all")
    parts = list((tmp_path / "run" / "rank0" / "activation").glob("part-*"))
    assert len(parts) < 10
    found += follower.new_rows([{"first_step": 0}])
    steps = [step for table in found for step in table.column("step").to_pylist()]
    assert sorted(steps) == sorted([*range(100)] * 2 * len(NAMES))
    assert follower.new_rows([{"first_step": 0}]) == []
