"""What a loss compares with, seen at every step in the graph of the loss."""

import pytest
import torch
from torch.nn import functional as F

import vario
from releases import needs_loss_targets

STEPS, BEGINS = 260, 150


def train(tmp_path, batch, criterion, outputs=5, steps=STEPS):
    """Train a small network on `batch(step)`: inputs and targets. Return its run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, outputs))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(steps):
            inputs, targets = batch(step)
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not vario.open_run(monitor.path).parts_off
    return vario.open_run(monitor.path)


def said(run, rule="target_change"):
    return [alert for alert in run.alerts if alert.rule == rule]


def classes(step):
    """Classes that the inputs tell."""
    x = torch.randn(64, 12)
    return x, x[:, :5].argmax(-1)


def of_one_class(step):
    x, y = classes(step)
    return x, y if step < BEGINS else torch.full_like(y, 2)


def mostly_ignored(step):
    x, y = classes(step)
    return x, y if step < BEGINS else torch.where(torch.arange(64) < 20, y, -100)


def in_cents(step):
    x = torch.randn(64, 12)
    return x, x[:, :1] * (1 if step < BEGINS else 100)


def turned(step):
    x = torch.randn(64, 12)
    return x, torch.full((64, 1), 1.0 if step < BEGINS else 0.0)


@needs_loss_targets
@pytest.mark.parametrize(
    ("batch", "criterion", "outputs"),
    [
        (of_one_class, F.cross_entropy, 5),
        (mostly_ignored, F.cross_entropy, 5),
        (in_cents, F.mse_loss, 1),
        (in_cents, F.smooth_l1_loss, 1),
        (turned, F.binary_cross_entropy_with_logits, 1),
        (of_one_class, lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1) / 2, 5),
    ],
)
def test_targets_that_change_are_told_with_their_step(tmp_path, batch, criterion, outputs):
    (alert,) = said(train(tmp_path, batch, criterion, outputs))
    assert abs(alert.began - BEGINS) <= 5
    assert alert.scope == "batch"
    assert "'target' of the loss" in alert.text
    diagnosis = vario.diagnose(vario.open_run(tmp_path / "run"))
    assert diagnosis.hypotheses[0].name == "labels"


def test_targets_that_vary_by_design_are_silent(tmp_path):
    run = train(tmp_path, lambda step: (torch.randn(64, 12), torch.randn(64, 1) * (1 + step / 50)), F.mse_loss, 1)
    assert not said(run)


@needs_loss_targets
def test_the_classes_are_known_from_the_first_step(tmp_path):
    run = train(tmp_path, classes, F.cross_entropy, steps=5)
    assert set(run.series("guess_classes", "scalar", "value").values) == {5}
    assert not run.incidents


def test_what_hooks_have_packed_is_left_alone(tmp_path):
    """A target that unpacking would compute again, or copy back, is not looked at."""
    unpacked = []

    def unpack(tensor):
        unpacked.append(tensor)
        return tensor

    def criterion(x, y):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            return F.cross_entropy(x, y)

    model = torch.nn.Linear(12, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion(model(torch.randn(64, 12)), classes(0)[1]).backward()
    once = len(unpacked)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(10):
            x, y = classes(step)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert len(unpacked) == 11 * once
    assert not vario.open_run(monitor.path).parts_off


def test_losses_are_the_same_with_and_without_vario(tmp_path):
    def losses(watched):
        torch.manual_seed(0)
        model = torch.nn.Linear(12, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        monitor = vario.watch(model, optimizer, directory=tmp_path, name="run") if watched else None
        for step in range(30):
            x, y = classes(step)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        if monitor is not None:
            monitor.close()
        return found

    assert losses(False) == losses(True)


def misused(run):
    return {alert.target for alert in said(run, "loss_misuse")}


def one(step):
    x = torch.randn(16, 12)
    return x, x[:, :3].sum(1)


def signed(step):
    x = torch.randn(16, 12)
    return x, x[:, :5].tanh()


BIAS = torch.nn.Parameter(torch.zeros(5))
"""As a linear layer adds it to inputs of three dimensions that are not contiguous."""


def pairs(outputs, targets):
    """All pairs of two outputs, on purpose: contrastive losses do this."""
    return (outputs[:, :1] - outputs[:, 1]).square().mean() + (outputs[:, 0] - targets).square().mean()


@pytest.mark.parametrize(
    ("batch", "criterion", "outputs", "expected"),
    [
        (classes, lambda out, y: F.cross_entropy(out.softmax(-1), y), 5, "softmax_twice"),
        (classes, lambda out, y: F.cross_entropy(out.softmax(-1), F.one_hot(y, 5).float()), 5, "softmax_twice"),
        (
            one,
            lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0].sigmoid(), (y > 0).float()),
            1,
            "sigmoid_twice",
        ),
        (classes, F.nll_loss, 5, "raw_outputs"),
        (classes, lambda out, y: F.nll_loss(out + BIAS, y), 5, "raw_outputs"),
        (classes, lambda out, y: F.nll_loss(out.softmax(-1), y), 5, "probabilities"),
        (one, lambda out, y: (out - y).square().mean(), 1, "broadcast"),
        (one, lambda out, y: (y - out).abs().mean(), 1, "broadcast"),
        (one, lambda out, y: 0.01 * out.exp().mean() + 0.1 * (out - y).square().mean(), 1, "broadcast"),
        (signed, lambda out, y: F.mse_loss(out.sigmoid(), y), 5, "beyond_0_1"),
    ],
)
@needs_loss_targets
def test_a_loss_function_that_gets_what_it_is_not_made_for(tmp_path, batch, criterion, outputs, expected):
    run = train(tmp_path, batch, criterion, outputs, steps=12)
    (alert,) = said(run, "loss_misuse")
    assert alert.target == f"loss_misuse/{expected}"
    assert alert.since == 0
    assert alert.severity == "warn"


@pytest.mark.parametrize(
    ("batch", "criterion", "outputs"),
    [
        (classes, F.cross_entropy, 5),
        (classes, lambda out, y: F.cross_entropy(out, F.one_hot(y, 5).float()), 5),
        (classes, lambda out, y: F.nll_loss(out.log_softmax(-1), y), 5),
        (classes, lambda out, y: F.nll_loss(out.softmax(-1).clamp_min(1e-8).log(), y), 5),
        (classes, lambda out, y: F.nll_loss(out - out.logsumexp(-1, keepdim=True), y), 5),
        (classes, lambda out, y: F.kl_div(out.log_softmax(-1), torch.full((64, 5), 0.2), reduction="batchmean"), 5),
        (one, lambda out, y: F.binary_cross_entropy(out[:, 0].sigmoid(), (y > 0).float()), 1),
        (one, lambda out, y: F.mse_loss(out[:, 0], y), 1),
        (one, lambda out, y: (out[:, 0] - y).square().mean(), 1),
        (one, lambda out, y: (out[:, 0] - y.mean()).square().mean(), 1),
        (one, lambda out, y: (out[:, 0] - y).square().mean() - 0.1 * (out + y).tanh().mean(), 1),
        (one, pairs, 2),
        (signed, lambda out, y: F.mse_loss(out.tanh(), y), 5),
        (signed, lambda out, y: F.mse_loss(out.sigmoid(), (y + 1) / 2), 5),
    ],
)
def test_a_loss_function_that_is_used_as_it_should_be(tmp_path, batch, criterion, outputs):
    assert not said(train(tmp_path, batch, criterion, outputs, steps=12), "loss_misuse")


@needs_loss_targets
def test_mean_squares_of_shapes_that_broadcast(tmp_path):
    with pytest.warns(UserWarning, match="size"):
        run = train(tmp_path, one, lambda out, y: F.mse_loss(out, y), 1, steps=12)
    assert misused(run) == {"loss_misuse/broadcast"}


@needs_loss_targets
def test_logits_in_a_ctc_loss(tmp_path):
    lengths = torch.full((4,), 8), torch.full((4,), 3)

    def criterion(out, targets):
        return F.ctc_loss(out.view(8, 4, 5), targets, *lengths)

    run = train(tmp_path, lambda step: (torch.randn(32, 12), torch.randint(1, 5, (4, 3))), criterion, 5, steps=12)
    assert misused(run) == {"loss_misuse/raw_outputs"}
