"""Distributions of real trainings, through files and back: the counts are numpy's, and they add up."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import vario
from bin_oracle import counted
from models import Perceptron, batch
from starting import run_ranks
from vario.backends.torch.reduce.distributions import TorchDistributions
from vario.core.elements.bins import QUANTITY, decode
from vario.core.records import COUNT, INFS, NANS
from vario.runs.views.tensors.distributions import read_step
from watching import records, watch

HERE = Path(__file__).parent
QUANTITIES = ["gradient", "weight", "moment", "activation", "activation_gradient", "update", QUANTITY]


def made():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps, passes=1):
    """Trains, and returns by (step, quantity, target) what numpy counts."""
    expected, seen = {}, []
    hook = model.act.register_forward_hook(lambda module, args, output: seen.append(output))
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            output = model(batch(passes * step + part))
            seen[-1].retain_grad()
            (output.square().mean() / passes).backward()
        expected[step, "activation", "act:output"] = sum(counted(one) for one in seen)
        expected[step, "activation_gradient", "act:output"] = sum(counted(one.grad) for one in seen)
        seen.clear()
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        expected |= {(step, "gradient", name): counted(one.grad) for name, one in model.named_parameters()}
        optimizer.step()
        for name, one in model.named_parameters():
            expected[step, "weight", name] = counted(one)
            expected[step, "update", f"{name}:change"] = counted(one - before[name])
            for key in ("exp_avg", "exp_avg_sq"):
                expected[step, "moment", f"{name}:{key}"] = counted(optimizer.state[one][key])
    hook.remove()
    return expected


def check(run, expected):
    steps = sorted({step for step, _, _ in expected})
    for quantity, target in {key[1:] for key in expected}:
        found = run.distribution(target, quantity)
        assert found.steps.tolist() == steps, (quantity, target)
        for step, counts in zip(steps, found.counts, strict=True):
            np.testing.assert_array_equal(counts, expected[step, quantity, target], err_msg=f"{quantity} {target}")


@pytest.mark.parametrize("passes", [1, 3])
def test_every_tensor_of_a_training_has_the_counts_of_numpy(tmp_path, passes):
    model, optimizer = made()
    with vario.watch(model, optimizer, quantities=QUANTITIES, every=1, directory=tmp_path, name="run", strict=True):
        expected = train(model, optimizer, 4, passes)
    check(vario.open_run(tmp_path / "run"), expected)


def test_a_run_can_be_read_while_it_is_written(tmp_path):
    model, optimizer = made()
    with vario.watch(
        model, optimizer, quantities=QUANTITIES, every=1, directory=tmp_path, name="run", strict=True
    ) as monitor:
        expected = train(model, optimizer, 3)
        monitor.wait()
        check(vario.open_run(tmp_path / "run"), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(tmp_path, dtype):
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 1000).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with watch(model, optimizer, ["weight", "gradient", QUANTITY]) as monitor:
        model(torch.randn(8, 40).to(dtype)).square().mean().backward()
        gradient = counted(model.weight.grad)
        optimizer.step()
    frames = {frame.quantity: frame for record in records(monitor) for frame in record.frames}
    for quantity, counts in (("weight", counted(model.weight)), ("gradient", gradient)):
        frame = frames[quantity]
        np.testing.assert_array_equal(decode(frame.detail)[frame.targets.index("weight")], counts)


def test_counts_agree_with_the_summaries_beside_them(tmp_path):
    model, optimizer = made()
    with watch(model, optimizer, QUANTITIES) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            (loss * (float("inf") if step == 1 else 1)).backward()
            optimizer.step()
    frames = [frame for record in records(monitor) for frame in record.frames if frame.detail is not None]
    assert {frame.quantity for frame in frames} == set(QUANTITIES) - {QUANTITY}
    for frame in frames:
        known = [at for at, row in enumerate(frame.detail) if row]
        counts = decode([frame.detail[at] for at in known])
        np.testing.assert_array_equal(counts.sum(axis=1), frame.summaries[known, COUNT])
        np.testing.assert_array_equal(counts[:, 1], frame.summaries[known, NANS])
        np.testing.assert_array_equal(counts[:, 2:4].sum(axis=1), frame.summaries[known, INFS])


def test_gradients_are_counted_without_the_loss_scale(tmp_path):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with vario.watch(
        model, optimizer, quantities=["gradient", QUANTITY], every=1, directory=tmp_path, name="run", strict=True
    ):
        scaler.scale(model(batch(0)).square().mean()).backward()
        expected = counted(model.up.weight.grad, 1024.0)
        scaler.step(optimizer)
        scaler.update()
    np.testing.assert_array_equal(
        vario.open_run(tmp_path / "run").distribution("up.weight", "gradient").counts, [expected]
    )


def test_tensors_of_whole_numbers_have_none(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(
        model, optimizer, quantities=["activation", QUANTITY], every=1, directory=tmp_path, name="run", strict=True
    ):
        model(torch.arange(10)).mean().backward()
        optimizer.step()
    run = vario.open_run(tmp_path / "run")
    with pytest.raises(vario.ConfigError, match="no distributions were recorded"):
        run.distribution("0:input", "activation")
    found = read_step(run, "activation")
    assert "0:output" in found.targets
    assert "0:input" not in found.targets


def test_sparse_gradients_count_the_zeros_they_do_not_store(tmp_path):
    model = torch.nn.Embedding(100, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(
        model, optimizer, quantities=["gradient", QUANTITY], every=1, directory=tmp_path, name="run", strict=True
    ):
        model(torch.tensor([1, 7])).sum().backward()
        expected = counted(model.weight.grad.to_dense())
        optimizer.step()
    np.testing.assert_array_equal(
        vario.open_run(tmp_path / "run").distribution("weight", "gradient").counts, [expected]
    )


def test_large_and_small_tensors_and_odd_layouts():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(300, 401, generator=generator)
    tensors = [base, base.T, base[::3, 1::2], base[0], torch.zeros(0), torch.randn((), generator=generator)]
    tensors += [
        base.to(torch.complex64),
        base.to(torch.float8_e5m2),
        base.to(torch.complex64).conj().imag,
        base[:7].half(),
    ]
    distributions = TorchDistributions()
    distributions.count_rows(range(len(tensors)), tensors)
    found = decode(distributions.collect_rows()().stored(range(len(tensors))))
    for counts, tensor in zip(found, tensors, strict=True):
        np.testing.assert_array_equal(counts, counted(tensor))


def test_without_the_quantity_nothing_is_counted(tmp_path):
    model, optimizer = made()
    with watch(model, optimizer, QUANTITIES[:-1]) as monitor:
        train(model, optimizer, 2)
    assert all(frame.detail is None for record in records(monitor) for frame in record.frames)


def test_by_default_every_fiftieth_step_has_them(tmp_path):
    model, optimizer = made()
    with vario.watch(model, optimizer, directory=tmp_path, name="run", overhead="off", strict=True):
        train(model, optimizer, 102)
    run = vario.open_run(tmp_path / "run")
    for quantity, target in (("gradient", "up.weight"), ("weight", "up.weight"), ("activation", "act")):
        assert run.distribution(target, quantity).steps.tolist() == [0, 50, 100]


def test_a_step_with_distributions_records_the_quantities_they_are_of(tmp_path):
    model, optimizer = made()
    every = {QUANTITY: 3, "activation": 4}
    with watch(model, optimizer, QUANTITIES, every=every, overhead="off") as monitor:
        train(model, optimizer, 7)
    steps = {}
    for record in records(monitor):
        for frame in record.frames:
            if frame.detail is not None:
                steps.setdefault(frame.quantity, []).append(record.step)
    # Weights are due at every tenth step; the user set the interval of activations.
    assert steps["weight"] == [0, 3, 6]
    assert steps["activation"] == [0]


def test_a_failure_to_count_leaves_the_rows(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no counting today")

    monkeypatch.setattr(TorchDistributions, "count_rows", fail)
    model, optimizer = made()
    with vario.watch(model, optimizer, quantities=QUANTITIES, every=1, directory=tmp_path, name="run"):
        train(model, optimizer, 3)
    run = vario.open_run(tmp_path / "run")
    assert [part.part for part in run.parts_off] == [QUANTITY]
    assert len(run.series("up.weight", "gradient")) == 3


def test_training_is_the_same_bit_by_bit(tmp_path):
    def losses(quantities):
        model, optimizer = made()
        with vario.watch(model, optimizer, quantities=quantities, every=1, sinks=["in_memory"], strict=True):
            train(model, optimizer, 5)
        return [one.detach().numpy().tobytes() for one in model.parameters()]

    assert losses(QUANTITIES) == losses(["gradient"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ddp", "fsdp2"])
def test_shards_add_up_and_replicas_count_once(tmp_path, case):
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_ranks([HERE / "distribution_script.py", case], cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    run = vario.open_run(tmp_path / "runs" / case)
    first, second = (dict(np.load(tmp_path / "runs" / f"{case}-{rank}.npz")) for rank in range(2))
    for key, counts in first.items():
        step, quantity, target = key.split("/")
        # Both ranks have the whole of a parameter; each has its own activations.
        expected = counts + second[key] if quantity == "activation" else counts
        found = run.distribution(target, quantity)
        np.testing.assert_array_equal(found.counts[found.steps.tolist().index(int(step))], expected, err_msg=key)
        together = read_step(run, quantity, int(step))
        np.testing.assert_array_equal(together.counts[together.targets.index(target)], expected, err_msg=key)
