"""Largest singular values and stable ranks against numpy in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from models import Partial, Perceptron, batch
from vario.backends.torch.modules.spectra import SpectralNorms, stable_rank

NAN, INF = float("nan"), float("inf")


def true_norm(weight):
    return np.linalg.norm(weight.detach().double().numpy(), 2)


def with_singular_values(values, seed=0):
    sides = [torch.linalg.qr(batch(seed + side, (len(values), len(values))))[0] for side in (0, 1)]
    return sides[0] * values @ sides[1].T


def nearly_rank_one():
    line, column = batch(0, (1, 600)), batch(1, (400, 1))
    return column / column.norm() @ line / line.norm() + 1e-3 * batch(2, (400, 600))


MATRICES = {
    "square": batch(0, (512, 512)),
    "wide": batch(1, (300, 1000)),
    "tall": batch(2, (4096, 64)),
    "nearly rank one": nearly_rank_one(),
    "two equal": with_singular_values(torch.cat([torch.ones(2), torch.linspace(0.98, 0.0, 298)])),
    "ill conditioned": with_singular_values(1 / torch.arange(1, 301)),
    "flat at the top": with_singular_values(1 - torch.linspace(0, 1, 300) ** 2),
    "orthogonal": with_singular_values(torch.ones(128)),
    "one row": batch(3, (1, 50)),
    "one column": batch(4, (50, 1)),
    "one element": torch.tensor([[-3.0]]),
    "transposed": batch(5, (40, 90)).T,
    "huge": 1e30 * batch(6, (60, 50)),
    "tiny": 1e-30 * batch(7, (60, 50)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_the_norm_is_numpys_at_first_sight_and_later(name, dtype):
    weight = MATRICES[name].to(dtype)
    norms, expected = SpectralNorms(), true_norm(weight)
    for _ in range(3):
        found = norms.measure("w", weight)
        assert found.dtype is torch.float32
        assert found.ndim == 0
        assert found.item() == pytest.approx(expected, rel=1e-3)
    frobenius = np.linalg.norm(weight.double().numpy())
    assert stable_rank(weight, found).item() == pytest.approx((frobenius / expected) ** 2, rel=1e-3)


def test_half_precision_overflows_nowhere():
    weight = (3e4 * batch(0, (64, 64)).clamp(-2, 2)).half()
    norm = SpectralNorms().measure("w", weight)
    assert norm.item() == pytest.approx(true_norm(weight), rel=1e-4)
    assert norm > torch.finfo(torch.float16).max


def test_a_matrix_made_float32_block_by_block_gives_the_same(monkeypatch):
    from vario.backends.torch.modules import spectra

    weight = batch(0, (200, 300)).bfloat16()
    whole = SpectralNorms().measure("w", weight)
    monkeypatch.setattr(spectra, "_ELEMENTS_AT_ONCE", 7000)
    in_blocks = SpectralNorms().measure("w", weight)
    assert in_blocks.item() == pytest.approx(whole.item(), rel=1e-5)
    frobenius = np.linalg.norm(weight.double().numpy())
    assert stable_rank(weight, in_blocks).item() == pytest.approx((frobenius / true_norm(weight)) ** 2, rel=1e-4)


DRIFTS = {
    "small random": lambda w, step: w + 0.01 * batch(step, w.shape),
    "large random": lambda w, step: w + 0.1 * batch(step, w.shape),
    "gradients of few samples": lambda w, step: (
        w - 0.1 * batch(step, (len(w), 8)) @ batch(step + 99, (8, w.shape[1])) / len(w) ** 0.5
    ),
    "decay": lambda w, step: 0.9 * w,
    "sign flips": lambda w, step: -w,
    "scale jumps": lambda w, step: w * (1000.0 if step % 2 else 1e-3),
    "columns shuffled in": lambda w, step: torch.cat([w[:, 5:], w[:, :5]], dim=1),
}


@pytest.mark.parametrize("drift", DRIFTS.values(), ids=DRIFTS.keys())
def test_the_norm_is_followed_while_the_weight_drifts(drift):
    weight = batch(1000, (256, 200))
    norms = SpectralNorms()
    for step in range(20):
        norm = norms.measure("w", weight)
        if step < 2 or step % 5 == 4:  # numpy's answer takes longest
            assert norm.item() == pytest.approx(true_norm(weight), rel=1e-3), step
        weight = drift(weight, step)


def test_a_direction_that_overtakes_the_known_one_is_found():
    values = torch.linspace(0.5, 0.0, 200)
    norms = SpectralNorms()
    for step in range(12):
        values[0], values[1] = 1.0, 0.5 + 0.1 * step
        assert norms.measure("w", torch.diag(values)).item() == pytest.approx(max(1.0, 0.5 + 0.1 * step), rel=1e-3)


def test_a_matrix_that_was_exchanged_is_close_at_once_and_right_soon():
    norms = SpectralNorms()
    norms.measure("w", batch(0, (512, 512)))
    weight = batch(1, (512, 512))
    expected = true_norm(weight)
    errors = [abs(1 - norms.measure("w", weight).item() / expected) for _ in range(20)]
    assert errors[0] < 0.03
    assert max(errors[2:]) < 1e-3


def test_a_matrix_of_zeros_has_norm_and_rank_zero():
    norms = SpectralNorms()
    for shape in ((4, 7), (7, 4), (0, 5)):
        norm = norms.measure("w", torch.zeros(shape))
        assert norm.item() == 0.0
        assert stable_rank(torch.zeros(shape), norm).item() == 0.0
    weight = batch(0, (30, 20))
    norms.measure("z", torch.zeros(30, 20))
    assert norms.measure("z", weight).item() == pytest.approx(true_norm(weight), rel=1e-3)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("healthy_before", [True, False])
def test_a_bad_element_makes_the_norm_bad_and_only_while_it_is_there(bad, healthy_before):
    weight = batch(0, (128, 100))
    broken = weight.clone()
    broken[3, 5] = bad
    norms = SpectralNorms()
    if healthy_before:
        norms.measure("w", weight)
    norm = norms.measure("w", broken)
    assert not norm.isfinite()
    assert not stable_rank(broken, norm).isfinite()
    # Without a vector from better times the next start is no better than a first one, with fewer steps.
    found = [norms.measure("w", weight).item() for _ in range(3)]
    assert found[0] == pytest.approx(true_norm(weight), rel=1e-3 if healthy_before else 2e-2)
    assert found[-1] == pytest.approx(true_norm(weight), rel=1e-3)


def test_another_shape_under_the_same_name_starts_afresh():
    norms = SpectralNorms()
    for shape in ((300, 200), (200, 300), (300, 200), (300, 300)):
        weight = batch(sum(shape), shape)
        assert norms.measure("w", weight).item() == pytest.approx(true_norm(weight), rel=1e-3)


def test_forgetting_makes_the_next_measurement_the_first():
    weight, other = batch(0, (300, 200)), batch(1, (300, 200))
    norms = SpectralNorms()
    first = norms.measure("w", weight)
    norms.measure("w", other)
    assert not torch.equal(norms.measure("w", weight), first)  # the other's vector is a poor start
    norms.forget()
    assert torch.equal(norms.measure("w", weight), first)


def test_two_runs_measure_the_same_and_leave_the_random_numbers_of_the_training_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    found = []
    for _ in range(2):
        norms = SpectralNorms()
        found.append(torch.stack([norms.measure("w", batch(step, (64, 48))) for step in range(4)]))
    assert torch.equal(*found)
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_and_gradients_around_it_change_nothing():
    weight = nn.Parameter(batch(0, (64, 48)))
    expected = SpectralNorms().measure("w", weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = SpectralNorms().measure("w", weight)
    assert torch.equal(found, expected)
    assert not found.requires_grad


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.wg = nn.Parameter(batch(0, (4, 6)))


class VocabularySlice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(batch(0, (4, 6)))
        self.vocab_start_index = 0


def test_matrices_are_the_two_dimensional_weights_that_are_no_embeddings():
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(3, 4),
            "router": Router(),
            "embedding": nn.Embedding(5, 6),
            "slice": VocabularySlice(),
            "conv": nn.Conv2d(1, 2, 3),
            "norm": nn.LayerNorm(3),
            "whole": Partial(),
        }
    )
    found = SpectralNorms().matrices(dict(model.named_modules()))
    assert list(found) == ["linear", "router", "whole.frozen", "whole.used", "whole.spare"]
    assert torch.equal(found["router"], model["router"].wg)
    assert found["linear"].data_ptr() == model["linear"].weight.data_ptr()


def test_a_parametrized_weight_is_left_alone_and_that_is_said_once(caplog):
    model = Perceptron()
    for layer in (model.up, model.down):
        torch.nn.utils.parametrizations.spectral_norm(layer)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    norms = SpectralNorms()
    assert norms.matrices(dict(model.named_modules())) == {}
    assert norms.matrices(dict(model.named_modules())) == {}
    assert [record.message.split(":")[0] for record in caplog.records] == ["spectrum of 'up' is not recorded"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # torch 2.6, of any mesh of CPUs
def test_a_shard_has_no_spectrum_and_a_replica_has(mesh, caplog):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    model = nn.ModuleDict({"replica": nn.Linear(3, 4), "shard": nn.Linear(3, 4)})
    for name, placement in (("replica", Replicate()), ("shard", Shard(0))):
        weight = distribute_tensor(model[name].weight.detach(), mesh, [placement])
        model[name].weight = nn.Parameter(weight)
    found = SpectralNorms().matrices(dict(model.named_modules()))
    assert list(found) == ["replica"]
    assert type(found["replica"]) is torch.Tensor
    assert "spectrum of 'shard' is not recorded" in caplog.text
