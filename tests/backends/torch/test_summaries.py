"""TorchSummaries on CPU, and the plain-operation fallback for other devices, against numpy in float64."""

import threading

import numpy as np
import pytest
import torch

from vario.backends import native
from vario.backends.torch.reduce import small_tensors
from vario.backends.torch.reduce.aten import AtenRows
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.backends.torch.reduce.tensors import why_without_numbers
from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS
from vario.statistics import columns_needed
from watching import array, check, check_summaries, summary

ALL = frozenset(COLUMNS)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.bool]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True, params=["native", "numpy"])
def reducing(request, monkeypatch):
    """Everything is tried with the C library, if it was built, and without."""
    if request.param == "numpy":
        monkeypatch.setattr(native, "library", None)


def by_host(*tensors, eps=1e-8, columns=ALL, scale=None):
    summaries = TorchSummaries(eps, columns)
    numbers = [summaries.observe(tensor, scale) for tensor in tensors]
    table = summaries.collect()()
    return [None if number is None else table[number] for number in numbers]


def by_operations(*tensors, eps=1e-8, scale=None):
    """The same through AtenRows, as on a device without Triton."""
    summaries = TorchSummaries(eps, ALL)
    device_rows = AtenRows(torch.device("cpu"), eps)
    summaries._on_device[torch.device("cpu"), "aten"] = device_rows
    summaries._device_rows = lambda elements: device_rows
    numbers = [summaries.observe(tensor, scale) for tensor in tensors]
    table = summaries.collect()()
    return [None if number is None else table[number] for number in numbers]


def by_list(*tensors, eps=1e-8, columns=ALL, scale=None):
    """The same as part of a list, whose small tensors are reduced together."""
    summaries = TorchSummaries(eps, columns)
    others = [torch.full((3,), 5.0), torch.ones(2, 2, dtype=torch.float64), torch.zeros(0), torch.ones(20_000)]
    numbers = summaries.observe_many([*others, *tensors, *others], scale)[len(others) : len(others) + len(tensors)]
    table = summaries.collect()()
    return [None if number is None else table[number] for number in numbers]


both = pytest.mark.parametrize("reduced", [by_host, by_operations, by_list])


def numbers(dtype, shape=(7, 11), seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.complex(*torch.randn((2, *shape), generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.3
    return torch.randint(0 if "uint" in str(dtype) else -100, 100, shape, generator=generator).to(dtype)


@both
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + COMPLEX, ids=str)
def test_every_dtype_gets_the_numbers_of_numpy(reduced, dtype):
    tensor = numbers(dtype)
    (row,) = reduced(tensor)
    check(row, tensor)
    assert row[COUNT] == 77


@both
def test_large_integers_are_not_rounded_to_float32(reduced):
    tensor = torch.tensor([2**40 + 1, -(2**40), 3])
    (row,) = reduced(tensor)
    assert row[SUM] == 4
    assert (row[MIN], row[MAX]) == (-(2**40), 2**40 + 1)


@both
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_tensor_has_a_row_of_nothing(reduced, shape):
    (row,) = reduced(torch.empty(shape))
    check(row, torch.empty(shape))
    assert row[COUNT] == 0
    assert np.isnan(row[MIN])
    assert np.isnan(row[MAX])


@both
def test_a_tensor_without_dimensions_counts_as_one_element(reduced):
    (row,) = reduced(torch.tensor(-2.5))
    assert list(row) == [1, -2.5, 6.25, -2.5, -2.5, 0, 0, 0]


@both
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2, 1::3],
        lambda x: x[1:, 2:],
        lambda x: x.permute(1, 0)[3:],
        lambda x: x[0].expand(5, 12),
        lambda x: x[:1, :1].expand(10, 12),
        lambda x: x.unfold(0, 3, 1),
        lambda x: x[:, ::2].flip(1),
        lambda x: torch.view_as_complex(x.reshape(10, 6, 2)).conj(),
        lambda x: torch.view_as_complex(x.reshape(10, 6, 2)).conj().imag,
        lambda x: x[3:3],
        lambda x: x[:, 5],
    ],
)
def test_a_view_of_any_shape_shows_its_own_elements_only(reduced, view):
    tensor = view(numbers(torch.float32, (10, 12)))
    (row,) = reduced(tensor)
    check(row, tensor)


@both
@pytest.mark.parametrize("channels_last", [torch.channels_last, torch.contiguous_format])
def test_a_memory_format_changes_nothing(reduced, channels_last):
    tensor = numbers(torch.float32, (2, 3, 4, 5)).to(memory_format=channels_last)
    (row,) = reduced(tensor)
    check(row, tensor)


