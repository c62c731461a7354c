"""Which engine drives a model: found by looking at it, or chosen by name."""

import pytest
import torch

import vario
from models import Perceptron, batch
from watching import rows, train, watch


def made():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def test_a_plain_model_is_found_to_be_one(tmp_path):
    model, optimizer = made()
    with vario.watch(model, optimizer, directory=tmp_path, name="one") as monitor:
        train(model, optimizer)
    assert vario.open_run(monitor.path).structure()["engine"] == "plain"


def test_a_choice_wins_over_what_is_found(tmp_path):
    # An engine that finds nothing of its own in a model follows it as torch does.
    for engine in ("plain", "fsdp", "fsdp2"):
        model, optimizer = made()
        with vario.watch(model, optimizer, directory=tmp_path, name=engine, engine=engine, every=1) as monitor:
            train(model, optimizer)
        run = vario.open_run(monitor.path)
        assert run.structure()["engine"] == engine
        assert run.steps("gradient").tolist() == [0, 1, 2]


def test_the_choice_changes_no_number():
    found = []
    for engine in (None, "fsdp2"):
        model, optimizer = made()
        with watch(model, optimizer, engine=engine) as monitor:
            train(model, optimizer)
        found.append({key: row.tolist() for key, row in rows(monitor).items()})
    assert found[0] == found[1]


def test_an_unknown_engine_is_refused_by_the_nearest_name():
    with pytest.raises(vario.ConfigError, match=r"engine: unknown 'fsdp3'\. Did you mean 'fsdp2?'"):
        watch(*made(), engine="fsdp3")
    with pytest.raises(vario.ConfigError, match="engine: expected a name, got 3"):
        watch(*made(), engine=3)


def test_a_runtime_that_does_not_drive_the_model_is_refused():
    model, optimizer = made()
    with pytest.raises(vario.ModelError, match=r"no DeepSpeedEngine has this model\. Call vario.watch after"):
        watch(model, optimizer, engine="deepspeed")
    model(batch(0)).sum().backward()
    optimizer.step()
