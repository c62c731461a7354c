"""Cosines of gradients from their random projections, against the exact cosine by numpy in float64."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vario
from models import batch
from releases import needs_fsdp2
from starting import run_ranks
from vario.backends.torch.reduce.sketches import TorchSketch
from vario.probes.tensors.gradient_sketches import SIZE
from vario.runs.views.tensors.gradient_cosines import read_gradient_cosines
from watching import rows, scalar, watch

BOUND = 4.0
"""Standard errors; that of a cosine c is (1 - c^2) / sqrt(512)."""


def cosine(first, second):
    first, second = (np.concatenate([np.asarray(part, np.float64).ravel() for part in one]) for one in (first, second))
    return first @ second / np.linalg.norm(first) / np.linalg.norm(second)


def standard_error(exact):
    return (1 - exact**2) / np.sqrt(SIZE)


def projection(tensors, seed):
    sketch = TorchSketch(SIZE, seed)
    for name, tensor in tensors.items():
        assert sketch.add(name, tensor)
    return sketch.later()().astype(np.float64)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "few rows", "one row of a matrix"])
@pytest.mark.parametrize("shared", [0.0, 0.5, 0.95])
def test_over_seeds_the_error_is_no_larger_than_stated(kind, shared):
    generator = torch.Generator().manual_seed(1)

    def tensors(kind):
        found = torch.randn(300, 40, generator=generator), torch.randn(77, generator=generator)
        if kind == "heavy tails":
            found = tuple(part**3 for part in found)
        elif kind == "few rows":
            found[0][10:] = 0
        elif kind == "one row of a matrix":
            found[0][:150] *= 1e-3
        return {"weight": found[0], "bias": found[1]}

    first, other = tensors(kind), tensors(kind)
    second = {name: shared * first[name] + (1 - shared**2) ** 0.5 * other[name] for name in first}
    exact = cosine(first.values(), second.values())
    errors = []
    for seed in range(200):
        one, two = projection(first, seed), projection(second, seed)
        errors.append(one @ two / np.linalg.norm(one) / np.linalg.norm(two) - exact)
    usual = np.sqrt(np.mean(np.square(errors)))
    # Few large elements leave a tail of collisions, so a quarter more than of evenly spread ones.
    assert usual < 1.25 * standard_error(exact)
    assert abs(np.mean(errors)) < BOUND * usual / np.sqrt(len(errors))


def test_a_projection_of_a_sum_is_the_sum_of_projections_across_chunks():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(3, 500_009, generator=generator) for _ in range(2))
    one, two, both = (projection({"w": part}, 5) for part in (first, second, first + second))
    np.testing.assert_allclose(one + two, both, atol=0.05)
    # Every number takes about as many elements; neither they nor their signs repeat from chunk to chunk.
    assert projection({"w": torch.ones(3, 500_009)}, 5).std() == pytest.approx(np.sqrt(3 * 500_009 / SIZE), rel=0.15)
    exact = cosine([first], [second])
    assert abs(one @ two / np.linalg.norm(one) / np.linalg.norm(two) - exact) < BOUND * standard_error(exact)


def test_names_and_seeds_decide():
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    same = projection({"a": tensor}, 1)
    np.testing.assert_array_equal(same, projection({"a": tensor}, 1))
    for other in (projection({"b": tensor}, 1), projection({"a": tensor}, 2)):
        assert abs(same @ other) < 0.3 * np.linalg.norm(same) * np.linalg.norm(other)
    assert projection({"a": tensor.to(torch.bfloat16)}, 1) == pytest.approx(same, abs=0.2)


def test_what_has_no_numbers_is_not_added():
    sketch = TorchSketch(SIZE, 0)
    assert not sketch.add("meta", torch.zeros(3, device="meta"))
    assert not sketch.add("whole", torch.zeros(3, dtype=torch.int64))
    assert sketch.later() is None


def train(steps, monitor_of=None, nan_step=None):
    """The losses, and the gradients of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = None if monitor_of is None else monitor_of(model, optimizer)
    losses, gradients = [], []
    for step in range(steps):
        optimizer.zero_grad()
        for micro_step in range(2):
            loss = model(batch(2 * step + micro_step, (16, 8))).square().mean()
            (loss * (float("nan") if step == nan_step else 1.0)).backward()
        losses.append(loss.item())
        gradients.append([parameter.grad.clone().numpy() for parameter in model.parameters()])
        if step == nan_step:
            optimizer.zero_grad()
        optimizer.step()
    if monitor is not None:
        monitor.close()
    return monitor, losses, gradients


def watched(**options):
    return lambda model, optimizer: watch(model, optimizer, ["gradient_sketch"], **options)


def test_every_recorded_step_is_compared_with_the_next():
    monitor, losses, gradients = train(30, watched(every=10))
    found = scalar(monitor, "gradient_cosine")
    assert sorted(found) == [1, 11, 21]
    for step, value in found.items():
        exact = cosine(gradients[step - 1], gradients[step])
        assert abs(value - exact) < BOUND * standard_error(exact)
    assert not rows(monitor)  # one rank has nothing to compare with
    assert losses == train(30)[1]


