"""Attention that is found by itself, against the softmax of what torch's function was called with, in float64."""

import math

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import vario
from attending import WHATS, Calls, Training, check_target, functional, oracle
from models import Attentive, batch, ids, language_loss
from vario.backends.torch.modules.attention_sample import AttentionCall, sampled_rows
from vario.core.errors import ConfigError
from vario.core.records import COUNT, NANS
from watching import rows


class Own(nn.Module):
    """Attention of one's own around torch's function."""

    def __init__(self, call, heads=4, key_heads=4, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, heads_of * 4) for heads_of in (heads, key_heads, key_heads))
        self.call = call

    def forward(self, x, y=None):
        q, k, v = (part(tensor).unflatten(-1, (-1, 4)).transpose(1, 2) for part, tensor in self._parts(x, y))
        return self.call(q, k, v)

    def _parts(self, x, y):
        y = x if y is None else y
        return (self.q, x), (self.k, y), (self.v, y)


def own(call, shape=(3, 7, 16), other=None, **options):
    torch.manual_seed(0)
    model = nn.ModuleDict({"attention": Own(call, **options)})
    model.forward = lambda x, y: model["attention"](x, y)

    def loss(called, seed):
        return called(batch(seed, shape), None if other is None else batch(seed + 1, other)).square().mean()

    return Training(model, loss)


def padding(lengths, num_keys):
    return torch.arange(num_keys) < torch.tensor(lengths)[:, None]


PADDED = padding([7, 3, 1], 7)[:, None, None, :]
NOTHING = torch.ones(7, 7, dtype=torch.bool).tril() & ~torch.eye(7, dtype=torch.bool)
"""The first query sees nothing."""
LARGE = batch(5, (19, 1, 150, 150))
SLOPES = -torch.tensor([0.5, 0.25, 0.1, 0.0])[:, None, None] * (torch.arange(7)[:, None] - torch.arange(7)).abs()


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        ({}, {}, {}),
        ({"is_causal": True}, {}, {"causal": True}),
        ({"is_causal": True, "scale": 3.0}, {}, {"causal": True, "scale": 3.0}),
        ({"enable_gqa": True}, {"key_heads": 2}, {}),
        ({"enable_gqa": True, "is_causal": True}, {"key_heads": 1}, {"causal": True}),
        ({"attn_mask": PADDED}, {}, {"mask": PADDED}),
        ({"attn_mask": NOTHING}, {}, {"mask": NOTHING}),
        ({"attn_mask": torch.zeros(7, 7).masked_fill(~NOTHING, -1e4)}, {}, {"mask": NOTHING}),
        ({"attn_mask": torch.zeros(3, 1, 1, 7).masked_fill(~PADDED, -torch.inf)}, {}, {"mask": PADDED}),
        ({"attn_mask": SLOPES}, {}, {"mask": SLOPES}),
        ({"attn_mask": causal_upper_left(7, 7)}, {}, {"causal": True}),
        ({"is_causal": True}, {"other": (3, 11, 16)}, {"causal": True}),
        ({"attn_mask": causal_lower_right(7, 11)}, {"other": (3, 11, 16)}, {"causal": True, "lower_right": True}),
        ({"attn_mask": causal_upper_left(7, 11)}, {"other": (3, 11, 16)}, {"causal": True}),
        ({"is_causal": True}, {"shape": (19, 150, 16)}, {"causal": True}),
        ({"attn_mask": LARGE > 0}, {"shape": (19, 150, 16)}, {"mask": LARGE > 0}),
        ({"attn_mask": LARGE}, {"shape": (19, 150, 16)}, {"mask": LARGE}),
        ({}, {"shape": (2, 65, 16), "other": (2, 5, 16)}, {}),
    ],
)  # fmt: skip
def test_torchs_own_function_is_recorded_whatever_it_is_given(given, options, expected, monkeypatch):
    calls = Calls(monkeypatch)
    training = own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **given), **options)
    calls.keep(training.model["attention"], "call")
    with training.watch() as monitor:
        training.run(2)
    recorded = rows(monitor)
    for step in range(2):
        (query, key, _), _ = calls.seen[2 * step]
        check_target(recorded, step, "attention", oracle(query, key, **expected))
    assert not recorded


