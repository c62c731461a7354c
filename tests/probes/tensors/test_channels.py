"""The largest channels of weights and activations of real trainings, against numpy."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import vario
from models import Convolutional, Perceptron, batch
from starting import run_ranks
from vario.cli import main
from vario.core.elements.channels import Channel, TopChannels, decode, encode, merge
from watching import array

HERE = Path(__file__).parent


def train(model, optimizer, inputs, **options):
    seen = {}
    for name, module in model.named_modules():
        if name:
            keep = lambda module, args, output, name=name: seen.__setitem__(name, output.detach().clone())  # noqa: E731
            module.register_forward_hook(keep)
    with vario.watch(model, optimizer, quantities=["channel"], every=1, name="run", strict=True, **options):
        for x in inputs:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return seen


def check(one, matrix, parts=1):
    """A tensor's channels are the columns of a matrix, which several ranks have a part of each."""
    matrix = array(matrix).astype(np.float64)
    usual = np.mean([np.abs(part).max(axis=0) for part in np.split(matrix, parts)])
    largest, norms = np.abs(matrix).max(axis=0), np.sqrt(np.square(matrix).sum(axis=0))
    assert one.num_channels == matrix.shape[1]
    assert one.num_dead == (largest == 0).sum()
    assert len(one.top) == min(8, matrix.shape[1])
    np.testing.assert_allclose([channel.absmax for channel in one.top], np.sort(largest)[::-1][:8], rtol=1e-6)
    for channel in one.top:
        np.testing.assert_allclose([channel.absmax, channel.norm], [largest[channel.index], norms[channel.index]], 1e-6)
    np.testing.assert_allclose(one.mean_absmax, usual, rtol=1e-6)
    np.testing.assert_allclose(one.peak, largest.max() / usual, rtol=1e-6)
    squares = np.square(norms)
    np.testing.assert_allclose(one.share, squares[one.top[0].index] / squares.sum(), rtol=1e-5)
    np.testing.assert_allclose(one.top_share, sum(squares[c.index] for c in one.top) / squares.sum(), rtol=1e-5)


def test_weights_and_activations_have_the_channels_of_numpy(tmp_path):
    torch.manual_seed(0)
    model = Perceptron(width=40, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with torch.no_grad():
        model.up.bias[13] = 50.0
        model.up.weight[:, 2] = 0.0
    seen = train(model, optimizer, [batch(step) for step in range(3)], directory=tmp_path)
    run = vario.open_run(tmp_path / "run")
    found = {(one.target, one.kind): one for one in run.channels()}
    check(found["up.weight", "rows"], model.up.weight.T)
    check(found["up.weight", "columns"], model.up.weight)
    check(found["up", "features"], seen["up"])
    assert found["up", "features"].top[0].index == 13
    assert "up.bias" not in {target for target, _ in found}
    assert {one.step for one in found.values()} == {2}
    assert {one.step for one in run.channels(step=1)} == {1}


def test_channels_of_images_are_their_second_axis(tmp_path):
    torch.manual_seed(0)
    model = Convolutional()
    seen = train(model, torch.optim.SGD(model.parameters(), lr=0.01), [torch.randn(5, 1, 8, 8)], directory=tmp_path)
    found = {(one.target, one.kind): one for one in vario.open_run(tmp_path / "run").channels()}
    check(found["conv", "features"], seen["conv"].movedim(1, -1).reshape(-1, 3))


def test_dead_channels_are_counted_and_the_report_names_the_largest(tmp_path, capsys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 200), torch.nn.ReLU(), torch.nn.Linear(200, 2))
    with torch.no_grad():
        model[0].bias[:20] = -100.0
        model[0].bias[77] = 500.0
    train(model, torch.optim.SGD(model.parameters(), lr=1e-4), [torch.randn(16, 8)], directory=tmp_path)
    run = vario.open_run(tmp_path / "run")
    relu = next(one for one in run.channels() if one.target == "1")
    assert relu.num_dead >= 20
    assert relu.top[0].index == 77
    assert main(["channels", str(run.path)]) == 0
    assert "77 (50" in capsys.readouterr().out
    assert main(["report", str(run.path)]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "feature 77 of 1:" in text
    assert "dead features" in text


def test_without_the_quantity_the_error_says_how_to_get_it(tmp_path):
    torch.manual_seed(0)
    model = Perceptron()
    with vario.watch(model, quantities=["weight"], directory=tmp_path, name="run"):
        model(batch(0)).mean().backward()
    with pytest.raises(vario.ConfigError, match="quantities="):
        vario.open_run(tmp_path / "run").channels()


def test_channels_come_back_from_storage_and_merge():
    one = TopChannels(10, 5.0, (Channel(3, 4.0, 4.5), Channel(1, 2.0, 2.0)))
    other = TopChannels(10, 3.0, (Channel(1, 3.0, 3.0),))
    assert decode(encode(one)) == one
    merged = merge([one, other])
    assert [(channel.index, channel.absmax) for channel in merged.channels] == [(3, 4.0), (1, 3.0)]
    assert merged.channels[1].norm == pytest.approx(13**0.5)
    assert merged.share(2) == pytest.approx((4.5**2 + 13) / 34)
    for damaged in (b"", encode(one)[:-1], encode(one) + b"\0"):
        with pytest.raises(ValueError, match="cut off"):
            decode(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ddp", "fsdp2"])
def test_on_two_ranks_weights_count_once_and_batches_are_merged(tmp_path, case):
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_ranks([HERE / "channels_script.py", case], cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    found = {(one.target, one.kind): one for one in vario.open_run(tmp_path / "runs" / case).channels()}
    kept = dict(np.load(tmp_path / "runs" / f"{case}.npz"))
    check(found["act", "features"], torch.from_numpy(kept["act"]), parts=2)
    if case == "ddp":
        check(found["up.weight", "columns"], torch.from_numpy(kept["up.weight"]))
        check(found["up.weight", "rows"], torch.from_numpy(kept["up.weight"]).T)
    else:
        # Each rank has some rows, and says nothing about their numbers.
        assert ("up.weight", "rows") not in found
        matrix = np.abs(kept["up.weight"])
        assert found["up.weight", "columns"].top[0].index == matrix.max(axis=0).argmax()
