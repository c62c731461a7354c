"""Two real trainings that differ in one thing part where that thing happened, and nowhere else."""

import pytest
import torch

import vario
from little_trainings import Net, break_a_weight, scale_a_weight, train
from vario import ConfigError
from vario.runs.compare.name_alignment import find_translation, translation

FAULT = 40
STEPS = 60


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("two_runs")
    made = {}

    def run(name, **options):
        if name not in made:
            made[name] = train(place / name, steps=STEPS, fault_step=FAULT, **options)
        return vario.open_run(made[name])

    return run


def test_the_same_training_twice_is_equal_to_the_bit(runs):
    found = vario.diff(runs("base"), runs("same"))
    assert found.first_unequal is None
    assert found.divergence is None
    assert (found.num_steps, found.first_step, found.last_step) == (STEPS, 0, STEPS - 1)
    assert not found.most
    assert "Bit-identical" in str(found)


@pytest.mark.parametrize("every", [1, 3])
def test_the_same_training_at_other_intervals_is_equal(every, tmp_path):
    """The overhead budget chooses intervals by the clock: two runs of one training record different steps."""
    runs = []
    for name, interval in (("first", every), ("second", 7)):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        with vario.watch(model, optimizer, directory=str(tmp_path), name=name, overhead=0.9) as monitor:
            # What the budget does; with this budget it changes nothing by itself.
            monitor.observer("gradient").every = interval
            for step in range(40):
                optimizer.zero_grad()
                model(torch.randn(16, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
                optimizer.step()
        runs.append(vario.open_run(tmp_path / name))
    assert all(len(run.series("gradient_norm", "scalar").steps) == 40 for run in runs)
    found = vario.diff(*runs)
    assert found.first_unequal is None
    assert found.divergence is None


def test_what_watching_costs_is_no_difference(runs):
    measured = [runs(name, overhead=0.02) for name in ("measured", "measured again")]
    assert all("overhead" in run.targets("scalar") for run in measured)
    assert vario.diff(*measured).first_unequal is None


def test_a_number_logged_at_other_steps_is_no_difference_and_a_nan_is(tmp_path):
    runs = {}
    for name, every, last in (("often", 1, 1.0), ("rare", 5, 1.0), ("broken", 5, float("nan"))):
        model = torch.nn.Linear(2, 1, bias=False)
        with vario.watch(model, directory=str(tmp_path), name=name, quantities=[], overhead="off") as monitor:
            for step in range(21):
                monitor.log(always=0.5)
                if step % every == 0:
                    monitor.log(score=last if step == 20 else 1.0)
                monitor.step()
        runs[name] = vario.open_run(tmp_path / name)
    assert vario.diff(runs["often"], runs["rare"]).first_unequal is None
    found = vario.diff(runs["often"], runs["broken"]).first_unequal
    assert (found.step, found.target) == (20, "score")


def test_runs_without_noise_part_at_the_first_difference(runs):
    found = vario.diff(runs("base"), runs("fault", fault=scale_a_weight))
    assert (found.divergence.step, found.divergence.target) == (FAULT, "blocks.1.0:output")
    assert found.divergence.quantity == "activation"
    assert found.noise == "none"
    assert found.most[0].target == "blocks.1.0.weight"


def test_rounding_alone_does_not_part_them(runs):
    found = vario.diff(runs("base"), runs("order", order=5))
    assert found.first_unequal.step == 0
    assert found.noise == "rounding"
    assert found.divergence is None


def test_a_fault_a_thousandth_large_stands_out_from_rounding(runs):
    def slightly(model):
        model.blocks[1][0].weight.mul_(1.001)

    found = vario.diff(runs("base"), runs("slight", order=5, fault=slightly))
    assert (found.divergence.step, found.divergence.target) == (FAULT, "blocks.1.0:output")
    assert found.divergence.noise < 1e-5


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_do_not_part_beyond_their_own_noise(runs, seed):
    found = vario.diff(runs("base"), runs(f"seed{seed}", seed=seed, batches=seed))
    assert found.noise == "own"
    assert found.divergence is None
    assert "different weights, data or seeds" in str(found)


def test_a_fault_stands_out_from_the_noise_of_another_seed(runs):
    found = vario.diff(runs("base"), runs("seed_fault", seed=7, batches=7, fault=break_a_weight))
    assert (found.divergence.step, found.divergence.target) == (FAULT, "blocks.1.0:output")


def test_another_learning_rate_parts_them_at_the_first_update_and_is_named(runs):
    found = vario.diff(runs("base"), runs("rate", lr=0.012))
    assert (found.divergence.step, found.divergence.quantity, found.divergence.target) == (0, "scalar", "lr")
    assert "They diverge at step 0: lr, 0.01 against 0.012" in str(found)


def test_what_is_watched_rarely_comes_as_early_in_its_step_as_ever(runs):
    rarely = {"every": {"activation": 10, "gradient": 1, "weight": 1}}
    found = vario.diff(runs("rare", **rarely), runs("rare_nan", nan_step=FAULT, **rarely))
    assert (found.divergence.step, found.divergence.quantity, found.divergence.target) == (
        FAULT,
        "activation",
        "root:input",
    )


def test_a_nan_on_one_side_is_a_difference(runs):
    found = vario.diff(runs("base"), runs("nan", nan_step=FAULT))
    assert (found.divergence.step, found.divergence.target) == (FAULT, "root:input")


def test_targets_and_options_that_only_one_run_has_are_listed(runs):
    found = vario.diff(runs("base"), runs("fewer", targets=["blocks.*"], eps=1e-6))
    assert "weight of head.weight" in found.only_a
    assert not found.only_b
    assert found.settings["eps"] == (1e-8, 1e-6)
    assert "targets" in found.settings
    assert found.divergence is None


def test_only_quantities_that_were_asked_for_are_compared(runs):
    found = vario.diff(runs("base"), runs("fault", fault=scale_a_weight), quantities=["weight"])
    assert (found.divergence.step, found.divergence.quantity) == (FAULT, "weight")
    assert found.most[0].target == "blocks.1.0.weight"
    with pytest.raises(ConfigError, match="Did you mean 'weight'"):
        vario.diff(runs("base"), runs("same"), quantities=["wieght"])


@pytest.mark.parametrize(
    ("rules", "name", "new"),
    [
        (["encoder.=>backbone."], "encoder.0.weight", "backbone.0.weight"),
        (["encoder=>backbone"], "encoder:output", "backbone:output"),
        (["encoder=>backbone"], "encoders.weight", "encoders.weight"),
        (["layers.*.weight=>blocks.*.w"], "layers.3.weight", "blocks.3.w"),
        (["*=>_orig_mod.*"], "head.bias", "_orig_mod.head.bias"),
        ([r"re:layers\.(\d+)\.(.*)=>h.\1.\2"], "layers.3.mlp.weight", "h.3.mlp.weight"),
    ],
)
def test_renames_are_names_beginnings_globs_or_expressions(rules, name, new):
    assert translation(rules)(name) == new


@pytest.mark.parametrize("text", ["a", "=>b", "re:(=>x", r"re:a=>\2", "a.*=>*.*"])
def test_a_rename_that_means_nothing_is_refused(text):
    with pytest.raises(ConfigError, match="rename"):
        translation([text])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["layers.0.weight", "head.weight"], ["module.layers.0.weight", "module.head.weight"]),
        (["_orig_mod.layers.0.weight", "_orig_mod.head.weight"], ["layers.0.weight", "head.weight"]),
        (["module.layers._orig_mod.0.weight"], ["model.layers.0.weight"]),
    ],
)
def test_wrappers_around_a_model_are_seen_through(ours, theirs):
    translate, called = find_translation(ours, theirs)
    assert [translate(name) for name in ours] == theirs
    assert called


def test_wrapped_runs_are_aligned_by_themselves(runs):
    from torch import nn

    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.module = inner

        def forward(self, x):
            return self.module(x)

    found = vario.diff(runs("base"), runs("wrapped", wrap=Wrapper))
    assert found.divergence is None
    assert found.renamed
    assert "gradient of head.weight" not in found.only_a
