"""The kernels that count elements by bin, on a CUDA device: the counts are numpy's, without exception."""

import numpy as np
import pytest
import torch

from bin_oracle import counted, odd_numbers
from models import Perceptron, batch
from vario.backends.torch.reduce.distributions import TorchDistributions
from vario.core.elements.bins import decode
from watching import records, watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
OTHERS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128]


def made(dtype, num, seed=0):
    values = torch.from_numpy(odd_numbers(num, seed))
    if dtype.is_complex:
        return torch.complex(values, values.flip(0)).to(dtype)
    return values.to(dtype)


def one_by_one(tensors, scale=None):
    distributions = TorchDistributions()
    for row, tensor in enumerate(tensors):
        distributions.count_rows([row], [tensor], scale)
    return fetched(distributions, len(tensors))


def in_a_list(tensors, scale=None):
    distributions = TorchDistributions()
    distributions.count_rows(range(len(tensors)), tensors, scale)
    return fetched(distributions, len(tensors))


def fetched(distributions, num):
    stored = distributions.collect_rows()().stored(range(num))
    return decode(stored)


both = pytest.mark.parametrize("way", [one_by_one, in_a_list])


@both
@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
def test_every_dtype_and_size_gets_the_counts_of_numpy(way, dtype):
    tensors = [made(dtype, num, num) for num in (1, 0, 22, 4095, 4096, 4097, 90_300, 65_536 * 3 + 5)]
    found = way([tensor.cuda() for tensor in tensors])
    for counts, tensor in zip(found, tensors, strict=True):
        np.testing.assert_array_equal(counts, counted(tensor))


@both
@pytest.mark.parametrize("scale", [65_536.0, 3.0, 1e-3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_are_divided_by_the_loss_scale(way, dtype, scale):
    tensors = [made(dtype, num, num) for num in (22, 70_001)]
    found = way([tensor.cuda() for tensor in tensors], torch.tensor(scale, device="cuda"))
    for counts, tensor in zip(found, tensors, strict=True):
        np.testing.assert_array_equal(counts, counted(tensor, float(np.float32(scale))))


@both
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_tensors_that_begin_at_an_odd_address(way, offset):
    for dtype in (torch.float32, torch.bfloat16):
        tensor = made(dtype, 70_001)
        (counts,) = way([tensor.cuda()[offset:]])
        np.testing.assert_array_equal(counts, counted(tensor[offset:]))


@both
def test_views_show_their_own_elements_only(way):
    whole = made(torch.float32, 6300).view(70, 90)
    views = [lambda x: x.T, lambda x: x[::2, 1::3], lambda x: x[:1].expand(9, -1)]
    found = way([view(whole.cuda()) for view in views])
    for counts, view in zip(found, views, strict=True):
        np.testing.assert_array_equal(counts, counted(view(whole)))


def test_one_value_everywhere_and_many_tensors_in_one_launch():
    tensors = [torch.full((n,), 2.0**-n) for n in range(1, 140)] + [torch.zeros(200_000), torch.full((300_000,), 0.1)]
    found = in_a_list([tensor.cuda() for tensor in tensors])
    for counts, tensor in zip(found, tensors, strict=True):
        np.testing.assert_array_equal(counts, counted(tensor))


def test_rows_of_several_streams_and_devices_come_together():
    tensor = made(torch.bfloat16, 300_000)
    distributions = TorchDistributions()
    other = torch.cuda.Stream()
    here = tensor.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        distributions.count_rows([0], [here * 1])
    distributions.count_rows([1], [here])
    distributions.count_rows([2], [tensor])
    torch.cuda.current_stream().wait_stream(other)
    for counts in fetched(distributions, 3):
        np.testing.assert_array_equal(counts, counted(tensor))


def test_without_triton_the_counts_are_the_same(monkeypatch):
    distributions = TorchDistributions()
    distributions._has_triton = False
    tensors = [made(dtype, 5000) for dtype in FLOATS]
    distributions.count_rows(range(len(tensors)), [tensor.cuda() for tensor in tensors], torch.tensor(4.0))
    for counts, tensor in zip(fetched(distributions, len(tensors)), tensors, strict=True):
        np.testing.assert_array_equal(counts, counted(tensor, 4.0))


def test_a_training_on_the_device_records_the_counts_of_its_gradients_and_weights():
    torch.manual_seed(0)
    model = Perceptron().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    expected = {}
    with watch(model, optimizer, ["gradient", "weight", "distribution"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            output = model(batch(step).cuda())
            (output if isinstance(output, torch.Tensor) else output.score).square().mean().backward()
            gradients = {name: counted(one.grad) for name, one in model.named_parameters() if one.grad is not None}
            optimizer.step()
            expected[step] = {"gradient": gradients, "weight": {n: counted(p) for n, p in model.named_parameters()}}
    for record in records(monitor):
        for frame in record.frames:
            for target, counts in zip(frame.targets, decode(frame.detail), strict=True):
                np.testing.assert_array_equal(counts, expected[record.step][frame.quantity][target])