def sparse_values():
    dense = numbers(torch.float32, (6, 8))
    dense[torch.arange(6) % 3 != 0] = 0.0
    return dense


@both
@pytest.mark.parametrize(
    "sparse",
    [
        lambda dense: dense.to_sparse(),
        lambda dense: dense.to_sparse(1),
        lambda dense: dense.to_sparse_csr(),
        lambda dense: dense.to_sparse_csc(),
        lambda dense: dense.to_sparse_bsr((2, 2)),
        lambda dense: (-dense.abs()).to_sparse(),
    ],
    ids=["coo", "hybrid", "csr", "csc", "bsr", "negative"],
)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_a_sparse_tensor_is_measured_as_the_dense_one_it_stands_for(reduced, sparse):
    tensor = sparse(sparse_values())
    (row,) = reduced(tensor)
    check(row, tensor.to_dense())


# torch 2.11 says so once, although they are asked for.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@both
def test_a_sparse_tensor_that_names_an_element_twice_is_added_up_first(reduced):
    indices = torch.tensor([[0, 2, 2, 4]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, -5.0, 0.5]), (6,), check_invariants=True)
    (row,) = reduced(tensor)
    check(row, tensor.to_dense())
    assert not tensor.is_coalesced()


@both
@pytest.mark.parametrize("values", [[NAN, NAN], [NAN, 2.0], [INF, -3.0], []])
def test_a_sparse_tensor_keeps_its_nans_and_its_implicit_zeros(reduced, values):
    indices = torch.arange(len(values))[None]
    tensor = torch.sparse_coo_tensor(indices, torch.tensor(values), (5,), is_coalesced=True, check_invariants=False)
    (row,) = reduced(tensor)
    check(row, tensor.to_dense())
    assert row[ZEROS] == 5 - len(values)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@both
def test_a_nested_tensor_shows_the_elements_of_its_parts(reduced, layout):
    parts = [numbers(torch.float32, (n, 3), seed=n) for n in (2, 5, 1)]
    (row,) = reduced(torch.nested.nested_tensor(parts, layout=layout))
    check(row, torch.cat(parts))


@both
def test_a_jagged_tensor_with_holes_does_not_show_what_lies_in_them(reduced):
    values = numbers(torch.float32, (4, 6))
    starts, lengths = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 3, 1, 6])
    nested = torch.nested.narrow(values, 1, starts, lengths, layout=torch.jagged)
    (row,) = reduced(nested)
    shown = [values[i, s : s + n] for i, (s, n) in enumerate(zip(starts, lengths, strict=True))]
    check(row, torch.cat(shown))


@both
def test_a_meta_tensor_has_no_row_and_a_reason(reduced):
    tensor = torch.empty(3, device="meta")
    assert reduced(tensor) == [None]
    assert why_without_numbers(tensor) == "it is a meta tensor"


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize(
    "values",
    [
        [NAN],
        [NAN, NAN, NAN],
        [NAN, -1.0, 4.0, 0.0],
        [INF, 1.0],
        [-INF, 1.0],
        [INF, -INF, 2.0],
        [INF, -INF, NAN, 2.0, 0.0],
        [INF, INF],
        [-INF],
        [NAN, INF],
    ],
)
def test_minimum_and_maximum_ignore_a_nan_but_it_is_counted(reduced, values, dtype):
    tensor = torch.tensor(values, dtype=dtype)
    (row,) = reduced(tensor)
    check(row, tensor)
    if not dtype.is_complex:
        assert row[NANS] == sum(np.isnan(values))
        assert row[INFS] == sum(np.isinf(values))


@both
def test_one_nan_in_a_later_block_does_not_hide_the_rest(reduced):
    tensor = numbers(torch.float32, (600_000,))
    tensor[300_001] = NAN
    tensor[550_000] = -INF
    (row,) = reduced(tensor)
    check(row, tensor)


@both
@pytest.mark.parametrize("magnitude", [1e30, 3e38, 1e-30])
def test_squares_that_overflow_float32_are_finite(reduced, magnitude):
    tensor = torch.tensor([magnitude, -magnitude, magnitude / 2])
    (row,) = reduced(tensor)
    check(row, tensor)
    assert np.isfinite(row).all()
    assert row[INFS] == 0


@both
def test_sums_of_float64_keep_their_digits(reduced):
    tensor = torch.tensor([1.0, 1e-12, -1.0], dtype=torch.float64)
    (row,) = reduced(tensor)
    np.testing.assert_allclose(row[SUM], 1e-12, rtol=1e-3)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.5])
