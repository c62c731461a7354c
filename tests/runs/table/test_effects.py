"""Which settings mattered, against numpy and what the sweep was made of."""

import itertools

import numpy as np
import pytest

from vario.core.errors import ConfigError
from vario.runs.run import list_runs
from vario.runs.table.columns import Columns
from vario.runs.table.effects import correlation, find_effects
from vario.runs.table.summary import read_summary


@pytest.fixture(scope="module")
def runs(sweep):
    return [read_summary(run, run.name) for run in list_runs(sweep)]


def ranks(values):
    """Average ranks, from the definition."""
    return np.array([np.mean([other < value for other in values]) + np.mean(values == value) / 2 for value in values])


def test_the_learning_rate_mattered_most_and_its_correlation_is_numpys(runs):
    found = find_effects(runs, Columns(runs), "val_loss:best")
    assert found.effects[0].setting.key == "lr"
    lr = np.array([run.brief.params["lr"] for run in runs])
    loss = np.array([run.brief.numbers["val_loss"].lowest for run in runs])
    effect = found.effects[0]
    np.testing.assert_allclose(effect.correlation, np.corrcoef(ranks(lr), ranks(loss))[0, 1])
    np.testing.assert_allclose(effect.linear, np.corrcoef(np.log(lr), loss)[0, 1])
    assert effect.is_log
    assert effect.same_as == ("optimizer.lr",)
    for value, mean, num_runs in effect.means:
        inside = loss[lr == float(value)]
        np.testing.assert_allclose(mean, inside.mean())
        assert num_runs == len(inside)
    assert f"Rank correlation {effect.correlation:+.2f} over 30 runs" in effect.text


def test_a_setting_that_is_a_text_explains_a_share_of_the_variance(runs):
    found = find_effects(runs, Columns(runs), "val_loss:best")
    act = next(effect for effect in found.effects if effect.setting.key == "act")
    loss = np.array([run.brief.numbers["val_loss"].lowest for run in runs])
    names = np.array([run.brief.params["act"] for run in runs])
    within = sum(((loss[names == name] - loss[names == name].mean()) ** 2).sum() for name in set(names))
    np.testing.assert_allclose(act.share, 1 - within / ((loss - loss.mean()) ** 2).sum())
    assert act.correlation is None


def test_few_or_equal_runs_say_nothing(runs):
    two = find_effects(runs[:2], Columns(runs), "val_loss:best")
    assert all(effect.importance == 0 for effect in two.effects)
    assert find_effects(runs[:1], Columns(runs), "val_loss:best").effects == ()
    assert correlation(np.ones(5), np.arange(5.0)) is None


def test_a_result_that_is_no_number_has_no_runs(runs):
    assert find_effects(runs, Columns(runs), "state").runs == ()
    with pytest.raises(ConfigError, match="result: no run has 'val_los'"):
        find_effects(runs, Columns(runs), "val_los")


def test_effects_are_sorted(runs):
    found = [effect.importance for effect in find_effects(runs, Columns(runs), "accuracy:best").effects]
    assert all(a >= b for a, b in itertools.pairwise(found))