def test_at_every_step_each_is_compared_with_the_one_before():
    monitor, _, gradients = train(12, watched())
    found = scalar(monitor, "gradient_cosine")
    assert sorted(found) == [*range(1, 12)]
    errors = [found[step] - cosine(gradients[step - 1], gradients[step]) for step in found]
    assert np.max(np.abs(errors)) < BOUND / np.sqrt(SIZE)


def test_a_gradient_that_is_not_finite_has_no_cosine():
    monitor, _, _ = train(8, watched(), nan_step=4)
    assert sorted(scalar(monitor, "gradient_cosine")) == [1, 2, 3, 6, 7]


SCRIPT = """
import os
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vario

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(rank)
alone = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
kept, losses = {}, []
options = {"quantities": ["gradient_sketch"], "every": 3, "overhead": None}
monitor = vario.watch(model, optimizer, name="ranks", **options) if os.environ["WATCHED"] == "1" else None
for step in range(12):
    x = torch.randn(16, 8, generator=generator) + 1.0 - 0.4 * rank
    alone.load_state_dict(model.module.state_dict())
    alone.zero_grad()
    alone(x).square().mean().backward()
    kept[f"local{step}"] = np.concatenate([p.grad.numpy().ravel() for p in alone.parameters()])
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    losses.append(loss.item())
    kept[f"reduced{step}"] = np.concatenate([p.grad.numpy().ravel() for p in model.parameters()])
    optimizer.step()
if monitor is not None:
    monitor.close()
np.savez(f"kept{rank}{os.environ['WATCHED']}.npz", losses=losses, **kept)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    place = tmp_path_factory.mktemp("ranks")
    (place / "train.py").write_text(SCRIPT)
    for is_watched in "10":
        done = run_ranks(["train.py"], cwd=place, env={**os.environ, "WATCHED": is_watched})
        assert done.returncode == 0, done.stderr[-4000:]
    kept = {key: dict(np.load(place / f"kept{key}.npz")) for key in ("01", "11", "00", "10")}
    return vario.open_run(Path(place) / "vario_runs" / "ranks"), kept


@pytest.mark.slow
def test_two_real_ranks_are_compared_without_talking(ranks):
    run, kept = ranks
    found = read_gradient_cosines(run)
    between = found.between_ranks
    assert between.steps == [0, 1, 3, 4, 6, 7, 9, 10]
    for step, value in zip(between.steps, between.by_step, strict=True):
        exact = cosine([kept["01"][f"local{step}"]], [kept["11"][f"local{step}"]])
        assert abs(value - exact) < BOUND * standard_error(exact)
    assert between.by_rank[0] == pytest.approx(between.by_rank[1])
    assert between.mean == pytest.approx(np.mean(between.by_step))
    assert found.steps == [1, 4, 7, 10]
    for step, value in zip(found.steps, found.consecutive, strict=True):
        exact = cosine([kept["01"][f"reduced{step - 1}"]], [kept["01"][f"reduced{step}"]])
        assert abs(value - exact) < BOUND * standard_error(exact)
    assert "local gradients of 2 ranks" in found.text
    assert "consecutive gradients" in found.text


@pytest.mark.slow
def test_losses_of_ranks_are_bit_identical(ranks):
    _, kept = ranks
    for rank in "01":
        assert kept[f"{rank}1"]["losses"].tolist() == kept[f"{rank}0"]["losses"].tolist()


SHARDED = """
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import vario

dist.init_process_group("gloo")
rank = dist.get_rank()


def model_of():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


model, alone = model_of(), model_of()
mesh = init_device_mesh("cpu", (2,))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
generator = torch.Generator().manual_seed(rank)
kept = {}
with vario.watch(model, optimizer, name="sharded", quantities=["gradient_sketch"], every=1, strict=True):
    for step in range(4):
        x = torch.randn(16, 8, generator=generator) + 1.0 - 0.4 * rank
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        alone.zero_grad()
        alone(x).square().mean().backward()
        kept[f"local{step}"] = np.concatenate([p.grad.numpy().ravel() for p in alone.parameters()])
np.savez(f"kept{rank}.npz", **kept)
dist.destroy_process_group()
"""


@pytest.mark.slow
@needs_fsdp2
def test_ranks_that_shard_their_weights_are_compared_too(tmp_path):
    (tmp_path / "train.py").write_text(SHARDED)
    done = run_ranks(["train.py"], cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-4000:]
    kept = [dict(np.load(tmp_path / f"kept{rank}.npz")) for rank in range(2)]
    between = read_gradient_cosines(vario.open_run(tmp_path / "vario_runs" / "sharded")).between_ranks
    assert between.steps == [0, 1, 2, 3]
    for step, value in zip(between.steps, between.by_step, strict=True):
        exact = cosine(*([found[f"local{step}"]] for found in kept))
        assert abs(value - exact) < BOUND * standard_error(exact)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_projects_as_the_host_does():
    tensors = {"a": torch.randn(3, 700_001), "b": torch.randn(17)}
    on_device = {name: tensor.cuda() for name, tensor in tensors.items()}
    assert projection(on_device, 3) == pytest.approx(projection(tensors, 3), abs=1e-2)