def test_at_most_64_queries_of_8_batches_are_looked_at():
    training = own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v), shape=(19, 150, 16))
    with training.watch() as monitor:
        training.run()
    counts = {target: row[COUNT] for (_, _, _, target), row in rows(monitor).items()}
    assert counts == {
        **{f"attention:{what}": 7 * 4 * 50 for what in WHATS[:3]},  # every third batch and query
        "attention:head_entropy": 4,
    }


@pytest.mark.parametrize("shape", [(7, 4), (5, 7, 4), (2, 3, 2, 7, 4)])
def test_any_number_of_batch_axes_will_do(shape):
    query, key = batch(0, shape).requires_grad_(), batch(1, shape)
    model = nn.Linear(4, 4)
    training = Training(model, lambda called, seed: called(query).sum())
    model.forward = lambda x: functional.scaled_dot_product_attention(nn.Linear.forward(model, x), key, key)
    with training.watch() as monitor:
        training.run()
    axes = {2: (1, 1), 3: (5, 1), 5: (6, 2)}[len(shape)]
    assert rows(monitor)[0, "attention", 0, "root:entropy"][COUNT] == math.prod(axes) * 7
    assert rows(monitor)[0, "attention", 0, "root:head_entropy"][COUNT] == axes[1]


def test_a_long_row_of_keys_is_looked_at_in_parts():
    query, key = batch(0, (3, 4, 40, 8)), batch(1, (3, 2, 90, 8))
    mask = batch(2, (3, 1, 40, 90)) > 0
    for block_elements in (1, 100, 3000, 1 << 22):
        found = sampled_rows(AttentionCall(query, key, mask=mask), block_elements)
        for what, values in oracle(query, key, mask=mask).items():
            np.testing.assert_allclose(found[what], values.reshape(-1), rtol=1e-4, atol=1e-5, err_msg=what)


def test_a_name_imported_from_torch_is_found_in_the_models_own_file():
    training = Training(Attentive(), lambda called, seed: language_loss(called, ids(seed)))
    globals()["attend"] = functional.scaled_dot_product_attention
    held = globals()["attend"]

    class Imported(nn.Module):
        def forward(self, query, key, value, scale=None):
            return attend(*(tensor.transpose(1, 2) for tensor in (query, key, value))).transpose(1, 2)  # noqa: F821

    training.model.layers[1].core = Imported()
    with training.watch() as monitor:
        training.run()
        assert globals()["attend"] is not held
    assert {target for _, _, _, target in rows(monitor)} == {
        f"layers.{layer}.core:{what}" for layer in (0, 1) for what in WHATS
    }
    assert globals().pop("attend") is held


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_torchs_transformer_layers_are_recorded(is_batch_first, monkeypatch):
    calls = Calls(monkeypatch).keep(functional, "scaled_dot_product_attention")
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=is_batch_first)
    hidden = ~padding([5, 2, 4], 5)
    if not is_batch_first:
        hidden = ~padding([3, 2, 1, 3, 3], 3)
    training = Training(
        model, lambda called, seed: called(batch(seed, (3, 5, 8)), src_key_padding_mask=hidden).square().mean()
    )
    with training.watch() as monitor:
        training.run()
    query, key, _, mask = calls.seen[0][0][:4]
    recorded = rows(monitor)
    check_target(recorded, 0, "self_attn", oracle(query, key, mask=mask))
    assert not recorded


# What must not be counted, and what must not change


def test_micro_steps_have_rows_of_their_own():
    training = Training(Attentive(), lambda called, seed: language_loss(called, ids(seed)))
    with training.watch(every={"attention": 2}) as monitor:
        training.run(3, micro_steps=2)
    assert {(step, micro_step) for step, _, micro_step, _ in rows(monitor)} == {(0, 0), (0, 1), (2, 0), (2, 1)}


