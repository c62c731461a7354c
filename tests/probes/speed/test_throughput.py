import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

import vario
from vario.backends.peak_flops import peak_flops
from vario.runs.views.speed.throughput import rate, read_throughput, throughput_lines
from watching import scalar, watch


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Nothing is counted once something was compiled in this process, which a test of another file may have done."""
    monkeypatch.setattr("vario.backends.torch.modules.pass_work.has_compiled", lambda: False)


class Attending(nn.Module):
    def __init__(self, num_key_heads=2):
        super().__init__()
        self.parts = [16, 8 * num_key_heads, 8 * num_key_heads]
        self.embedding, self.mix, self.head = nn.Embedding(20, 16), nn.Linear(16, sum(self.parts)), nn.Linear(16, 20)

    def forward(self, tokens):
        x = self.embedding(tokens)
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in self.mix(x).split(self.parts, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=len(k[0]) < len(q[0]))
        return self.head(attended.transpose(1, 2).flatten(2))


def perceptron():
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())


def encoder():
    return nn.Sequential(nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))


def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.cell(x)[0])

    return Recurrent()


TOKENS = torch.arange(24).reshape(2, 12) % 20
MODELS = {
    "perceptron": (perceptron, torch.ones(5, 6)),
    "convolution": (convolution, torch.ones(2, 3, 9, 9)),
    "encoder": (encoder, TOKENS),
    "recurrent": (recurrent, torch.ones(2, 5, 6)),
}


def train(model, x, steps=6, passes=1, seed=3):
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_that_torch_counts_in_forward_and_backward(name):
    make, x = MODELS[name]
    torch.manual_seed(0)
    model = make()
    with FlopCounterMode(display=False) as expected:
        copy.deepcopy(model)(x).square().mean().backward()
    with watch(model, None, ["gradient"]) as monitor:
        train(model, x)
    assert scalar(monitor, "model_flops/float32") == {2: expected.get_total_flops()}


@pytest.mark.parametrize("name", MODELS)
def test_counting_does_not_change_a_loss(name):
    make, x = MODELS[name]
    torch.manual_seed(0)
    model = make()
    unwatched = train(copy.deepcopy(model), x)
    with watch(model, None, ["gradient"]) as monitor:
        assert train(model, x) == unwatched
    assert scalar(monitor, "model_flops/float32")


def test_groups_of_a_convolution_see_only_their_own_channels():
    # torch counts the gradient of such a weight as that of one without groups.
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3, groups=2))
    with watch(model, None, ["gradient"]) as monitor:
        train(model, torch.ones(2, 4, 9, 9))
    first, second = 2 * 2 * 8 * 4 * 9 * 49, 2 * 2 * 4 * (8 // 2) * 9 * 25
    assert scalar(monitor, "model_flops/float32") == {2: 2 * first + 3 * second}


@pytest.mark.parametrize("num_key_heads", [2, 1])
def test_attention_costs_twice_as_much_again_in_backward(num_key_heads):
    model = Attending(num_key_heads)
    with watch(model, None, ["gradient"]) as monitor:
        train(model, TOKENS)
    rows, heads, length, width = 2, 2, 12, 8
    products = 2 * rows * length * (16 * sum(model.parts) + 16 * 20)
    attention = 2 * rows * heads * length * length * 2 * width
    assert scalar(monitor, "model_flops/float32") == {2: 3 * (products + attention)}


@torch.library.custom_op("vario_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@register_flop_formula(torch.ops.vario_tests.doubled)
def _no_formula(shape, out_shape=None, **kwargs):
    raise AssertionError("shapes are incompatible")


def test_an_operation_that_cannot_be_counted_is_a_failed_part_and_training_goes_on(tmp_path):
    class Doubling(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.second(self.first(x) + doubled(x).sum())

    torch.manual_seed(0)
    model = Doubling()
    unwatched = train(copy.deepcopy(model), torch.ones(5, 6))
    with vario.watch(model, None, directory=str(tmp_path)) as monitor:
        assert train(model, torch.ones(5, 6)) == unwatched

    run = vario.open_run(monitor.path)
    assert "model_flops/float32" not in run.targets("scalar")
    assert run.series("samples_seen", "scalar").values[-1] == 30
    assert [part.part for part in run.parts_off] == ["flops"]


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_what_is_computed_again_does_not_count(is_reentrant):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

        def forward(self, x):
            return checkpoint(self.inner, self.first(x), use_reentrant=is_reentrant)

    model = Saving()
    with watch(model, None, ["gradient"]) as monitor:
        train(model, torch.ones(5, 6))
    assert scalar(monitor, "model_flops/float32") == {2: 2 * 5 * (2 * 6 * 8 + 3 * 2 * 8 * 8)}


def test_frozen_layers_cost_only_what_their_gradients_do():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    with watch(model, None, ["gradient"]) as monitor:
        train(model, torch.ones(5, 6))
    # The first: forward alone. The second: no gradient of its input.
    assert scalar(monitor, "model_flops/float32") == {2: 2 * 5 * (6 * 8 + 2 * 8 * 8 + 3 * 8)}


def test_all_passes_of_a_step_count():
    model = perceptron()
    with watch(model, None, ["gradient"]) as monitor:
        train(model, torch.ones(5, 6), passes=3)
    assert scalar(monitor, "model_flops/float32") == {2: 3 * 2 * 5 * (2 * 6 * 32 + 3 * 32 * 3)}
    assert scalar(monitor, "samples_seen") == {step: 15.0 * (step + 1) for step in range(6)}


def test_tokens_are_counted_where_a_batch_has_token_ids():
    model = encoder()
    with watch(model, None, ["gradient"]) as monitor:
        train(model, TOKENS)
    assert scalar(monitor, "samples_seen")[5] == 12
    assert scalar(monitor, "tokens_seen")[5] == 6 * 24


def test_a_batch_that_is_passed_counts_instead_of_what_the_model_is_called_with():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for _ in range(4):
            monitor.batch({"ids": torch.ones(7, 11, dtype=torch.int64)})
            model(torch.ones(5, 6)).sum().backward()
            optimizer.step()
    assert scalar(monitor, "samples_seen")[3] == 28
    assert scalar(monitor, "tokens_seen")[3] == 4 * 77


def test_a_pass_that_raises_leaves_no_counter_behind():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.num_calls = nn.Linear(4, 4), 0

        def forward(self, x):
            self.num_calls += 1
            if self.num_calls == 3:
                raise ValueError("no")
            return self.layer(x)

    model = Failing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for _ in range(6):
            try:
                loss = model(torch.ones(2, 4)).sum()
            except ValueError:
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert scalar(monitor, "model_flops/float32") == {2: 2 * 2 * 2 * 4 * 4}


def test_rates_are_what_was_seen_over_the_time_it_took(tmp_path):
    model = encoder()
    with vario.watch(model, None, directory=str(tmp_path), every={"gradient": 1}) as monitor:
        train(model, TOKENS, steps=40)
        monitor.log(total_steps=50)

    run = vario.open_run(monitor.path)
    found = read_throughput(run)
    assert found.tokens_seen == pytest.approx(40 * 24)
    assert found.tokens_per_second == pytest.approx(12 * found.samples_per_second)
    seconds = run.series("step_seconds", "scalar").values[2:]
    # Up to the last step that recorded what it saw.
    assert found.samples_per_second == pytest.approx(2 / seconds.mean(), rel=1.0)
    flops = run.series("model_flops/float32", "scalar").values[-1]
    assert found.flops_per_second == pytest.approx(flops / 2 * found.samples_per_second)
    assert found.peak_flops is None
    assert found.utilisation is None
    assert "tokens/s" in throughput_lines(found)[0]


def test_operations_and_a_peak_that_are_logged_count_instead(tmp_path):
    model = perceptron()
    with vario.watch(model, None, directory=str(tmp_path)) as monitor:
        monitor.log(model_flops=2e9, peak_flops=1e13)
        train(model, torch.ones(5, 6), steps=10)

    found = read_throughput(vario.open_run(monitor.path))
    assert found.precisions == ()
    assert found.utilisation == pytest.approx(found.flops_per_second / 1e13)


def test_a_rate_spans_sessions_without_counting_backwards():

    nan = np.nan
    seen = np.array([10.0, nan, 30.0, 5.0, 15.0])
    assert rate(np.full(5, 2.0), seen) == pytest.approx((20 + 10) / (4 + 2))
    assert rate(np.full(2, 2.0), np.array([nan, 5.0])) is None


def test_peaks_are_known_by_the_names_that_torch_gives():
    assert peak_flops("NVIDIA H200", "bfloat16") == 989.4e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12
    assert peak_flops("NVIDIA H200 NVL", "bfloat16") is None
    assert peak_flops("Some GPU", "bfloat16") is None
    assert peak_flops("Tesla T4", "bfloat16") is None
