"""communication in one process, which is a group of one: steps, passes, threads and failures."""

import threading

import pytest
import torch
import torch.distributed as dist

import vario
from made_runs import header, record
from models import batch
from vario.core.errors import ConfigError, RunCorrupt
from vario.core.records import COUNT, MAX, Collective
from vario.sinks.store import Store
from watching import check, made, records, rows, watch


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def step(model, optimizer, *passes):
    """An update after passes, each with something it shares before its backward."""
    optimizer.zero_grad()
    for shared in passes:
        loss = model(batch(0)).square().mean()
        dist.all_reduce(shared)
        loss.backward()
    optimizer.step()


def by_moment(monitor, ending):
    """{(step, micro-step): Summary} of the targets that end so."""
    return {
        (frame.step, frame.micro_step): row
        for found in records(monitor)
        for frame in found.frames
        for target, row in zip(frame.targets, frame.summaries, strict=True)
        if target.endswith(ending)
    }


def test_each_pass_has_its_own_row_and_calls_within_it_are_one(group):
    model, optimizer = made()
    with watch(model, optimizer, ["communication"]) as monitor:
        step(model, optimizer, batch(1), batch(2))
        step(model, optimizer, batch(3))
        dist.all_reduce(batch(4))
        dist.all_reduce(batch(5))
    found = by_moment(monitor, ":input")
    first = {moment: row for moment, row in found.items() if row[COUNT] == 24}
    assert {moment: row[COUNT] for moment, row in first.items()} == {(0, 0): 24, (0, 1): 24, (1, 0): 24}
    check(first[0, 1], batch(2))
    after = [target for (number, _, _, target) in rows(monitor) if number == 1 and target.endswith(":output")]
    assert len(after) == 3  # the one in the loop, and two after the update, which belong to its step


def test_only_steps_of_the_schedule_are_read(group):
    model, optimizer = made()
    with watch(model, optimizer, ["communication"], every={"communication": 3}) as monitor:
        for seed in range(7):
            step(model, optimizer, batch(seed))
    assert sorted(by_moment(monitor, ":output")) == [(0, 0), (3, 0), (6, 0)]


def test_calls_from_many_threads_are_all_counted(group):
    model, optimizer = made()
    with watch(model, optimizer, ["communication"]) as monitor:

        def share():
            for _ in range(50):
                dist.all_reduce(torch.ones(4), async_op=True).wait()

        threads = [threading.Thread(target=share) for _ in range(4)]
        for thread in threads:
            thread.start()
        for seed in range(5):
            step(model, optimizer, batch(seed))
        for thread in threads:
            thread.join()
    frames = [frame for found in records(monitor) for frame in found.frames]
    outputs = [row for f in frames for target, row in zip(f.targets, f.summaries, strict=True) if ":output" in target]
    assert sum(row[COUNT] for row in outputs if row[MAX] == 1) == 4 * 50 * 4


class Unreadable(torch.Tensor):
    """A tensor that cannot be looked at."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("not to be read")


def test_what_cannot_be_followed_is_switched_off_and_training_goes_on(group, caplog):
    model, optimizer = made()
    with watch(model, optimizer, ["communication", "gradient"], strict=False) as monitor:
        shared = torch.ones(3)
        dist.group.WORLD.allreduce([shared.as_subclass(Unreadable)]).wait()
        step(model, optimizer, batch(0))
        step(model, optimizer, batch(1))
        assert shared.tolist() == [1, 1, 1]
    assert monitor.off == {"communication"}
    assert "'communication' failed and is switched off; training continues. RuntimeError: not to be read" in caplog.text
    assert {number for number, quantity, _, _ in rows(monitor) if quantity == "gradient"} == {0, 1}


def test_a_failure_is_raised_on_the_training_thread_when_strict(group):
    model, optimizer = made()
    monitor = watch(model, optimizer, ["communication"])
    dist.group.WORLD.allreduce([torch.ones(3).as_subclass(Unreadable)]).wait()
    with pytest.raises(RuntimeError, match="not to be read"):
        step(model, optimizer, batch(0))
    monitor.close()


def test_losses_are_recorded_alike_with_and_without(group):
    weights = []
    for quantities in (["communication"], ["gradient"]):
        model, optimizer = made()
        with watch(model, optimizer, quantities):
            for seed in range(3):
                step(model, optimizer, batch(seed))
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([3], "communication: expected places in the code or patterns, got 3"),
        (["re:train.py["], r"communication: 're:train.py\[' is not a regular expression"),
        ("train.py[31]", None),
    ],
)
def test_places_are_checked_before_the_first_step(value, message):
    if message is None:
        assert vario.Config(communication=value).communication == (value,)
        return
    with pytest.raises(ConfigError, match=message):
        vario.Config(communication=value)


@pytest.mark.parametrize(
    ("place", "is_chosen"),
    [
        ("test_communication_probe.py", True),
        ("communication_probe.py", False),
        ("re:communication_probe.py.[0-9]+. step$", False),
        ("re:communication_probe.py.[0-9]+. step;", True),
    ],
)
def test_a_place_is_searched_for_in_the_call_stack(group, place, is_chosen):
    model, optimizer = made()
    with watch(model, optimizer, ["communication"], communication=[place]) as monitor:
        step(model, optimizer, batch(0))
    assert bool(rows(monitor)) == is_chosen


def collective(target):
    return Collective(
        target, "all_reduce", "/a/train.py[3]", "0", (0, 1), "float32", 8, False, ("/a/train.py[3] main",)
    )


def test_collectives_outlive_a_resumed_run(tmp_path):
    for number, target in enumerate(["all_reduce@train.py[3]", "all_reduce@train.py[9]"]):
        store = Store()
        store.open(header(tmp_path / "run", resume=bool(number)))
        store.write(with_collective(number, target))
        store.close("finished", None)
    found = vario.open_run(tmp_path / "run").collectives()
    assert [one.target for one in found] == ["all_reduce@train.py[3]", "all_reduce@train.py[9]"]
    assert found[0] == collective("all_reduce@train.py[3]")


def with_collective(number, target):
    plain = record(number)
    return type(plain)(plain.step, plain.frames, plain.scalars, [collective(target)])


def test_a_run_without_communication_has_no_collectives_and_a_damaged_list_is_named(tmp_path):
    store = Store()
    store.open(header(tmp_path / "run"))
    store.write(record(0))
    store.close("finished", None)
    run = vario.open_run(tmp_path / "run")
    assert run.collectives() == []
    (tmp_path / "run" / "rank0" / "collectives.json").write_text('{"collectives": [{"target": "x"}]}')
    with pytest.raises(RunCorrupt, match=r"collectives\.json: an entry has no 'operation'"):
        run.collectives()
