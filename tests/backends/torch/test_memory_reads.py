"""Very many small tensors are read through their addresses: the same numbers as torch gives, and never from nowhere."""

import numpy as np
import pytest
import torch

from vario.backends.torch.reduce import memory_reads


def sizes_of(tensors):
    return [tensor.numel() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_elements_come_in_order_from_tensors_of_several_sizes(dtype):
    tensors = [torch.randn(3 + number % 5).to(dtype) for number in range(300)]
    places = memory_reads.places_of(tensors, sizes_of(tensors))
    read = memory_reads.read(places, dtype)
    assert read.dtype == dtype
    assert torch.equal(read, torch.cat(tensors))


def test_what_is_read_is_a_copy():
    tensors = [torch.full((4,), float(number)) for number in range(300)]
    read = memory_reads.read(memory_reads.places_of(tensors, sizes_of(tensors)), torch.float32)
    for tensor in tensors:
        tensor.zero_()
    np.testing.assert_array_equal(read.view(300, 4)[:, 0], np.arange(300))


def freed():
    """A view whose storage was freed: its address is a small number that is no address."""
    whole = torch.ones(8, 4)
    view = whole[2]
    whole.untyped_storage().resize_(0)
    return view


@pytest.mark.parametrize(
    "odd", [freed, lambda: torch.ones(4, 4)[:, 0], lambda: torch.ones(4, dtype=torch.cfloat).conj().imag]
)
def test_torch_joins_what_has_no_plain_memory(odd):
    tensors = [*(torch.ones(4) for _ in range(300)), odd()]
    assert memory_reads.places_of(tensors, sizes_of(tensors)) is None


def test_a_few_tensors_or_large_ones_are_left_to_torch():
    few, large = [torch.ones(4)] * 10, [torch.ones(1000)] * 300
    assert memory_reads.places_of(few, sizes_of(few)) is None
    assert memory_reads.places_of(large, sizes_of(large)) is None
