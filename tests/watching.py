"""Watching tiny trainings and comparing what was recorded with numpy: shared by the tests of the in-process half."""

import numpy as np
import torch

import vario
from models import Perceptron, batch
from vario.backends.numpy import summarise
from vario.core.records import COLUMNS, COUNT, MAX, MIN, SUM, SUM_SQUARES, merge_all

GRADIENTS = ["gradient", "gradient_local", "gradient_applied"]
EVERYTHING = [*GRADIENTS, "weight", "moment", "activation", "activation_gradient"]


def watch(model, optimizer=None, quantities=None, **options):
    """A Monitor that sees every step of everything, keeps it in memory and raises when a part of it fails."""
    defaults = {"sinks": ["in_memory"], "strict": True, "every": 1, "quantities": quantities or EVERYTHING}
    return vario.watch(model, optimizer, **{**defaults, **options})


def records(monitor):
    return monitor.sinks["in_memory"].records


def rows(monitor, quantity=None):
    """Everything recorded, or one quantity: {(step, quantity, micro_step, target): Summary}."""
    return {
        (record.step, frame.quantity, frame.micro_step, target): row
        for record in records(monitor)
        for frame in record.frames
        if quantity in (None, frame.quantity)
        for target, row in zip(frame.targets, frame.summaries, strict=True)
    }


def scalar(monitor, name):
    """{step: value} of one plain number, where it was logged."""
    return {record.step: record.scalars.values[name] for record in records(monitor) if name in record.scalars.values}


def array(tensor):
    """The elements of any dense tensor as numpy sees them, widened without loss."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64).numpy()
    if tensor.is_floating_point() and tensor.dtype is not torch.float64:
        return tensor.float().numpy()
    return tensor.numpy()


def summary(*tensors, eps=1e-8):
    """The Summary of one tensor, or of several merged, by numpy in float64."""
    return merge_all(np.stack([summarise(array(tensor), eps) for tensor in tensors]))[0]


def check(row, *tensors, rtol=1e-5, eps=1e-8):
    """A recorded Summary is that of these tensors, merged: counts exactly, sums to the precision asked for."""
    check_summaries(row, summary(*tensors, eps=eps), rtol)


def check_summaries(row, expected, rtol=1e-5):
    for column, name in enumerate(COLUMNS):
        if column == SUM:
            continue
        exactly = column not in (SUM_SQUARES, MIN, MAX)
        np.testing.assert_allclose(row[column], expected[column], rtol=0 if exactly else rtol, atol=0, err_msg=name)
    # A sum near zero is small against what was added up, not against itself.
    size = np.sqrt(expected[COUNT] * expected[SUM_SQUARES]) if np.isfinite(expected[SUM_SQUARES]) else 0.0
    np.testing.assert_allclose(row[SUM], expected[SUM], rtol=rtol, atol=rtol * size, err_msg="sum")


def check_same(found, expected, rtol=1e-4):
    """Two trainings left the same rows."""
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    assert not missing, f"missing: {missing}"
    assert not extra, f"not expected: {extra}"
    for key, row in expected.items():
        try:
            check_summaries(found[key], row, rtol)
        except AssertionError as error:
            raise AssertionError(f"{key}: {error}") from None


def train(model, optimizer, steps=3, monitor=None):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        output = model(batch(step))
        loss = (output if isinstance(output, torch.Tensor) else output.score).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if monitor is not None:
            monitor.log(loss=loss)
    return losses


def made(seed=0):
    torch.manual_seed(seed)
    model = Perceptron(dropout=0.0)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def steps_of(monitor):
    """{quantity: [steps]} of all rows."""
    found = {}
    for step, quantity, _, _ in rows(monitor):
        found.setdefault(quantity, set()).add(step)
    return {quantity: sorted(steps) for quantity, steps in found.items()}