def test_the_innermost_watched_module_gives_the_name():
    training = Training(Attentive(), lambda called, seed: language_loss(called, ids(seed)))
    with training.watch(targets=["layers.0", "layers.1.core", "layers.1"]) as monitor:
        training.run()
    assert {target.partition(":")[0] for _, _, _, target in rows(monitor)} == {"layers.0", "layers.1.core"}


def test_attention_outside_the_watched_model_is_not_counted():
    training = Training(nn.Linear(4, 4), lambda called, seed: called(batch(seed)).sum())
    with training.watch() as monitor:
        functional.scaled_dot_product_attention(*batch(0, (3, 2, 5, 4)).requires_grad_().unbind())
        training.run()
    assert not rows(monitor)


def test_a_nan_in_a_key_is_counted_where_it_is_seen():
    training = own(lambda q, k, v: functional.scaled_dot_product_attention(q, _spoilt(k), v, is_causal=True))
    with training.watch() as monitor:
        training.run()
    recorded = rows(monitor)
    assert recorded[0, "attention", 0, "attention:entropy"][NANS] == 4 * 4  # of one batch: all heads, four queries
    assert recorded[0, "attention", 0, "attention:head_entropy"][NANS] == 4


def _spoilt(key):
    key = key.clone()
    key[1, :, 3] = torch.nan
    return key


@pytest.mark.filterwarnings("ignore")
def test_a_mask_of_torchs_own_kind_goes_through_the_compiler_as_well():
    bias = causal_lower_right(7, 11)
    training = own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, bias), other=(3, 11, 16))
    torch._dynamo.reset()
    with training.watch():
        eager = training.loss(training.model, 0)
        training.called = torch.compile(training.model["attention"], backend="eager")
        compiled = training.loss(training.called, 0)
    assert eager.item() == pytest.approx(compiled.item())
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_what_runs_eagerly_beside_a_compiled_layer_is_recorded():
    torch._dynamo.reset()
    training = Training(Attentive(), lambda called, seed: language_loss(called, ids(seed)))
    monitor = training.watch()
    training.model.layers[0].compile(backend="aot_eager")
    training.run(2)
    monitor.close()
    assert {target.partition(":")[0] for *_, target in rows(monitor)} == {"layers.1.core"}
    torch._dynamo.reset()


def test_tensors_without_numbers_are_passed_over():
    seen = []

    def call(q, k, v):
        # Per sample under a transform, where no tensor shows its numbers.
        seen.append(None)
        return torch.func.vmap(functional.scaled_dot_product_attention)(q, k, v)

    training = own(call)
    with training.watch() as monitor:
        training.run()
    assert seen
    assert not rows(monitor)


def test_patterns_are_still_checked():
    with pytest.raises(ConfigError, match="attention: 'nothing' matches no module"):
        Training(Attentive(), None).watch(attention=["nothing"])


class Missing:
    """What some packages put in place of an optional one: it raises whatever attribute is read."""

    def __getattr__(self, name):
        raise ImportError(f"install it to use {name}")


def watched_for_a_step(folder, **options):
    torch.manual_seed(0)
    model = nn.Sequential(Own(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quantities = ["attention", "gradient"]
    with vario.watch(model, optimizer, directory=folder, name="run", every=1, quantities=quantities, **options):
        model(torch.randn(3, 7, 16)).square().mean().backward()
        optimizer.step()
    return vario.open_run(folder / "run")


def test_code_of_a_model_beside_an_object_that_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "_C", Missing())
    assert watched_for_a_step(tmp_path, strict=True).targets("attention")


def test_attention_that_cannot_be_followed_is_switched_off(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("vario.backends.torch.modules.attention_calls._places", lambda modules: 1 / 0)
    run = watched_for_a_step(tmp_path)
    assert "attention" not in run.quantities()
    assert run.targets("gradient")
    assert "'attention' failed and is switched off" in caplog.text
