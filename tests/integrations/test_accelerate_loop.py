"""A loop with a real Accelerator, watched."""

import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

import vario
from models import Perceptron, batch
from vario.core.errors import ConfigError
from vario.integrations.accelerate import watch


@pytest.fixture(autouse=True)
def fresh_accelerators():
    """Accelerators share their state within a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def options(folder, **more):
    return {"directory": str(folder), "name": "one", "strict": True, "every": 1, **more}


def train(accelerator, model, optimizer, num_batches=8, scale_of=lambda index: 1.0):
    losses = []
    for index in range(num_batches):
        with accelerator.accumulate(model):
            loss = model(batch(index)).square().mean() * scale_of(index)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item(), "note": "no number"}, step=index)
    return losses


def made(accelerator):
    torch.manual_seed(0)
    model = Perceptron()
    return accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))


def series(run, name):
    found = run.series(name, "scalar")
    return dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def test_accumulated_batches_are_one_step_and_what_is_logged_lands_in_it(tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.init_trackers("anything")
    model, optimizer = made(accelerator)
    watch(accelerator, model, optimizer, **options(tmp_path))
    losses = train(accelerator, model, optimizer)
    accelerator.end_training()
    run = vario.open_run(tmp_path / "one")
    assert run.state == "finished"
    assert run.steps("gradient").tolist() == [0, 1, 2, 3]
    assert run.series("up", "activation", "norm", micro_steps=True).micro_steps.tolist() == [0, 1] * 4
    assert series(run, "loss") == dict(enumerate(losses[1::2]))
    assert "note" not in run.targets("scalar")


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_training_is_the_same_bit_by_bit(tmp_path, precision):
    def losses(watched):
        AcceleratorState._reset_state()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
        model, optimizer = made(accelerator)
        if watched:
            watch(accelerator, model, optimizer, check_gradients=True, gradient_check_steps=1, **options(tmp_path))
        torch.manual_seed(1)
        found = train(accelerator, model, optimizer)
        accelerator.end_training()
        return found

    assert losses(watched=True) == losses(watched=False)
    assert vario.first_bad(vario.open_run(tmp_path / "one")) is None


def test_half_precision_is_seen_without_the_loss_scale_and_a_bad_batch_is_named(tmp_path, capsys):
    accelerator = Accelerator(cpu=True)
    # A CPU has no fp16 training; the scaler of one does all its work here.
    accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    model, optimizer = made(accelerator)
    with watch(
        accelerator, model, optimizer, check_gradients=True, gradient_check_steps=1, **options(tmp_path)
    ) as monitor:
        train(accelerator, model, optimizer, 4, lambda index: math.inf if index == 1 else 1.0)
    assert scaler.get_scale() == 512.0
    run = vario.open_run(monitor.path)
    assert series(run, "skipped_step") == {0: 0, 1: 1, 2: 0, 3: 0}
    norms = series(run, "gradient_check_norm")
    assert all(norms[step] < 2 for step in (0, 2, 3)), "1024 times more with the scale"
    onset = vario.first_bad(run)
    assert (onset.step, onset.quantity, onset.target) == (1, "activation_gradient", "root:output")
    assert "The loss is scaled" in capsys.readouterr().out


def test_the_main_process_prints(tmp_path, capsys):
    accelerator = Accelerator(cpu=True)
    model, optimizer = made(accelerator)
    watch(accelerator, model, optimizer, print_model_summary=True, **options(tmp_path)).close()
    assert "MODEL INFO: Perceptron" in capsys.readouterr().out


def test_the_monitor_is_where_accelerate_keeps_such_things(tmp_path):
    accelerator = Accelerator(cpu=True)
    model, optimizer = made(accelerator)
    monitor = watch(accelerator, model, optimizer, **options(tmp_path))
    accelerator.init_trackers("afterwards")
    assert accelerator.get_tracker("vario", unwrap=True) is monitor
    train(accelerator, model, optimizer, 2)
    accelerator.end_training()
    assert sorted(series(vario.open_run(monitor.path), "loss")) == [0, 1]


def test_a_loop_goes_on_with_its_run_as_it_says(tmp_path):
    accelerator = Accelerator(cpu=True)
    model, optimizer = made(accelerator)
    with watch(accelerator, model, optimizer, **options(tmp_path)):
        train(accelerator, model, optimizer, 3)
    with watch(accelerator, model, optimizer, resume=True, first_step=2, **options(tmp_path)):
        train(accelerator, model, optimizer, 2)
    assert vario.open_run(tmp_path / "one").steps("gradient").tolist() == [0, 1, 2, 3]


def test_wrong_options_are_refused(tmp_path):
    accelerator = Accelerator(cpu=True)
    model, optimizer = made(accelerator)
    with pytest.raises(ConfigError, match=r"unknown 'evry'. Did you mean 'every'\?"):
        watch(accelerator, model, optimizer, evry=2)
    with pytest.raises(ConfigError, match="gradient_check_steps: expected a whole number"):
        watch(accelerator, model, optimizer, gradient_check_steps=0)