def test_zeros_are_what_lies_below_eps(reduced, eps, dtype):
    tensor = torch.tensor([0.0, -0.0, 1e-20, -1e-9, 0.25, -0.25, 0.5, 3.0, NAN, INF])
    tensor = torch.nan_to_num(tensor, 1.0, 2.0).to(dtype) if dtype is torch.int32 else tensor.to(dtype)
    (row,) = reduced(tensor, eps=eps)
    check(row, tensor, eps=eps)


@both
def test_a_loss_scale_is_divided_out_before_eps_is_applied(reduced):
    scale = torch.tensor(1024.0)
    tensor = numbers(torch.float32, (50,)) * 1e-3
    tensor[7] = 0.0
    scaled = tensor * 1024.0
    (row,) = reduced(scaled, eps=1e-4, scale=scale)
    check(row, tensor, eps=1e-4)


@both
def test_a_loss_scale_leaves_inf_and_nan_as_they_are(reduced):
    (row,) = reduced(torch.tensor([INF, NAN, 512.0, -256.0]), scale=torch.tensor(256.0))
    check(row, torch.tensor([INF, NAN, 2.0, -1.0]))


@pytest.mark.parametrize("left_out", ["sum_squares", "zeros", "min"])
def test_a_column_nobody_asked_for_does_not_change_the_others(left_out):
    tensor = torch.cat([numbers(torch.float32, (300_000,)), torch.tensor([NAN, INF, 0.0])])
    columns = ALL - {"min", "max"} if left_out == "min" else ALL - {left_out}
    (row,) = by_host(tensor, columns=columns)
    expected = summary(tensor)
    kept = [COLUMNS.index(name) for name in columns]
    np.testing.assert_allclose(row[kept], expected[kept], rtol=1e-5)


def test_nans_and_infs_are_counted_whatever_was_asked_for():
    (row,) = by_host(torch.tensor([NAN, INF, 1.0]), columns=columns_needed(["mean"]))
    assert (row[NANS], row[INFS], row[COUNT]) == (1, 1, 3)


def test_fifty_million_elements_are_summed_to_five_digits():
    tensor = torch.empty(50_000_000).uniform_(-1, 3, generator=torch.Generator().manual_seed(0))
    (row,) = by_host(tensor)
    values = tensor.numpy()
    squares = sum(np.square(values[at : at + 10**6].astype(np.float64)).sum() for at in range(0, len(values), 10**6))
    np.testing.assert_allclose(row[SUM_SQUARES], squares, rtol=1e-5)
    np.testing.assert_allclose(row[SUM], values.sum(dtype=np.float64), rtol=1e-5)
    assert (row[MIN], row[MAX]) == (values.min(), values.max())


@both
@pytest.mark.parametrize("seed", range(12))
def test_random_tensors_with_random_faults_agree_with_numpy(reduced, seed):
    random = np.random.default_rng(seed)
    tensors = []
    for _ in range(6):
        dtype = FLOATS[random.integers(len(FLOATS))]
        shape = tuple(random.integers(0, 40, size=random.integers(0, 4)))
        values = random.normal(size=shape) * 10.0 ** random.integers(-3, 3)
        faults = random.random(shape)
        values = np.where(faults < 0.05, 0.0, values)
        if random.random() < 0.5:
            values = np.where(faults > 0.97, random.choice([NAN, INF, -INF]), values)
        tensor = torch.as_tensor(np.asarray(values)).to(dtype)
        if tensor.dim() > 1 and random.random() < 0.5:
            tensor = tensor.transpose(0, -1)
        if tensor.dim() and random.random() < 0.5:
            tensor = tensor[:: random.integers(1, 4)]
        tensors.append(tensor)
    for row, tensor in zip(reduced(*tensors), tensors, strict=True):
        check(row, tensor)


def test_rows_of_several_kinds_come_out_in_the_order_they_went_in():
    summaries = TorchSummaries(1e-8, ALL)
    tensors = [numbers(torch.bfloat16), sparse_values().to_sparse(), torch.empty(2, device="meta"), torch.ones(3)]
    placed = summaries.observe_many(tensors, None, "list")
    table = summaries.collect()()
    assert placed[2] is None
    check(table[placed[0]], tensors[0])
    check(table[placed[1]], sparse_values())
    assert table[placed[3]][SUM] == 3


