"""Healthy loops that rules once spoke on: what people do on purpose is not an alarm."""

import dataclasses
import sys
from functools import partial
from pathlib import Path

import pytest

# At the end: `zoo` is the only name this folder should add.
sys.path.append(str(Path(__file__).parents[2] / "bench"))

import vario
from zoo.healthy.loops import all_loops

LOOPS = {
    "soft_actor_critic": (60, "zero_grad"),  # a target network that no optimizer holds
    "wgan_clipped": (30, "zero_grad"),  # the critic's last bias, on which its loss does not depend
    "averaged_weights": (140, "frozen_param lr_change"),  # a bias before a normalisation, and SWA's own schedule
    "masked_autoencoder": (80, "settings_change loss_shift"),  # OneCycleLR moves momentum as well
    "decay_schedule": (120, "settings_change"),
    "rare_class": (80, "grad_underflow"),
    "adapters": (20, "update_high"),  # matrices that start at zero
    "hinge": (140, "unexplained_change"),  # one number whose updates vary
    "heavy_tails": (200, "loss_swings"),  # one batch far off
    "longer_sequences": (170, "stale_second_moment"),  # rows of an embedding that were never used
    "complex_weights": (40, ""),
    "tasks_in_turn": (110, "zero_grad"),  # heads without a gradient for as long as chance has it
    "point_sets": (60, "stale_second_moment"),  # a unit that fires for the first time
    "learned_to_the_end": (320, "update_low"),  # nothing is left to learn
    "fifth_deterministic_policy": (60, "lr_change"),  # two optimizers, one of which updates at every other step
    "batch_norm_of_two": (190, "loss_shift"),  # losses with a long tail
}
"""Steps, and the rules that spoke."""


def said(name, steps, folder, **options):
    found = dataclasses.replace(all_loops()[name], steps=steps)
    found.train(partial(vario.watch, directory=str(folder), name=name, strict=True, **options))
    return vario.open_run(folder / name)


@pytest.mark.parametrize("name", LOOPS)
def test_a_healthy_loop_is_not_called_broken(name, tmp_path):
    steps, rules = LOOPS[name]
    run = said(name, steps, tmp_path, every=1)
    assert not run.parts_off
    alerts = {alert.rule for alert in run.alerts}
    assert not alerts & set(rules.split()), [alert.text for alert in run.alerts]
    assert not [incident.lead.text for incident in run.incidents if incident.severity == "page"]


def test_an_optimizer_for_the_next_stage_is_noted_not_paged(tmp_path):
    run = said("two_stages", 200, tmp_path, every=1)
    assert [incident.severity for incident in run.incidents if incident.lead.rule == "state_lost"] == ["note"]


def test_complex_gradients_keep_the_tripwire_on(tmp_path):
    run = said("complex_weights", 40, tmp_path)
    assert not run.parts_off
