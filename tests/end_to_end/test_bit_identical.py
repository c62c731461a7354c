"""Monitoring on or off, losses and final weights are the same bits."""

import pytest
import torch
from torch import nn

from models import Convolutional, Language, Perceptron, Recurrent, batch, ids, language_loss
from watching import rows, watch


def mean_square(shape):
    return lambda model, step: model(batch(step, shape)).square().mean()


def language(model, step):
    return language_loss(model, ids(step))


def plain(model, loss_of, losses):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def accumulated_and_clipped(model, loss_of, losses):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for micro_step in range(3):
            loss = loss_of(model, 3 * step + micro_step) / 3
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def mixed_precision(model, loss_of, losses):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, step)
        scaler.scale(loss * float("inf") if step == 2 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())


def twice_backward(model, loss_of, losses):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    for step in range(3):
        loss = loss_of(model, step)
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())


CASES = {
    "dropout": (Perceptron, mean_square((6, 4)), plain),
    "batch norm": (Convolutional, mean_square((2, 1, 6, 6)), plain),
    "recurrent": (Recurrent, mean_square((2, 3, 4)), plain),
    "language": (Language, language, plain),
    "tied": (lambda: Language(tied=True), language, plain),
    "reentrant": (lambda: Language(checkpointing="reentrant"), language, plain),
    "non-reentrant": (lambda: Language(checkpointing="non-reentrant"), language, plain),
    "accumulated": (Language, language, accumulated_and_clipped),
    "mixed precision": (Language, language, mixed_precision),
    "two backwards": (Perceptron, mean_square((6, 4)), twice_backward),
    "large": (lambda: Perceptron(width=2000), mean_square((300, 4)), plain),
    "bfloat16": (lambda: Perceptron().bfloat16(), lambda m, s: m(batch(s).bfloat16()).square().mean(), plain),
}


def trained(make, loss_of, loop, watched):
    torch.manual_seed(3)
    model, losses = make(), []
    if watched:
        with watch(model) as monitor:
            loop(model, loss_of, losses)
        assert {key[1] for key in rows(monitor)} >= {"gradient", "gradient_local", "weight", "activation_gradient"}
    else:
        loop(model, loss_of, losses)
    return losses, model.state_dict(), torch.get_rng_state()


@pytest.mark.parametrize("case", CASES)
def test_losses_weights_and_random_numbers_are_the_same_bits(case):
    on, off = (trained(*CASES[case], watched) for watched in (True, False))
    assert on[0] == off[0]
    assert len(set(on[0])) > 1
    for name, tensor in off[1].items():
        assert torch.equal(on[1][name], tensor), name
    assert torch.equal(on[2], off[2])
