"""MonitorCallback in a real Trainer: what lands in the run, and that training does not notice."""

import math

import pytest
import torch
from tiny_trainer import history, made, tiny_gpt

import vario
from vario import MonitorCallback
from vario.core.errors import ConfigError


def callback(folder, **options):
    defaults = {"print_model_summary": False, "directory": str(folder / "runs"), "strict": True, "every": 1}
    return MonitorCallback(**{**defaults, **options})


def series(run, name):
    found = run.series(name, "scalar")
    return dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def norms(run, quantity="gradient"):
    """{step: norm of all gradients together}."""
    totals = {}
    for target in run.targets(quantity):
        found = run.series(target, quantity, "norm")
        for step, value in zip(found.steps.tolist(), found.values.tolist(), strict=True):
            totals[step] = totals.get(step, 0.0) + value**2
    return {step: math.sqrt(total) for step, total in totals.items()}


def test_a_run_has_the_trainers_steps_and_everything_it_logs(tmp_path):
    watching = callback(tmp_path)
    trainer = made(tmp_path, [watching], eval_strategy="steps", eval_steps=3)
    trainer.train()
    run = vario.open_run(watching.path)
    assert run.state == "finished"
    assert watching.monitor is None
    assert run.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]
    for name in ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "train_loss"):
        assert series(run, name) == pytest.approx(history(trainer, name)), name
    assert sorted(series(run, "eval_loss")) == [3, 6]
    assert list(series(run, "total_steps").values()) == [6]
    assert {"gradient", "weight", "moment", "activation", "activation_gradient"} <= set(run.quantities())
    # The Trainer's norm is that before clipping to 0.1; so are vario's gradients.
    assert norms(run) == pytest.approx(history(trainer, "grad_norm"), rel=1e-4)
    assert min(norms(run).values()) > 0.1


def test_what_is_not_watched_at_every_step_is_watched_at_the_first(tmp_path):
    watching = callback(tmp_path, every={"activation": 4}, quantities=["gradient", "weight", "activation"])
    made(tmp_path, [watching], max_steps=12).train()
    run = vario.open_run(watching.path)
    assert run.steps("weight").tolist() == [1, 11]
    assert run.steps("activation").tolist() == [1, 5, 9]


@pytest.mark.parametrize("arguments", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}], ids=str)
def test_training_is_the_same_bit_by_bit(tmp_path, arguments):
    def train(callbacks):
        trainer = made(tmp_path, callbacks, eval_strategy="steps", eval_steps=2, **arguments)
        trainer.train()
        return history(trainer, "loss"), history(trainer, "eval_loss"), trainer.model.state_dict()

    watched = train([callback(tmp_path, check_gradients=True, gradient_check_steps=2)])
    plain = train([])
    assert watched[:2] == plain[:2]
    assert all(torch.equal(watched[2][name], value) for name, value in plain[2].items())


def test_accumulated_micro_batches_are_one_step(tmp_path):
    watching = callback(tmp_path, quantities=["gradient", "gradient_local", "activation"])
    trainer = made(tmp_path, [watching], gradient_accumulation_steps=4, max_steps=4)
    trainer.train()
    run = vario.open_run(watching.path)
    assert run.steps("gradient").tolist() == [1, 2, 3, 4]
    assert norms(run) == pytest.approx(history(trainer, "grad_norm"), rel=1e-4)
    local = run.series("transformer.wte.weight", "gradient_local", "norm", micro_steps=True)
    assert local.micro_steps.tolist() == [0, 1, 2, 3] * 4


