"""Updates, rates, losses, batches and times on a CUDA device: the numbers of float64, and nothing waits for them."""

import pytest
import torch
from torch import nn
from updates_by_hand import BETA2, EPS, OF_ADAM, Hand

from models import Perceptron, batch
from watching import check, rows, scalar, watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SETTINGS = {"betas": (0.9, BETA2), "eps": EPS}
OPTIMIZERS = {
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, **SETTINGS),
    "loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False, **SETTINGS),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, amsgrad=True, **SETTINGS),
    "capturable": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01, device="cuda"), capturable=True, **SETTINGS),
    "fused with a rate on the device": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.01, device="cuda"), fused=True, **SETTINGS
    ),
}


class Losing(nn.Module):
    """Returns its loss, and has weights that lie in memory in several ways."""

    def __init__(self):
        super().__init__()
        self.inner = Perceptron(dropout=0.0)
        self.conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)

    def forward(self, x, image):
        return {"loss": self.inner(x).square().mean() + self.conv(image).square().mean()}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_an_update_on_a_device_is_what_float64_says(make):
    torch.manual_seed(0)
    model = Losing().cuda()
    optimizer = make(model.parameters())
    hand = Hand(model, lambda name: 0.01)
    losses = []
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch(step).cuda(), batch(step, (2, 4, 5, 5)).cuda())["loss"]
            loss.backward()
            hand.before()
            optimizer.step()
            hand.after()
            losses.append(loss.item())
    hand.check(monitor, OF_ADAM, rtol=3e-4)
    assert not rows(monitor, "unexpected_change")
    assert scalar(monitor, "lr") == pytest.approx(dict.fromkeys(range(4), 0.01), rel=1e-6)
    assert scalar(monitor, "loss_local") == pytest.approx(dict(enumerate(losses)), rel=1e-6)
    assert all(0 < seconds < 60 for seconds in scalar(monitor, "forward_seconds").values())
    assert sorted(scalar(monitor, "wait_seconds")) == [1, 2, 3]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_nothing_waits_for_the_device(make):
    torch.manual_seed(0)
    model = Losing().cuda()
    optimizer = make(model.parameters())
    inputs = [(batch(step).cuda(), batch(step, (2, 4, 5, 5)).cuda()) for step in range(6)]
    tokens = torch.randint(0, 100, (8, 20), device="cuda")
    with watch(
        model, optimizer, ["update", "unexpected_change"], every={"unexpected_change": 1, "update": 2}
    ) as monitor:
        for step in range(6):
            if step == 2:
                torch.cuda.set_sync_debug_mode("error")
            monitor.batch(tokens)
            model(*inputs[step])["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.set_sync_debug_mode("default")
    assert not monitor.off
    assert {key[0] for key in rows(monitor, "update")} == {0, 2, 4}


def test_a_change_from_outside_is_recorded_on_a_device_too():
    torch.manual_seed(0)
    model = Losing().cuda()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    with watch(model, optimizer, ["unexpected_change"]) as monitor:
        for step in range(4):
            if step == 2:
                with torch.no_grad():
                    before = model.conv.weight.clone()
                    model.conv.weight[3, 2] += 0.25
                    change = model.conv.weight - before
            model(batch(step).cuda(), batch(step, (2, 4, 5, 5)).cuda())["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    found = rows(monitor, "unexpected_change")
    assert {(key[0], key[3]) for key in found} == {(2, "conv.weight")}
    check(found[2, "unexpected_change", 0, "conv.weight"], change, eps=0)


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_skipped_update_on_a_device_has_no_rows(is_fused):
    torch.manual_seed(0)
    model = Losing().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=is_fused, **SETTINGS)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    hand = Hand(model, lambda name: 0.01)
    with watch(model, optimizer, ["update", "unexpected_change"], scaler=scaler) as monitor:
        for step in range(5):
            optimizer.zero_grad()
            loss = model(batch(step).cuda(), batch(step, (2, 4, 5, 5)).cuda())["loss"]
            scaler.scale(loss * float("inf") if step == 2 else loss).backward()
            gradients = {name: p.grad.double() / scaler.get_scale() for name, p in model.named_parameters()}
            hand.before()
            scaler.step(optimizer)
            scaler.update()
            if step == 2:
                hand.steps.append({})
            else:
                hand.after(gradients)
    hand.check(monitor, OF_ADAM, rtol=3e-4)
    assert not rows(monitor, "unexpected_change")


def test_a_batch_has_the_checksum_it_has_on_the_host():
    found = {}
    for device in ("cpu", "cuda"):
        model = Perceptron(dropout=0.0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, optimizer, ["gradient"]) as monitor:
            for step in range(4):
                model(batch(step % 2).to(device)).square().mean().backward()
                optimizer.step()
        found[device] = [scalar(monitor, name) for name in ("batch_repeated", "batch_distance", "batch_checksum")]
    assert found["cuda"] == found["cpu"]
