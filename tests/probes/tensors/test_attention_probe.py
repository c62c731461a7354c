"""Attention of watched models, against the softmax of the queries and keys their modules were called with."""

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import vario
from models import Attentive, ids, language_loss
from thorough import cases
from vario.core.errors import ConfigError
from vario.core.records import COUNT, NANS
from watching import check, check_same, rows, watch

CORES = ["layers.0.core", "layers.1.core"]


class Training:
    """A few steps of a small transformer; keeps, by hand, what its attention was called with."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = Attentive(**options)
        self.called = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.losses = []

    def watch(self, **options):
        return watch(self.called, self.optimizer, ["attention"], **{"attention": ["layers.*.core"], **options})

    def run(self, steps=2):
        for _ in range(steps):
            step = len(self.losses)
            for micro_step in range(2):
                loss = language_loss(self.called, ids(10 * step + micro_step))
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
            with torch.no_grad():
                self.called(ids(99))


def expected_rows(query, key, causal):
    scores = torch.einsum("bqhd,bkhd->bhqk", query.double(), key.double()) / query.shape[3] ** 0.5
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf)
    p = scores.softmax(-1)
    entropy = -torch.special.xlogy(p, p).sum(-1)
    num_seen = scores.isfinite().sum(-1)[0, 0]
    heads = (entropy / num_seen.log())[:, :, num_seen > 1].mean((0, 2))
    return {"entropy": entropy, "softmax_max": p.amax(-1), "max_logit": scores.amax(-1), "head_entropy": heads}


@pytest.fixture(scope="module")
def eager():
    training = Training()
    with training.watch() as monitor:
        training.run()
    return rows(monitor), training


def test_rows_are_the_softmax_of_queries_and_keys_per_micro_step():
    training = Training()
    seen = []
    for layer in training.model.layers:
        layer.core.register_forward_pre_hook(lambda module, args: seen.append([arg.detach() for arg in args[:2]]))
    with training.watch() as monitor:
        training.run()
    recorded = rows(monitor, "attention")
    passes = [call for call in range(len(seen)) if call % 6 < 4]  # the last two of a step evaluate
    for number, call in enumerate(passes):
        step, micro_step, layer = number // 4, number // 2 % 2, number % 2
        for what, values in expected_rows(*seen[call], causal=layer == 0).items():
            row = recorded.pop((step, "attention", micro_step, f"layers.{layer}.core:{what}"))
            check(row, values, rtol=1e-4)
            assert row[COUNT] == (2 if what == "head_entropy" else 3 * 2 * 5)
    assert not recorded


def test_the_run_is_read_back_by_name(tmp_path):
    training = Training()
    options = {"directory": str(tmp_path), "name": "run", "sinks": ["store"], "every": {"attention": 2}}
    with training.watch(**options) as monitor:
        training.run(4)
    series = vario.open_run(monitor.path).series("layers.1.core:entropy", "attention", "mean")
    assert series.steps.tolist() == [0, 2]
    assert np.all((series.values > 0) & (series.values < np.log(5)))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the evaluation in between
@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
def test_a_recomputation_is_not_counted(checkpointing, eager):
    training = Training(checkpointing=checkpointing)
    with training.watch() as monitor:
        training.run()
    check_same(rows(monitor), eager[0])


class Selective(Attentive):
    """Keeps the products of its attention and recomputes the rest."""

    def forward(self, tokens):
        def policy(context, operator, *args, **kwargs):
            saved = operator in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)
            return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(
                layer, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
            )
        return {"logits": self.head(x)}


class ProductsOfOurOwn(nn.Module):
    """Attention by two batched products, as selective checkpointing sees them."""

    def forward(self, query, key, value, scale=None):
        q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
        mixed = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        return mixed.unflatten(0, (len(query), -1)).transpose(1, 2)


def test_what_selective_checkpointing_saves_is_the_models_own():
    def trained(watched):
        training = Training()
        torch.manual_seed(0)
        training.model = training.called = Selective()
        for layer in training.model.layers:
            layer.core = ProductsOfOurOwn()
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.5)
        monitor = training.watch() if watched else None
        training.run()
        if monitor is not None:
            monitor.close()
            assert len(rows(monitor)) == 2 * 2 * 2 * 4
        return training

    watched, plain = trained(True), trained(False)
    assert watched.losses == plain.losses
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, watched.model.state_dict()[name]), name


def test_losses_are_the_same_bits_and_the_modules_are_left_as_they_were(eager):
    plain = Training()
    plain.run()
    assert eager[1].losses == plain.losses
    for module in eager[1].model.modules():
        assert not module._forward_pre_hooks
        assert not any("vario" in name for name in vars(module))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["whole", "by layer"])
@pytest.mark.parametrize("backend", cases(["aot_eager", "inductor"], ["inductor"]))
def test_attention_inside_a_compiled_graph_is_recorded_and_breaks_nothing(how, backend, eager):
    torch._dynamo.reset()
    counters.clear()
    training = Training()
    monitor = training.watch()
    if how == "whole":
        training.called = torch.compile(training.model, fullgraph=True, backend=backend)
    else:
        for layer in training.model.layers:
            layer.compile(fullgraph=True, backend=backend)
    training.run()
    monitor.close()
    assert sum(counters["graph_break"].values()) == 0
    check_same(rows(monitor), eager[0], rtol=1e-3)
    torch._dynamo.reset()


def test_autocast_around_the_model_takes_no_precision():
    training = Training()
    seen = []
    training.model.layers[0].core.register_forward_pre_hook(lambda module, args: seen.append(args[:2]))
    with training.watch() as monitor, torch.autocast("cpu", dtype=torch.bfloat16):
        training.run(1)
    query, key = seen[0]
    assert query.dtype is torch.bfloat16
    for what, values in expected_rows(query.detach(), key.detach(), causal=True).items():
        check(rows(monitor)[0, "attention", 0, f"layers.0.core:{what}"], values, rtol=1e-4)


def test_a_nan_in_a_key_is_counted_where_it_is_seen():
    training = Training()
    with training.watch() as monitor:
        training.model.layers[1].core.register_forward_pre_hook(_spoil_a_key, prepend=True)
        training.run(1)
    recorded = rows(monitor)
    assert recorded[0, "attention", 0, "layers.0.core:entropy"][NANS] == 0
    assert recorded[0, "attention", 0, "layers.1.core:entropy"][NANS] == 2 * 5  # one batch: all heads, all queries


def _spoil_a_key(module, args):
    query, key, *others = args
    spoilt = key.clone()
    spoilt[1, 2] = float("nan")
    return query, spoilt, *others


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": ["layers.*.cores"]}, "attention: 'layers.*.cores' matches no module of this model"),
        ({"attention": ["layer.0.core"]}, "Did you mean 'layers.0.core'?"),
        ({"attention": ["re:("]}, "attention: 're:(' is not a regular expression"),
        ({"attention": [1]}, "attention: expected names or patterns, got 1"),
        ({"attention_order": "b,s,d,h"}, "attention_order: expected one of 'b,s,h,d', 's,b,h,d', 'b,h,s,d'"),
        ({"attention_order": None}, "attention_order: expected one of"),
    ],
)
def test_a_wrong_option_is_refused_before_a_run_is_made(options, message, tmp_path):
    training = Training()
    with pytest.raises(ConfigError) as caught:
        training.watch(sinks=["store"], directory=str(tmp_path / "runs"), **options)
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()
    training.watch().close()  # nobody holds the model


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("layers.0", "attention of 'layers.0': expected queries and keys, got 1 positional inputs"),
        ("bilinear", "attention of 'bilinear': expected queries with four dimensions, b,s,h,d; got (3, 4)"),
    ],
)
def test_what_is_no_attention_is_switched_off_with_its_reason(named, message, caplog):
    training = Training()
    training.model.bilinear = nn.Bilinear(4, 4, 2)

    def call_bilinear(module, args):
        training.model.bilinear(torch.ones(3, 4), torch.ones(3, 4))

    training.model.head.register_forward_pre_hook(call_bilinear)
    monitor = training.watch(attention=[named], strict=False)
    training.run()
    monitor.close()
    assert [record.message for record in caplog.records if "switched off" in record.message]
    assert message in caplog.text
    assert len(training.losses) == 2


def test_the_order_of_axes_is_taken_from_the_config():
    found = []
    for order in ("b,s,h,d", "s, b, h, d"):
        training = Training()
        with training.watch(attention_order=order) as monitor:
            training.run(1)
        found.append(rows(monitor)[0, "attention", 0, "layers.1.core:entropy"])
    # Three sequences of five, or five of three: as many rows, over fewer keys.
    assert found[0][COUNT] == found[1][COUNT]
    assert found[0][1] > found[1][1]