def test_a_new_step_starts_with_an_empty_table():
    summaries = TorchSummaries(1e-8, ALL)
    summaries.observe(torch.ones(3))
    first = summaries.collect()
    number = summaries.observe(torch.zeros(5))
    second = summaries.collect()
    assert number == 0
    assert len(first()) == len(second()) == 1
    check(first()[0], torch.ones(3))
    check(second()[0], torch.zeros(5))


def test_a_default_device_of_the_script_does_not_move_our_scratch_memory():
    tensor = numbers(torch.bfloat16)
    seen = []

    def reduce_it():  # on a thread of its own, which has no scratch memory yet
        with torch.device("meta"):
            seen.extend(by_host(tensor))

    thread = threading.Thread(target=reduce_it)
    thread.start()
    thread.join()
    check_summaries(seen[0], summary(tensor))


def test_nothing_of_the_tensor_is_changed_by_looking_at_it():
    tensor = numbers(torch.float16).requires_grad_()
    before, version = tensor.detach().clone(), tensor._version
    by_host(tensor)
    by_operations(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == version
    assert tensor.grad_fn is None


def test_the_oracle_agrees_with_plain_arithmetic():
    row = summary(torch.tensor([3.0, -4.0, 0.0]))
    assert list(row) == [3, -1, 25, -4, 3, 0, 0, 1]
    assert array(torch.tensor([1.5], dtype=torch.float8_e5m2)).tolist() == [1.5]


def test_small_tensors_of_a_list_are_reduced_together_as_they_would_be_alone():
    """Also those that lie in memory in odd ways, hold what is not finite, or whose sums would overflow."""
    odd = torch.tensor([[1.0, NAN], [INF, -2.0]])
    tensors = [
        odd,
        odd.t()[1:],
        torch.tensor([-INF, INF]),
        torch.tensor([NAN]),
        torch.tensor([1e200, 1e200], dtype=torch.float64),
        torch.tensor(3.0),
        torch.arange(12.0).reshape(3, 4).t()[::2],
        torch.ones(1).expand(5),
        torch.complex(torch.ones(3), torch.ones(3)).conj().imag,
        torch.nn.Parameter(torch.tensor([1e-9, 0.0, -0.0, 2.0], dtype=torch.bfloat16)),
        torch.nn.Parameter(torch.ones(4, dtype=torch.float64)),
    ]
    for eps in (0.0, 1e-8):
        for scale in (None, torch.tensor(4.0)):
            alone = by_host(*tensors, eps=eps, scale=scale)
            for one, other in zip(by_list(*tensors, eps=eps, scale=scale), alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-15)


def test_a_list_is_copied_in_chunks(monkeypatch):
    monkeypatch.setattr(small_tensors, "CHUNK", 10)
    tensors = [torch.full((size,), float(size), dtype=dtype) for size in (1, 7, 40, 3, 9) for dtype in FLOATS[:2]]
    for tensor, row in zip(tensors, by_list(*tensors), strict=True):
        check(row, tensor)


def test_a_list_of_small_tensors_takes_the_place_of_the_one_under_its_name():
    summaries = TorchSummaries(0.0, frozenset(COLUMNS))
    lists = [[torch.full((3,), float(number + at)) for at in range(5)] for number in (0, 10, 20, 30)]
    rows = [summaries.observe_many(lists[0], None, "gradient"), summaries.observe_many(lists[1], None, "weight")]
    lists[0][0].fill_(7.0)  # the copy is what counts
    again = summaries.observe_many(lists[2], None, "gradient")
    other = summaries.observe_many([*lists[3], torch.ones(2)], None, "gradient")
    assert again == rows[0]
    assert not {*other} & {*rows[0], *rows[1]}
    table = summaries.collect()()
    assert table[rows[0], SUM].tolist() == [3.0 * (20 + at) for at in range(5)]
    assert table[rows[1], SUM].tolist() == [3.0 * (10 + at) for at in range(5)]
    assert table[other, SUM].tolist() == [*(3.0 * (30 + at) for at in range(5)), 2.0]


def test_more_small_tensors_than_may_wait_are_reduced_at_once(monkeypatch):
    monkeypatch.setattr(small_tensors, "MOST_WAITING", 3 * small_tensors.BLOCK)
    summaries = TorchSummaries(0.0, frozenset(COLUMNS))
    tensors = [torch.full((small_tensors.SMALL - 1,), float(at)) for at in range(20)]
    rows = [summaries.observe(tensor) for tensor in tensors]
    waiting = [batch for batch in summaries._small.batches if batch.flat is not None]
    assert len(waiting) <= 3
    assert bool(waiting) == (native.library is None)
    for row, tensor in zip(summaries.collect()()[rows], tensors, strict=True):
        check(row, tensor)
