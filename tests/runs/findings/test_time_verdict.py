import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import slowed_trainings
import synthetic
import vario
from vario.cli import main
from vario.runs.findings.time_verdict import _Facts, _text, kind_of, time_verdict
from vario.runs.views.speed.time_split import split_time

SLOW = {
    "dataset": ("input", "input"),
    "collate": ("input", "input"),
    "forward": ("compute", "forward"),
    "backward": ("compute", "backward"),
    "loss": ("rest", "rest"),
    "optimizer": ("optimizer", "optimizer"),
    "between": ("between", "between"),
    "evaluation": ("evaluation", "evaluation"),
    "checkpoint": ("checkpoint", "checkpoint"),
}


@pytest.mark.parametrize(("slow", "expected"), SLOW.items(), ids=SLOW)
def test_what_was_slowed_is_what_the_verdict_names(tmp_path, slow, expected):
    run = slowed_trainings.train(tmp_path / slow, slow)
    verdict = time_verdict(run)
    kind, part = expected
    assert verdict.kind == kind, verdict.evidence
    assert verdict.split.shares[part] > 0.5
    assert sum(verdict.split.shares.values()) == pytest.approx(1.0)
    assert not run.parts_off


def test_a_monitor_that_records_everything_of_a_tiny_model_names_itself(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(2, 4)
    with vario.watch(model, optimizer, directory=str(tmp_path), every=1, overhead="off") as monitor:
        for _ in range(30):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    verdict = time_verdict(vario.open_run(monitor.path))
    assert verdict.kind == "monitor", verdict.evidence
    assert "overhead" in verdict.advice


def test_workers_of_a_loader_are_known(tmp_path):
    verdict = time_verdict(slowed_trainings.train(tmp_path / "run", "dataset"))
    assert verdict.split.loader_workers == 0
    assert "num_workers" in verdict.advice


def test_workers_are_known_of_a_loader_that_began_before_watching(tmp_path):
    model = slowed_trainings.Net()
    optimizer = torch.optim.AdamW(model.parameters())
    rows = slowed_trainings.Rows(160, slowed_trainings.PAUSE / 8)
    batches = iter(DataLoader(rows, batch_size=8, num_workers=1))
    with vario.watch(model, optimizer, directory=str(tmp_path)) as monitor:
        for x in batches:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    verdict = time_verdict(vario.open_run(monitor.path))
    assert (verdict.kind, verdict.split.loader_workers) == ("input", 1)
    assert "One worker is too few" in verdict.advice


def test_the_report_says_it_in_words_and_as_json(tmp_path, capsys):
    run = slowed_trainings.train(tmp_path / "run", "dataset")
    assert main(["report", str(run.path)]) == 0
    printed = capsys.readouterr().out
    assert "Waiting for input: the loader takes" in printed
    assert "Next: The loader has no workers" in printed
    assert main(["report", str(run.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["time"]
    assert told["kind"] == "input"
    assert told["split"]["shares"]["input"] > 0.5


def test_a_run_without_passes_has_no_verdict(tmp_path):
    run = vario.open_run(synthetic.write_run(tmp_path / "run", num_steps=20))
    assert time_verdict(run) is None


def test_loaders_and_saving_are_as_before_once_watching_ends(tmp_path):
    places = [(torch, "save"), (torch.serialization, "save"), (DataLoader, "__iter__")]
    places.append((torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"))
    before = [vars(owner)[name] for owner, name in places]
    slowed_trainings.train(tmp_path / "run", "nothing", steps=4)
    assert [vars(owner)[name] for owner, name in places] == before


def steps_of(**numbers):
    """The plain numbers of ten steps."""
    return np.arange(10), {
        name: np.broadcast_to(np.asarray(values, float), 10).copy() for name, values in numbers.items()
    }


def test_shares_are_those_of_the_recorded_seconds():
    steps, read = steps_of(
        step_seconds=1.0,
        wait_seconds=0.3,
        loader_seconds=0.2,
        forward_seconds=0.1,
        backward_seconds=0.2,
        update_seconds=0.05,
        monitor_seconds=0.05,
    )
    split = split_time(steps, read)
    expected = {"input": 0.2, "between": 0.1, "forward": 0.1, "backward": 0.2, "optimizer": 0.05, "monitor": 0.05}
    expected |= {"rest": 0.3, "evaluation": 0.0, "checkpoint": 0.0, "communication": 0.0}
    assert dict(split.shares) == pytest.approx(expected)


def test_rare_work_counts_with_all_steps_and_passes_as_in_whole_steps():
    nan = np.nan
    steps, read = steps_of(
        step_seconds=[1, 1, 1, 1, 11, 1, 1, 1, 1, 1],
        wait_seconds=[nan, 0.5, nan, nan, nan, 0.5, nan, nan, nan, nan],
        forward_seconds=[0.2, 0.2, nan, nan, 0.2, 0.2, nan, nan, nan, nan],
        backward_seconds=[0.3, 0.3, nan, nan, 0.3, 0.3, nan, nan, nan, nan],
        evaluation_seconds=[nan, nan, nan, nan, 8.0, nan, nan, nan, nan, nan],
        checkpoint_seconds=[nan, nan, nan, nan, 2.0, nan, nan, nan, nan, nan],
    )
    split = split_time(steps, read)
    assert (split.num_steps, split.num_whole_steps) == (10, 2)
    assert (split.num_evaluations, split.num_checkpoints) == (1, 1)
    expected = {"evaluation": 0.4, "checkpoint": 0.1, "between": 0.25, "forward": 0.1, "backward": 0.15}
    assert {name: split.shares[name] for name in expected} == pytest.approx(expected)


def test_a_step_whose_passes_are_unknown_is_not_blamed_for_the_rest_of_it():
    split = split_time(*steps_of(step_seconds=1.0, wait_seconds=0.1))
    assert split.shares["rest"] == pytest.approx(0.9)
    assert kind_of(split, 1) == "compute"
    assert "were not measured, takes 90 %" in _text("compute", _Facts(split))


def test_a_host_that_is_as_slow_as_its_device_and_ranks_that_wait_are_named():
    known = {"step_seconds": 1.0, "wait_seconds": 0.01, "forward_seconds": 0.5, "backward_seconds": 0.4}
    host = {"device": 0.2, "host": 0.85}
    kinds = {name: kind_of(split_time(*steps_of(**known, host_seconds=at)), 1) for name, at in host.items()}
    assert kinds == {"device": "compute", "host": "host"}
    waiting = split_time(*steps_of(**{**known, "backward_seconds": 0.0, "forward_seconds": 0.3}))
    assert [kind_of(waiting, world_size) for world_size in (1, 2)] == ["rest", "communication"]


def test_the_rest_of_a_step_is_named_before_passes_that_take_less():
    known = {"step_seconds": 1.0, "wait_seconds": 0.1, "update_seconds": 0.2}
    kinds = [
        kind_of(split_time(*steps_of(**known, forward_seconds=passes / 2, backward_seconds=passes / 2)), 1)
        for passes in (0.32, 0.36, 0.5)  # of which 0.38, 0.34 and 0.2 are left
    ]
    assert kinds == ["rest", "compute", "compute"]


def test_a_loader_that_a_device_does_not_wait_for_is_no_input_wait():
    steps, read = steps_of(
        step_seconds=1.0,
        wait_seconds=0.01,
        loader_seconds=0.5,
        forward_seconds=0.4,
        backward_seconds=0.5,
        host_seconds=0.2,
    )
    split = split_time(steps, read)
    assert split.shares["input"] == pytest.approx(0.01)
    assert split.host_share == pytest.approx(0.2 / 0.9)


def test_the_same_losses_with_a_monitor_and_without(tmp_path):
    watched = slowed_trainings.train(tmp_path / "run", "nothing").series("loss", "scalar").values
    torch.manual_seed(0)
    model = slowed_trainings.Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for x in DataLoader(slowed_trainings.Rows(240), batch_size=8, collate_fn=torch.stack):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == watched.tolist()


def test_a_verdict_is_plain_values(tmp_path):
    verdict = time_verdict(slowed_trainings.train(tmp_path / "run", "between", steps=8))
    assert json.loads(json.dumps(dataclasses.asdict(verdict)))["kind"] == "between"
