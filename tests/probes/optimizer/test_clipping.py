import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_ as imported_by_name

import vario
from vario.cli import main
from vario.runs.views.tensors.clipping import clipping_of, read_clipping
from watching import scalar, watch


def train(model, clip, steps=12):
    """Train, and return the norm before and after clipping of each step."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)).square().mean() * (10 if step == 5 else 1)).backward()
        before = norm_of(model)
        clip(model.parameters())
        norms.append((before, norm_of(model)))
        optimizer.step()
    return np.array(norms)


def norm_of(model):
    return float(np.sqrt(sum((each.grad.double().numpy() ** 2).sum() for each in model.parameters())))


def made():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


WAYS = {
    "by its name": lambda parameters: imported_by_name(parameters, 0.5),
    "from its module": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, max_norm=0.5),
    "in two calls": lambda parameters: clip_in_two(list(parameters)),
}


def clip_in_two(parameters):
    total = torch.nn.utils.get_total_norm([each.grad for each in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, 0.5, total)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_norm_before_clipping_and_the_limit_are_recorded(way):
    model = made()
    with watch(model, None, ["gradient"]) as monitor:
        norms = train(model, way)
    found = scalar(monitor, "clip_norm")
    assert list(found) == list(range(12))
    assert list(found.values()) == pytest.approx(norms[:, 0].tolist(), rel=1e-5)
    assert set(scalar(monitor, "clip_limit").values()) == {0.5}
    assert np.minimum(norms[:, 0], 0.5) == pytest.approx(norms[:, 1], rel=1e-4)


def test_a_limit_that_is_none_is_no_clipping():
    model = made()
    with watch(model, None, ["gradient"]) as monitor:
        train(model, lambda parameters: imported_by_name(parameters, float("inf")))
    assert len(scalar(monitor, "clip_norm")) == 12
    assert not scalar(monitor, "clip_limit")


def test_norms_that_are_not_finite_are_left_to_the_gradients():
    model = made()

    def clip(parameters):
        parameters = list(parameters)
        parameters[0].grad[0, 0] = float("nan")
        imported_by_name(parameters, 0.5)

    with watch(model, None, ["gradient"]) as monitor:
        train(model, clip, steps=2)
    assert not scalar(monitor, "clip_norm")


def test_clipping_of_another_model_is_not_recorded_and_torch_is_left_as_it_was():
    before = torch.nn.utils.clip_grad._clip_grads_with_norm_, torch.nn.utils.clip_grads_with_norm_
    model, other = made(), made()
    with watch(model, None, ["gradient"]) as monitor:
        train(model, lambda parameters: None, steps=1)
        train(other, lambda parameters: imported_by_name(parameters, 0.5))
    assert not scalar(monitor, "clip_norm")
    assert (torch.nn.utils.clip_grad._clip_grads_with_norm_, torch.nn.utils.clip_grads_with_norm_) == before


def test_weights_are_those_of_an_unwatched_run():
    model, twin = made(), made()
    with watch(model, None, ["gradient"]):
        train(model, WAYS["by its name"])
    train(twin, WAYS["by its name"])
    for watched, unwatched in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(watched, unwatched)


def test_the_report_says_how_often_and_by_how_much(tmp_path, capsys):
    model = made()
    with vario.watch(model, None, directory=str(tmp_path)) as monitor:
        norms = train(model, WAYS["by its name"])
    found = read_clipping(vario.open_run(monitor.path))
    factors = norms[:, 0] / 0.5
    assert (found.num_steps, found.num_clipped) == (12, int((factors > 1).sum()))
    assert found.usual_factor == pytest.approx(np.median(factors[factors > 1]), rel=1e-5)
    assert (found.largest_factor, found.largest_step) == (pytest.approx(factors.max(), rel=1e-5), int(factors.argmax()))
    assert main(["report", str(monitor.path)]) == 0
    assert "% of 12 steps clipped to norm 0.5, usually by" in capsys.readouterr().out


def test_a_run_that_clips_nothing_says_so():
    found = clipping_of(np.arange(3), np.array([0.1, 0.2, 0.3]), np.ones(3))
    assert (found.num_clipped, found.usual_factor) == (0, None)
    assert found.text == "0 % of 3 steps clipped to norm 1"
