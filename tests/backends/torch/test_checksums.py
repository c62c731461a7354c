"""Checksums: the same for the same bits, in whatever order they lie, and never the same after one flipped bit."""

import pytest
import torch

from vario.backends.torch.reduce.checksums import checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_every_single_flipped_bit_changes_it(dtype):
    generator = torch.Generator().manual_seed(0)
    tensor = (torch.randn(101, generator=generator) * 50).to(dtype)
    before = checksum(tensor).item()
    assert before == checksum(tensor.clone()).item()
    raw = tensor.view(torch.uint8)
    for at in range(0, raw.numel(), 7):
        for bit in range(8):
            raw[at] ^= 1 << bit
            assert checksum(tensor).item() != before, (at, bit)
            raw[at] ^= 1 << bit


def test_the_order_in_which_memory_lies_does_not_matter():
    matrix = torch.randn(7, 5)
    assert checksum(matrix) == checksum(matrix.t()) == checksum(matrix.t().contiguous())
    assert checksum(torch.randn(40)[3:17]) is not None


def test_nan_is_compared_by_its_bits():
    assert checksum(torch.tensor([1.0, float("nan")])) == checksum(torch.tensor([1.0, float("nan")]))


def test_a_tensor_without_numbers_has_none():
    assert checksum(torch.empty(3, device="meta")) is None
    assert checksum(torch.empty(0)).item() == 0