def test_half_precision_is_seen_without_the_loss_scale_and_skipped_steps_are_marked(tmp_path, capsys):
    class Overflowing(torch.nn.Module):
        """Its loss overflows in the third step, as fp16 does now and then."""

        def __init__(self):
            super().__init__()
            self.gpt = tiny_gpt(dropout=0.0)
            self.calls = 0

        def forward(self, input_ids, labels=None):
            output = self.gpt(input_ids, labels=labels)
            if self.training:
                self.calls += 1
                output.loss = output.loss * (math.inf if self.calls == 3 else 1.0)
            return output

    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=1)
    trainer = made(tmp_path, [watching], model=Overflowing(), logging_nan_inf_filter=False)
    # A CPU has no fp16 training; the scaler of one does all its work here.
    trainer.accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    trainer.accelerator.native_amp = True
    trainer.accelerator.state._mixed_precision = "fp16"
    try:
        trainer.train()
    finally:
        trainer.accelerator.state._mixed_precision = "no"
    assert scaler.get_scale() == 512.0
    run = vario.open_run(watching.path)
    assert series(run, "skipped_step") == {1: 0, 2: 0, 3: 1, 4: 0, 5: 0, 6: 0}
    logged = history(trainer, "grad_norm")
    recorded = norms(run)
    for step in (1, 2, 4, 5, 6):
        assert recorded[step] == pytest.approx(logged[step], rel=1e-3)
    assert not math.isfinite(recorded[3])
    assert series(run, "gradient_check_healthy") == {1: 1, 2: 1, 3: 0, 4: 1, 5: 1, 6: 1}
    assert "The loss is scaled: such a step is skipped" in capsys.readouterr().out


def test_brain_floats_are_recorded(tmp_path):
    watching = callback(tmp_path)
    trainer = made(tmp_path, [watching], bf16=True)
    trainer.train()
    run = vario.open_run(watching.path)
    assert norms(run) == pytest.approx(history(trainer, "grad_norm"), rel=1e-3)
    assert vario.first_bad(run) is None


def test_the_first_bad_tensor_of_a_nan_batch_is_named(tmp_path, capsys):
    model = tiny_gpt(dropout=0.0)
    poisoned = model.transformer.h[1].mlp.c_fc
    calls = []

    def poison(module, args, output):
        if module.training:
            calls.append(None)
            if len(calls) == 4:
                return output.index_fill(1, torch.tensor([2]), math.nan)
        return output

    poisoned.register_forward_hook(poison)
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=2)
    trainer = made(tmp_path, [watching], model=model)
    trainer.train()
    run = vario.open_run(watching.path)
    onset = vario.first_bad(run)
    assert (onset.step, onset.quantity, onset.target) == (4, "activation", "transformer.h.1.mlp.c_fc:output")
    assert run.state == "finished"
    # The Trainer's own filter hides it: the loss of that step reads 0.
    assert history(trainer, "loss")[4] == 0.0
    printed = capsys.readouterr().out
    assert "vario: gradients at step 4, before clipping:" in printed
    assert 1 <= printed.count("elements of its gradient") <= 8
    assert "vario: gradients at step 6" not in printed, "what was said is not said again"


def test_one_bad_gradient_is_not_hidden_by_clipping(tmp_path, capsys):
    """One NaN element makes every clipped gradient NaN; before clipping only its owner has one."""
    model = tiny_gpt(dropout=0.0)
    culprit = model.transformer.h[0].attn.c_proj.bias
    culprit.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([3]), math.nan))
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=1, quantities=["gradient"])
    made(tmp_path, [watching], model=model, max_steps=1).train()
    printed = capsys.readouterr().out
    assert "transformer.h.0.attn.c_proj.bias: 1 NaN in 16 elements of its gradient" in printed
    assert printed.count("NaN") == 1
    run = vario.open_run(watching.path)
    assert series(run, "gradient_check_not_finite") == {1: 1}
    assert vario.first_bad(run).target == "transformer.h.0.attn.c_proj.bias"


def test_gradients_are_checked_at_every_nth_step_whatever_is_recorded(tmp_path):
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=2, quantities=["activation"])
    trainer = made(tmp_path, [watching], gradient_accumulation_steps=2)
    trainer.train()
    run = vario.open_run(watching.path)
    assert "gradient" not in run.quantities()
    logged = history(trainer, "grad_norm")
    assert series(run, "gradient_check_norm") == pytest.approx({step: logged[step] for step in (2, 4, 6)}, rel=1e-4)
    assert set(series(run, "gradient_check_healthy").values()) == {1.0}


def test_what_was_logged_before_the_first_update_is_step_0(tmp_path):
    watching = callback(tmp_path, quantities=["gradient"])
    trainer = made(tmp_path, [watching], eval_strategy="steps", eval_steps=3, eval_on_start=True)
    trainer.train()
    run = vario.open_run(watching.path)
    assert series(run, "eval_loss") == pytest.approx(history(trainer, "eval_loss"))
    assert sorted(series(run, "eval_loss")) == [0, 3, 6]
    assert run.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]


