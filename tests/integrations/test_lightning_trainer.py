"""MonitorCallback in a real Lightning Trainer."""

import csv
import importlib
import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import vario
from models import batch
from vario.analysis.training import get_gpu_memory_info

pytestmark = pytest.mark.filterwarnings("ignore")  # what Lightning thinks of workers, loggers and folders


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def package(request):
    return importlib.import_module(request.param)


@pytest.fixture
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("lightning.pytorch")


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))


def module(package, bad_batch=None, **changes):
    """A module that calls its network from training_step, not itself."""

    class Small(package.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = net()
            self.true_losses = []

        def training_step(self, rows, index):
            if index == bad_batch:
                rows = rows * math.inf
            loss = self.net(rows).square().mean()
            self.true_losses.append(loss.item())
            self.log("train_loss", loss)
            if index % 2 == 0:
                self.log("now_and_then", float(index))
            return loss

        def validation_step(self, rows, index):
            self.log("val_loss", self.net(rows).square().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return type("Changed", (Small,), changes)()


def callback(folder, **options):
    from vario.integrations.lightning import MonitorCallback

    defaults = {"print_model_summary": False, "directory": str(folder / "runs"), "strict": True, "every": 1}
    return MonitorCallback(**{**defaults, **options})


def fit(package, folder, model, callbacks, ckpt_path=None, **settings):
    defaults = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "log_every_n_steps": 1,
        "default_root_dir": str(folder),
        "gradient_clip_val": 0.05,
        "logger": False,
    }
    trainer = package.Trainer(callbacks=callbacks, **{**defaults, **settings})
    batches = [batch(seed) for seed in range(4)]
    trainer.fit(model, Rows(batches), Rows(batches[:2]), ckpt_path=ckpt_path)
    return trainer


class Rows:
    """Any iterable with a length will do for Lightning."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def series(run, name):
    found = run.series(name, "scalar")
    return dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def losses_of(model):
    return dict(enumerate(model.true_losses))


def test_a_run_has_lightnings_steps_and_everything_that_is_logged(package, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    loggers = importlib.import_module(package.__name__ + ".loggers")
    logger = loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    assert package.__name__ != "lightning.pytorch" or isinstance(logger, CSVLogger)
    watching, model = callback(tmp_path), module(package)
    fit(package, tmp_path, model, [watching], logger=logger)
    run = vario.open_run(watching.path)
    assert run.state == "finished"
    assert run.steps("gradient").tolist() == run.steps("activation").tolist() == list(range(8))
    assert series(run, "train_loss") == pytest.approx(losses_of(model))
    assert series(run, "loss") == pytest.approx(losses_of(model))
    assert series(run, "total_steps") == {0: 8}
    assert series(run, "loss_local") == pytest.approx(losses_of(model))
    # The second epoch brings the rows of the first again.
    assert series(run, "batch_repeated") == {step: float(step >= 4) for step in range(8)}
    assert series(run, "now_and_then") == {0: 0, 2: 2, 4: 0, 6: 2}
    assert set(series(run, "learning_rate").values()) == {0.01}
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    for name in ("train_loss", "val_loss"):
        logged = {int(row["step"]): float(row[name]) for row in rows if row[name]}
        assert series(run, name) == pytest.approx(logged), name
    assert sorted(series(run, "val_loss")) == [3, 7]
    # What validation computes is no activation of a training step.
    assert set(run.series("net.0", "activation", "count").values.tolist()) == {6 * 8.0}


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}], ids=str)
def test_training_is_the_same_bit_by_bit(lightning, tmp_path, settings):
    def train(callbacks):
        model = module(lightning)
        torch.manual_seed(1)
        fit(lightning, tmp_path, model, callbacks, **settings)
        return model

    watched = train([callback(tmp_path, check_gradients=True, gradient_check_steps=2)])
    plain = train([])
    assert watched.true_losses == plain.true_losses
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name])


def test_accumulated_batches_are_one_step(lightning, tmp_path):
    watching, model = callback(tmp_path, quantities=["gradient", "gradient_local", "activation"]), module(lightning)
    fit(lightning, tmp_path, model, [watching], accumulate_grad_batches=2, val_check_interval=3)
    run = vario.open_run(watching.path)
    assert run.steps("gradient").tolist() == [0, 1, 2, 3]
    pairs = list(zip(model.true_losses[::2], model.true_losses[1::2], strict=True))
    assert series(run, "loss") == pytest.approx({step: sum(pair) / 2 for step, pair in enumerate(pairs)})
    # What is logged in training_step is the last batch's, as in Lightning's own loggers.
    assert series(run, "train_loss") == pytest.approx({step: pair[1] for step, pair in enumerate(pairs)})
    for quantity in ("gradient_local", "activation"):
        target = "net.0.weight" if quantity == "gradient_local" else "net.0"
        assert run.series(target, quantity, "norm", micro_steps=True).micro_steps.tolist() == [0, 1] * 4
    assert len(series(run, "val_loss")) == 2


@pytest.mark.parametrize("accumulated", [1, 2])
def test_what_the_module_logs_after_the_callbacks_lands_in_the_step_it_belongs_to(lightning, tmp_path, accumulated):
    model = module(lightning)
    type(model).on_train_batch_end = lambda self, outputs, rows, index: self.log("late", float(index), on_step=True)
    watching = callback(tmp_path, quantities=["gradient"])
    fit(lightning, tmp_path, model, [watching], max_epochs=1, accumulate_grad_batches=accumulated)
    late = series(vario.open_run(watching.path), "late")
    assert late == ({0: 0, 1: 1, 2: 2, 3: 3} if accumulated == 1 else {0: 1, 1: 3})


def test_gradients_are_those_before_clipping_and_checked_at_every_nth_step(lightning, tmp_path):
    model = module(lightning)
    norms = {}

    def before(self, optimizer):
        norms[self.trainer.global_step] = nn.utils.get_total_norm([p.grad for p in self.parameters()]).item()

    type(model).on_after_backward = lambda self: before(self, None)
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=3)
    fit(lightning, tmp_path, model, [watching])
    checked = series(vario.open_run(watching.path), "gradient_check_norm")
    assert min(norms.values()) > 0.05
    assert checked == pytest.approx({step: norms[step] for step in (2, 5)}, rel=1e-5)


def test_several_optimizers_by_hand_are_one_step(lightning, tmp_path):
    class Two(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            torch.manual_seed(0)
            self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

        def training_step(self, rows, index):
            first, second = self.optimizers()
            for optimizer, loss in (
                (second, lambda: self.critic(self.generator(rows).detach()).square().mean()),
                (first, lambda: self.critic(self.generator(rows)).mean()),
            ):
                optimizer.zero_grad()
                value = loss()
                self.manual_backward(value)
                optimizer.step()
            self.log("generator_loss", value)

        def configure_optimizers(self):
            return [
                torch.optim.SGD(self.generator.parameters(), lr=0.1),
                torch.optim.SGD(self.critic.parameters(), lr=0.2),
            ]

        def validation_step(self, rows, index):
            self.log("val_loss", self.critic(rows).mean())

    watching = callback(tmp_path)
    fit(lightning, tmp_path, Two(), [watching], gradient_clip_val=None)
    run = vario.open_run(watching.path)
    assert run.steps("gradient").tolist() == list(range(8))
    assert set(run.targets("gradient")) == {
        f"{part}.{side}" for part in ("generator", "critic") for side in ("weight", "bias")
    }
    assert set(series(run, "learning_rate_0").values()) == {0.1}
    assert set(series(run, "learning_rate_1").values()) == {0.2}
    assert sorted(series(run, "generator_loss")) == list(range(8))


def test_a_module_without_optimizers_is_recorded_without_a_rate(lightning, tmp_path):
    watching = callback(tmp_path)
    fit(lightning, tmp_path, module(lightning, configure_optimizers=lambda self: None), [watching])
    run = vario.open_run(watching.path)
    assert run.state == "finished"
    assert "train_loss" in run.targets("scalar")
    assert "learning_rate" not in run.targets("scalar")


def test_half_precision_is_seen_without_the_loss_scale_and_skipped_steps_are_marked(lightning, tmp_path, capsys):
    from lightning.pytorch.plugins.precision import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    model = module(lightning, bad_batch=1)
    norms = []
    type(model).on_before_optimizer_step = lambda self, optimizer: norms.append(
        nn.utils.get_total_norm([p.grad for p in self.parameters()]).item()
    )
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=1)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    fit(lightning, tmp_path, model, [watching], plugins=[plugin], max_epochs=1)
    assert scaler.get_scale() == 512.0
    run = vario.open_run(watching.path)
    assert series(run, "skipped_step") == {0: 0, 1: 1, 2: 0, 3: 0}
    checked = series(run, "gradient_check_norm")
    for step in (0, 2, 3):
        assert checked[step] == pytest.approx(norms[step], rel=1e-3), "Lightning unscales before this hook"
    assert not math.isfinite(checked[1])
    assert "The loss is scaled" in capsys.readouterr().out


def test_the_first_bad_tensor_of_a_bad_batch_is_named(lightning, tmp_path):
    model = module(lightning)
    calls = []

    def poison(layer, args, output):
        if layer.training:
            calls.append(None)
            return output * math.nan if len(calls) == 6 else output
        return output

    model.net[1].register_forward_hook(poison)
    watching = callback(tmp_path)
    fit(lightning, tmp_path, model, [watching])
    onset = vario.first_bad(vario.open_run(watching.path))
    assert (onset.step, onset.quantity, onset.target) == (5, "activation", "net.1:output")


def test_an_exception_leaves_a_crashed_run_and_the_model_as_it_was(lightning, tmp_path):
    model = module(lightning)

    def fail(self, outputs, rows, index):
        if index == 2:
            raise ValueError("enough")

    type(model).on_train_batch_end = fail
    watching = callback(tmp_path)
    with pytest.raises(ValueError, match="enough"):
        fit(lightning, tmp_path, model, [watching])
    run = vario.open_run(watching.path)
    assert (run.state, run.error) == ("crashed", "ValueError: enough")
    assert run.steps("gradient").tolist() == [0, 1, 2]
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_a_resumed_training_goes_on_with_its_run_from_the_checkpoints_step(package, tmp_path):
    def saving():
        callbacks = importlib.import_module(package.__name__ + ".callbacks")
        return callbacks.ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=3, save_top_k=-1)

    first, model = callback(tmp_path), module(package)
    fit(package, tmp_path, model, [first, saving()], enable_checkpointing=True)
    assert vario.open_run(first.path).steps("gradient").tolist() == list(range(8))
    (checkpoint,) = (tmp_path / "checkpoints").glob("*step=3.ckpt")
    second, again = callback(tmp_path), module(package)
    fit(package, tmp_path, again, [second], checkpoint, max_epochs=3)
    assert second.path == first.path
    run = vario.open_run(second.path)
    assert [session["first_step"] for session in run.sessions] == [0, 3]
    assert run.steps("gradient").tolist() == list(range(12))
    expected = {**dict(enumerate(model.true_losses[:3])), **dict(enumerate(again.true_losses, start=3))}
    assert series(run, "train_loss") == pytest.approx(expected)


def test_fitting_on_with_the_same_trainer_goes_on_with_the_run(lightning, tmp_path):
    watching, model = callback(tmp_path, quantities=["gradient"]), module(lightning)
    trainer = fit(lightning, tmp_path, model, [watching], max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, Rows([batch(seed) for seed in range(4)]))
    (run,) = vario.list_runs(tmp_path / "runs")
    assert run.steps("gradient").tolist() == list(range(8))


def test_reports_get_what_checks_found_and_no_gpu_where_there_is_none(lightning, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=2)
    fit(lightning, tmp_path, module(lightning), [watching], logger=logger)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    reported = {int(row["step"]): float(row["gradient_check_norm"]) for row in rows if row.get("gradient_check_norm")}
    run = vario.open_run(watching.path)
    expected = series(run, "gradient_check_norm")
    assert sorted(expected) == [1, 3, 5, 7]
    for step, value in expected.items():
        assert reported[step] == pytest.approx(value, rel=1e-5)
    if not torch.cuda.is_available():
        assert not [name for name in rows[0] if "gpu" in name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_memory_goes_to_lightnings_loggers(lightning, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    watching = callback(tmp_path)
    fit(lightning, tmp_path, module(lightning), [watching], logger=logger, accelerator="gpu", devices=1)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    used = [float(row["gpu_memory_used_gb"]) for row in rows if row["gpu_memory_used_gb"]]
    assert len(used) == 8
    assert all(0 < value < get_gpu_memory_info()["total_gb"] for value in used)
    assert vario.open_run(watching.path).state == "finished"


def test_the_peak_memory_is_predicted_when_the_first_batch_comes(package, tmp_path, capsys):
    watching = callback(tmp_path, predict_memory=True)
    model = module(package)
    fit(package, tmp_path, model, [watching])
    assert capsys.readouterr().out.count("predicted peak memory: ") == 1
    (found,) = vario.open_run(watching.path).series("predicted_peak_bytes", "scalar").values
    expected = vario.predict_memory(model.net, (batch(0),), loss=lambda outputs, _: outputs.square().mean())
    assert found == pytest.approx(expected.peak_bytes, abs=4096)
    without = module(package)
    fit(package, tmp_path / "without", without, [callback(tmp_path / "without")])
    assert losses_of(model) == losses_of(without)


def test_the_model_is_printed_at_the_start(lightning, tmp_path, capsys):
    fit(lightning, tmp_path, module(lightning), [callback(tmp_path, print_model_summary=True)], max_epochs=1)
    assert "MODEL INFO" in capsys.readouterr().out


def test_the_snippet_of_the_docs_runs(tmp_path, monkeypatch):
    """Not where the others are run: Lightning warns of its own."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "trainers.md"
    (snippet,) = re.findall(r"^```py\n(.*?)^```", page.read_text(encoding="utf8"), flags=re.MULTILINE | re.DOTALL)
    namespace = {"__name__": "__main__"}
    exec(compile(snippet, str(page), "exec"), namespace)
    run = vario.open_run(namespace["watching"].path)
    assert run.state == "finished"
    assert len(series(run, "train_loss")) == 20
