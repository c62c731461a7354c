"""Copies on the host of what is kept of a parameter: whole or sampled, and never shared with the training."""

import numpy as np
import torch

from vario.backends.torch.reduce.host_copy import host_copy


def test_a_copy_stays_when_training_goes_on():
    tensor = torch.arange(6.0).reshape(2, 3)
    copy = host_copy(tensor, 1000, 1000)
    tensor.zero_()
    np.testing.assert_array_equal(copy.array, np.arange(6.0).reshape(2, 3))
    assert (copy.shape, copy.dtype, copy.stride) == ((2, 3), "float32", 1)


def test_what_does_not_fit_is_cut_to_every_nth_element_in_the_tensors_own_order():
    tensor = torch.arange(1000.0).reshape(10, 100).T
    copy = host_copy(tensor, 3999, 400)
    assert copy.stride == 10
    assert copy.array.nbytes <= 400
    np.testing.assert_array_equal(copy.array, tensor.reshape(-1)[::10].numpy())
    assert copy.shape == (100, 10)


def test_types_that_numpy_does_not_have_become_float32_by_value():
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        copy = host_copy(torch.tensor([0.5, -2.0]).to(dtype), 100, 100)
        np.testing.assert_array_equal(copy.array, np.array([0.5, -2.0], np.float32))
        assert copy.dtype == str(dtype).removeprefix("torch.")


def test_others_keep_their_type():
    for tensor in (torch.tensor([True]), torch.tensor([1 + 2j]).conj(), torch.ones(1, dtype=torch.float16)):
        np.testing.assert_array_equal(host_copy(tensor, 100, 100).array, tensor.resolve_conj().numpy())


def test_a_tensor_without_numbers_has_no_copy():
    assert host_copy(torch.ones(3, device="meta"), 100, 100) is None
    assert host_copy(torch.eye(3).to_sparse(), 100, 100) is None


def test_gradients_are_not_followed_into_the_copy():
    copy = host_copy(torch.nn.Parameter(torch.ones(3)), 100, 100)
    assert copy.array.tolist() == [1.0, 1.0, 1.0]