def test_an_exception_leaves_a_crashed_run_and_the_model_as_it_was(tmp_path):
    model = tiny_gpt()
    calls = []

    def fail(module, args):
        calls.append(None)
        if len(calls) == 3:
            raise RuntimeError("no more batches like this")

    model.transformer.h[1].register_forward_pre_hook(fail)
    watching = callback(tmp_path)
    trainer = made(tmp_path, [watching], model=model)
    order = list(trainer.callback_handler.callbacks)
    with pytest.raises(RuntimeError, match="no more batches"):
        trainer.train()
    run = vario.open_run(watching.path)
    assert run.state == "crashed"
    assert run.error == "RuntimeError: no more batches like this"
    assert run.steps("gradient").tolist() == [1, 2]
    assert trainer.callback_handler.callbacks == order
    assert "_run_epoch" not in vars(trainer)
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == 1, "the test's own"


def test_several_trainings_of_one_callback_are_several_runs(tmp_path):
    watching = callback(tmp_path, quantities=["gradient"], name="search")
    for _ in range(2):
        made(tmp_path, [watching], max_steps=2).train()
    assert [run.name for run in vario.list_runs(tmp_path / "runs")] == ["search", "search-2"]
    assert all(run.steps("gradient").tolist() == [1, 2] for run in vario.list_runs(tmp_path / "runs"))


def test_the_model_is_printed_at_the_start(tmp_path, capsys):
    made(tmp_path, [callback(tmp_path, print_model_summary=True)], max_steps=1).train()
    printed = capsys.readouterr().out
    assert "MODEL INFO: GPT2LMHeadModel" in printed
    made(tmp_path, [callback(tmp_path, print_model_summary=False)], max_steps=1).train()
    assert "MODEL INFO" not in capsys.readouterr().out


def test_an_optimizer_that_updates_copies_of_the_weights_is_followed_by_the_trainers_steps(tmp_path):
    """As engines do that keep weights of higher precision elsewhere."""
    model = tiny_gpt()
    masters = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]

    class OnCopies(torch.optim.SGD):
        def step(self, closure=None):
            for master, parameter in zip(masters, model.parameters(), strict=True):
                master.grad = parameter.grad
            super().step(closure)
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)

    optimizer = OnCopies(masters, lr=0.1)
    watching = callback(tmp_path, quantities=["gradient", "weight"])
    trainer = made(tmp_path, [watching], model=model)
    trainer.optimizer = optimizer
    trainer.train()
    run = vario.open_run(watching.path)
    assert run.steps("gradient").tolist() == run.steps("weight").tolist() == [1, 2, 3, 4, 5, 6]
    assert series(run, "loss") == pytest.approx(history(trainer, "loss"))
    assert norms(run) == pytest.approx(history(trainer, "grad_norm"), rel=1e-4)


def test_options_that_cannot_be_used_are_refused_when_the_callback_is_made():
    for options, message in (
        ({"evry": 3}, r"unknown 'evry'. Did you mean 'every'\?"),
        ({"first_step": 3}, "first_step: steps are numbered by the trainer. Remove this option."),
        ({"resume": True, "name": "x"}, "resume: resuming from a checkpoint"),
        ({"gradient_check_steps": 0}, "gradient_check_steps: expected a whole number of at least 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            MonitorCallback(**options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_on_a_gpu_gradients_are_those_before_clipping_without_the_loss_scale(tmp_path, precision):
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=1)
    trainer = made(tmp_path, [watching], use_cpu=False, gradient_accumulation_steps=2, **{precision: True})
    trainer.train()
    run = vario.open_run(watching.path)
    skipped = series(run, "skipped_step") if "skipped_step" in run.targets("scalar") else {}
    logged, recorded, checked = history(trainer, "grad_norm"), norms(run), series(run, "gradient_check_norm")
    kept = [step for step in range(1, 7) if not skipped.get(step)]
    assert len(kept) > 2
    for step in kept:
        assert recorded[step] == pytest.approx(logged[step], rel=1e-2)
        assert checked[step] == pytest.approx(recorded[step], rel=1e-4)
