"""Rows of attention against the whole attention matrix in float64."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models import batch
from vario.backends.module_attributes import is_causal
from vario.backends.torch.modules.attention import attention_rows

ORDERS = ["b,s,h,d", "s,b,h,d", "b,h,s,d"]
INF, NAN = float("inf"), float("nan")


def oracle(query, key, causal):
    """Entropy, largest probability and logit of rows (batch, head, query), from tensors laid out b,h,s,d.

    And of each head the mean entropy as a share of ln(keys), over queries that see more than one.
    """
    q, k = query.double().numpy(), key.double().numpy()
    k = k.repeat(q.shape[1] // k.shape[1], axis=1)
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if causal:
        num_queries, num_keys = scores.shape[2:]
        later = np.arange(num_keys) > np.arange(num_queries)[:, None] + num_keys - num_queries
        scores = np.where(later, -np.inf, scores)[:, :, max(0, num_queries - num_keys) :]
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - peak)
    p = weights / weights.sum(-1, keepdims=True)
    logs = np.log(p, where=p > 0, out=np.zeros_like(p))
    entropy = -(p * logs).sum(-1)
    found = {"entropy": entropy, "softmax_max": p.max(-1), "max_logit": peak[..., 0]}
    num_seen = np.isfinite(scores[0, 0]).sum(-1)
    if num_seen.max() > 1:
        share = entropy[:, :, num_seen > 1] / np.log(num_seen[num_seen > 1])
        found["head_entropy"] = share.mean((0, 2))
    return found


def laid_out(tensor, order):
    """A tensor b,h,s,d in another order of axes."""
    return tensor.permute(["bhsd".index(axis) for axis in order.split(",")])


def check_rows(found, expected):
    assert found.keys() == expected.keys()
    for what, rows in found.items():
        assert rows.dtype is torch.float32
        np.testing.assert_allclose(rows.numpy(), expected[what].reshape(-1), rtol=1e-5, atol=1e-4, err_msg=what)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_elements", [1, 40, 150, 700, 1 << 22])
def test_every_layout_and_size_of_blocks_gives_the_numbers_of_the_whole_matrix(order, causal, block_elements):
    query, key = batch(0, (3, 4, 9, 5)), batch(1, (3, 2, 9, 5))
    found = attention_rows(
        laid_out(query, order), laid_out(key, order), order, causal=causal, block_elements=block_elements
    )
    check_rows(found, oracle(query, key, causal))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("sharpness", [0.01, 1.0, 30.0])
def test_every_float_type_and_sharpness(dtype, sharpness):
    query, key = (sharpness * batch(0, (2, 2, 33, 16))).to(dtype), batch(1, (2, 2, 33, 16)).to(dtype)
    check_rows(attention_rows(query, key, "b, h, s, d", causal=True), oracle(query, key, True))


@pytest.mark.parametrize("causal", [True, False])
def test_a_sequence_of_4096_is_never_a_whole_matrix(causal):
    query, key = batch(0, (1, 2, 4096, 32)), batch(1, (1, 1, 4096, 32))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        found = attention_rows(query, key, "b,h,s,d", causal=causal, block_elements=1 << 20)
    assert (1 << 20) * 3 < max(event.self_cpu_memory_usage for event in profile.events()) <= (1 << 20) * 4
    for head in range(2):
        one = {what: rows.view(2, -1)[head] for what, rows in found.items()}
        check_rows(one, oracle(query[:, head : head + 1], key, causal))


def test_nearly_rank_one_queries_and_keys():
    line = batch(0, (1, 1, 1, 64))
    query = line * batch(1, (2, 2, 128, 1)) + 1e-3 * batch(2, (2, 2, 128, 64))
    key = line * batch(3, (2, 2, 128, 1)) + 1e-3 * batch(4, (2, 2, 128, 64))
    check_rows(attention_rows(query, key, "b,h,s,d", causal=True), oracle(query, key, True))


@pytest.mark.parametrize("lengths", [(3, 8), (8, 3), (1, 7), (7, 1), (5, 0)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_elements", [12, 1 << 22])
def test_queries_and_keys_of_different_length_are_aligned_at_the_end(lengths, causal, block_elements):
    query, key = batch(0, (2, 2, lengths[0], 4)), batch(1, (2, 2, lengths[1], 4))
    found = attention_rows(query, key, "b,h,s,d", causal=causal, block_elements=block_elements)
    if lengths[1] == 0:
        assert all(rows.numel() == 0 for rows in found.values())
    else:
        check_rows(found, oracle(query, key, causal))


def test_the_first_batch_and_head_alone_are_the_first_rows():
    query, key = batch(0, (3, 4, 9, 5)), batch(1, (3, 2, 9, 5))
    found = attention_rows(query, key, "b,h,s,d", causal=True, first_only=True)
    check_rows(found, oracle(query[:1, :1], key[:1, :1], True))


def test_a_nan_or_an_infinite_logit_marks_its_rows_and_no_others():
    query, key = batch(0, (1, 1, 6, 4)), batch(1, (1, 1, 6, 4)).abs()
    query[0, 0, 1, 2] = NAN
    query[0, 0, 3] = torch.tensor([INF, 0.0, 0.0, 0.0])
    query[0, 0, 4] = torch.tensor([-INF, 0.0, 0.0, 0.0])
    found = attention_rows(query, key, "b,h,s,d", causal=True)
    assert found["entropy"].isnan().tolist() == [False, True, False, True, True, False]
    assert found["max_logit"].isnan().tolist() == [False, True, False, False, False, False]
    assert found["max_logit"][3] == INF
    assert found["max_logit"][4] == -INF
    assert found["softmax_max"].isnan().tolist() == [False, True, False, True, True, False]


def test_one_infinitely_small_logit_among_finite_ones_is_not_hidden():
    query, key = torch.ones((1, 1, 2, 2)), torch.ones((1, 1, 2, 2))
    key[0, 0, 0, 0] = -INF
    assert attention_rows(query, key, "b,h,s,d", causal=False)["entropy"].isnan().all()


def test_a_key_that_is_masked_hides_nothing_and_spoils_nothing():
    query, key = batch(0, (1, 1, 5, 4)), batch(1, (1, 1, 5, 4))
    expected = attention_rows(query, key, "b,h,s,d", causal=True)
    key[0, 0, 4] = NAN
    found = attention_rows(query, key, "b,h,s,d", causal=True)
    assert found.pop("head_entropy").isnan()
    for what, rows in found.items():
        assert rows[4].isnan(), what
        assert torch.equal(rows[:4], expected[what][:4]), what


def test_autocast_and_gradients_around_it_change_nothing():
    query, key = batch(0, (2, 2, 9, 8)).requires_grad_(), batch(1, (2, 2, 9, 8))
    expected = attention_rows(query, key, "b,h,s,d", causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_rows(query, key, "b,h,s,d", causal=True)
    for what, rows in found.items():
        assert not rows.requires_grad
        assert torch.equal(rows, expected[what]), what


@pytest.mark.parametrize(
    ("query", "key", "order", "message"),
    [
        (torch.ones(2, 3, 4), torch.ones(2, 3, 4), "b,s,h,d", "expected queries with four dimensions, b,s,h,d; got (2"),
        (torch.ones(2, 3, 4, 5), None, "b,s,h,d", "expected keys with four dimensions, b,s,h,d; got NoneType"),
        (torch.ones(2, 3, 4, 5), torch.ones(1, 3, 4, 5), "b,s,h,d", "(2, 3, 4, 5) and keys of shape (1, 3, 4, 5)"),
        (torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4, 6), "b,s,h,d", "Other orders: b,s,h,d; s,b,h,d; b,h,s,d"),
        (torch.ones(2, 3, 4, 5), torch.ones(2, 3, 3, 5), "b,s,h,d", "the heads divide"),
        (torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4, 5), "b,s,d,h", "order: unknown 'b,s,d,h'. Known: b,s,h,d"),
        (torch.ones(2, 3, 4, 5, device="meta"), torch.ones(2, 3, 4, 5), "b,s,h,d", "it is a meta tensor"),
    ],
)  # fmt: skip
def test_what_is_not_attention_is_refused_by_its_shape(query, key, order, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_rows(query, key, order, causal=True)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, True),
        ({"is_causal": False}, False),
        ({"causal": False}, False),
        ({"is_causal": True, "attn_mask_type": "no_mask"}, True),
        ({"is_causal": None, "attn_mask_type": SimpleNamespace(name="padding_causal")}, True),
        ({"attn_mask_type": SimpleNamespace(name="no_mask")}, False),
        ({"attn_mask_type": "padding"}, False),
    ],
)
def test_a_module_says_whether_it_is_causal(attributes, expected):
    module = torch.nn.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    assert is_causal(module) is expected
