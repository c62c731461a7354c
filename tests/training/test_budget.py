"""The overhead budget: intervals follow what watching costs, and the tripwire looks when something moves."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console

import vario
from vario.core.clock import Clock
from vario.core.errors import ConfigError
from vario.reports.summary import summarise
from vario.reports.summary_text import render
from vario.runs.views.speed.overhead import read_overhead
from vario.store import intervals
from vario.store.intervals import RankIntervals
from vario.training import budget
from vario.training.budget import LEAST_SECONDS, Budget
from vario.training.costs import Costs
from vario.training.tripwire import Tripwire


class Observer:
    """A quantity with a cost."""

    def __init__(self, quantity, every, cost, is_fixed=False):
        self.quantity, self.every, self.usual_every, self.cost = quantity, every, every, cost
        self.is_fixed, self.is_told, self.watching, self.is_lent = is_fixed, -1, True, False

    def end_first_steps(self):
        pass


class Frames:
    def __init__(self):
        self.logged = {}
        self.device = {}

    def log(self, name, value):
        self.logged[name] = value

    def take_device_seconds(self):
        taken, self.device = self.device, {}
        return taken


class Loop:
    """A loop that is light in every step that may be, if it is regular."""

    def __init__(self, costs, is_regular=False, trains=True):
        self.clock, self.costs, self.is_regular = Clock(), costs, is_regular
        if trains:
            self.clock.pass_began("model")

    @property
    def is_light(self):
        return self.is_regular and self.clock.step % self.costs.every > 1


def run(kept, observers, costs, steps, seconds):
    """Steps of so many seconds beside what each quantity costs where it is watched."""
    total = 0.0
    for step in range(kept._loop.clock.step, kept._loop.clock.step + steps):
        spent = 0.0
        for one in observers:
            one.watching = step % one.every == 0
            if one.watching:
                costs.add(one.quantity, one.cost)
                spent += one.cost
        total += spent
        kept.step_ended(seconds + spent)
        kept.wrote(0.0, [])
        kept._loop.clock.step += 1
    return total


def made(share, *observers, is_behind=lambda: False, ranks=None, is_regular=False, trains=True):
    costs, frames = Costs(), Frames()
    return Budget(share, observers, costs, frames, is_behind, Loop(costs, is_regular, trains), ranks), costs, frames


def test_cheap_quantities_keep_their_intervals():
    observers = Observer("gradient", 1, 1e-4), Observer("activation", 10, 5e-4)
    kept, costs, frames = made(0.02, *observers)
    run(kept, observers, costs, 200, 0.1)
    assert [one.every for one in observers] == [1, 10]
    assert frames.logged["interval/gradient"] == 1
    assert 0 < frames.logged["overhead"] < 0.02


def test_the_dearest_quantity_is_watched_less_often():
    observers = Observer("gradient", 1, 1e-4), Observer("activation", 10, 0.1)
    kept, costs, frames = made(0.02, *observers)
    run(kept, observers, costs, 200, 0.1)
    assert observers[0].every == 1
    assert observers[1].every in (80, 160)
    assert frames.logged["interval/activation"] == observers[1].every
    spent = run(kept, observers, costs, 1600, 0.1)
    assert spent / 160 <= 0.02


def test_a_loop_that_only_logs_numbers_looks_at_weights_less_often():
    chosen = {}
    for trains in (True, False):
        observer = Observer("weight", 10, 3 * LEAST_SECONDS)
        kept, costs, _ = made(0.02, observer, trains=trains)
        run(kept, [observer], costs, 200, 1e-5)
        chosen[trains] = observer.every
    assert chosen == {True: 10, False: 20}


def test_intervals_that_the_user_set_are_kept():
    observers = Observer("gradient", 1, 1e-3, is_fixed=True), Observer("activation", 10, 0.1, is_fixed=True)
    kept, costs, _ = made(0.02, *observers)
    run(kept, observers, costs, 200, 0.1)
    assert [one.every for one in observers] == [1, 10]


def test_intervals_come_back_when_steps_take_longer():
    observers = (Observer("activation", 10, 0.1),)
    kept, costs, frames = made(0.02, *observers)
    run(kept, observers, costs, 200, 0.1)
    assert observers[0].every > 10
    run(kept, observers, costs, 400, 10.0)
    assert observers[0].every == 10
    assert frames.logged["interval/activation"] == 10


def test_a_first_look_that_compiled_kernels_does_not_put_the_second_off_for_long():
    observers = (Observer("activation", 10, 5.0),)
    kept, costs, _ = made(0.02, *observers)
    run(kept, observers, costs, 5, 0.1)
    observers[0].cost = 1e-3
    run(kept, observers, costs, 12, 0.1)
    assert observers[0].every <= 40


def test_time_of_the_host_does_not_count_while_the_device_is_behind():
    observers = (Observer("activation", 10, 0.1),)
    kept, costs, frames = made(0.02, *observers, is_behind=lambda: True)
    for _ in range(4):
        for step in range(32):
            observers[0].watching = step % observers[0].every == 0
            costs.add("activation", observers[0].cost * observers[0].watching)
            frames.device = {"activation": 1e-3 * observers[0].watching}
            kept.step_ended(0.1)
    assert observers[0].every == 10


def test_short_steps_may_cost_a_tenth_of_a_millisecond():
    observers = (Observer("gradient", 1, 0.5 * LEAST_SECONDS),)
    kept, costs, _ = made(0.02, *observers)
    run(kept, observers, costs, 2000, 2e-4)
    assert observers[0].every == 1


def test_parts_that_every_step_can_do_without_become_sparse():
    kept, costs, _ = made(0.02)
    for _ in range(13):
        costs.add("batches", 5e-3)
        kept.step_ended(0.01)
    assert costs.every > 2
    ran = []
    call = costs.guarded("batches", lambda: ran.append(1), (), lambda *_: None)
    first = 16 * costs.every  # nothing is skipped in the first steps
    for step in range(first, first + 2 * costs.every):
        costs.begin_step(step)
        call()
    assert len(ran) == 4


@pytest.mark.parametrize(
    ("given", "share"), [(0.05, 0.05), ("5%", 0.05), ("0.5 %", 0.005), ("off", None), (None, None)]
)
def test_the_budget_is_a_share_a_percentage_or_off(given, share):
    assert vario.Config(overhead=given).overhead == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize("given", [0, -1, 2, "much", "%", True, [1]])
def test_another_budget_is_refused(given):
    with pytest.raises(ConfigError, match="overhead: expected a share such as"):
        vario.Config(overhead=given)


def test_the_environment_sets_the_budget_of_runs_that_set_none(monkeypatch):
    monkeypatch.setenv("VARIO_OVERHEAD", "10%")
    assert vario.Config().overhead == pytest.approx(0.1)
    monkeypatch.delenv("VARIO_OVERHEAD")
    assert vario.Config().overhead == 0.02


def test_a_norm_out_of_line_moves_the_tripwire_once():
    class Clock:
        step = 0

    class Watched:
        clock = Clock()

    observer = Observer("activation", 10, 0.0)
    observer.watched_before = 0
    tripwire = Tripwire([observer], Watched(), Costs())
    for step in range(20):
        Clock.step = step
        assert not tripwire.has_moved(1.0 + 0.1 * (step % 3))
    Clock.step = 20
    assert tripwire.has_moved(50.0)
    assert observer.watched_before == 24
    Clock.step = 30
    assert not tripwire.has_moved(5000.0)  # a moment ago
    Clock.step = 200
    assert tripwire.has_moved(float("nan"))
    Clock.step = 300
    assert not tripwire.has_moved(float("nan"))  # as before


def test_a_look_for_a_note_does_not_keep_from_looking_for_more():
    class Clock:
        step = 10

    class Watched:
        clock = Clock()

    observer = Observer("activation", 10, 0.0)
    observer.watched_before = 0
    tripwire = Tripwire([observer], Watched(), Costs())
    assert tripwire.look_closer(is_hint=True)
    Clock.step = 20
    assert not tripwire.look_closer(is_hint=True)
    assert tripwire.look_closer()
    assert observer.watched_before == 24
    Clock.step = 30
    assert not tripwire.look_closer()


def train(tmp_path, steps, at=None, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    with vario.watch(model, optimizer, directory=str(tmp_path), name="run", **options):
        for step in range(steps):
            inputs = torch.randn(16, 8)
            loss = model(inputs).square().mean() * (1e4 if step == at else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, vario.open_run(tmp_path / "run")


def test_a_real_run_keeps_its_loss_and_norm_at_every_step_and_everything_where_they_move(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "LEAST_FOR_LOOKS", 1e-3)  # whatever this machine's steps cost
    losses, run = train(tmp_path / "with", 300, at=211, overhead=0.001)
    unwatched, _ = train(tmp_path / "without", 300, at=211, overhead="off", quantities=[])
    assert losses == unwatched
    assert run.parts_off == []
    for name in ("loss_backward", "lr", "step_seconds", "gradient_norm"):
        assert run.series(name, "scalar").steps.tolist() == list(range(300)), name
    steps = run.steps("gradient").tolist()
    assert len(steps) < 100
    # The step whose norm moved records no distributions, for which gradients would be watched. It is there with
    # everything that it still had, and the steps after it with the rest.
    assert 211 in steps
    assert 211 in run.steps("weight")
    assert {212, 213, 214} <= set(run.steps("activation").tolist())
    norm = run.series("gradient_norm", "scalar")
    rows = [run.series(name, "gradient", "norm") for name in run.targets("gradient")]
    at = [series.values[series.steps.tolist().index(211)] for series in rows]
    assert norm.values[211] == pytest.approx(np.sqrt(np.sum(np.square(at))), rel=1e-5)
    assert run.series("interval/activation", "scalar").values[-1] > 10
    assert (run.series("overhead", "scalar").values >= 0).all()


def test_without_a_budget_intervals_stay(tmp_path):
    _, run = train(tmp_path, 60, overhead="off")
    assert run.steps("gradient").tolist() == list(range(60))
    assert not [name for name in run.targets("scalar") if name.startswith(("interval/", "overhead", "gradient_norm"))]


def test_what_the_user_set_is_recorded_whatever_it_costs(tmp_path):
    _, run = train(tmp_path, 60, overhead=0.001, every={"gradient": 1, "activation": 5})
    assert run.steps("gradient").tolist() == list(range(60))
    assert run.steps("activation").tolist() == list(range(0, 60, 5))


def test_the_report_tells_what_watching_costs(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "LEAST_FOR_LOOKS", 1e-3)
    _, run = train(tmp_path, 200, overhead=0.001)
    every = int(run.series("interval/activation", "scalar").values[-1])
    overhead = read_overhead(run)
    assert overhead.stretched["activation"] == every
    assert "(budget 0.1 %): " in overhead.text
    assert f"activation every {every} steps" in overhead.text
    console = Console(width=100, file=io.StringIO())
    console.print(render(summarise(run)))
    assert "(budget 0.1 %)" in console.file.getvalue()


def test_ranks_come_to_the_same_intervals_in_the_same_step(tmp_path, monkeypatch):
    monkeypatch.setattr(intervals, "LOOK_SECONDS", 0.0)
    (tmp_path / "rank0").mkdir()
    every = []
    ranks = [RankIntervals(tmp_path, rank, 0) for rank in range(2)]
    # The second rank would never stretch anything by itself.
    observers = [(Observer("activation", 10, cost),) for cost in (0.1, 0.0)]
    budgets = [made(0.02, *own, ranks=agreed) for own, agreed in zip(observers, ranks, strict=True)]
    for _ in range(200):
        for (kept, costs, _), own in zip(budgets, observers, strict=True):
            run(kept, own, costs, 1, 0.1)
        every.append([own[0].every for own in observers])
    assert [10, 10] in every
    assert every[-1][0] > 10
    assert all(one == other for one, other in every)


def test_a_rank_that_does_not_see_the_folder_of_the_first_decides_by_itself(tmp_path):
    assert RankIntervals(tmp_path, 1, 0).decides
    (tmp_path / "rank0").mkdir()
    assert not RankIntervals(tmp_path, 1, 0).decides
    assert RankIntervals(tmp_path, 0, 0).decides


def test_what_is_recorded_only_for_distributions_is_part_of_their_cost():
    distribution, activation = Observer("distribution", 50, 1e-6), Observer("activation", 160, 1e-6)
    activation.is_lent = True
    costs = Costs()
    budget = Budget(0.01, [distribution, activation], costs, Frames(), lambda: False, Loop(costs))
    for _ in range(3):
        costs.add("distribution", 1e-5)
        costs.add("activation", 0.1)
        budget.step_ended(0.2)
    # A tenth of a second every 50th step is twice the budget of steps of a tenth.
    assert distribution.every > 50
    assert activation.every == 160
    for _ in range(300):
        costs.add("activation", 1.0)
        budget.step_ended(1.1)
    assert distribution.every == 1600
