"""Trainers of other packages, watched without a callback: their losses, and what they report by themselves."""

import importlib
import json
from pathlib import Path

import accelerate
import numpy as np
import pytest
import torch
from tiny_trainer import history, made, sentences, tiny_gpt
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vario
from starting import run_ranks
from watching import scalar, watch

pytestmark = pytest.mark.filterwarnings("ignore")  # what trainers think of workers, loggers and folders


def numbers(monitor, name):
    return list(scalar(monitor, name).values())


def rows(num=20, seed=0):
    return TensorDataset(torch.randn(num, 4, generator=torch.Generator().manual_seed(seed)))


def train_gpt(folder, model=None, num_sentences=20, **arguments):
    """Five batches an epoch: with two of them a step the last step of each epoch is short."""
    model = model or tiny_gpt()
    trainer = made(folder, [], model=model, **{"max_steps": -1, "num_train_epochs": 2, **arguments})
    trainer.train_dataset = sentences(num_sentences)
    with watch(model, None, ["gradient"]) as monitor:
        trainer.train()
    return monitor, trainer


class OwnLoss(nn.Module):
    """A model that knows nothing of items in a batch: the Trainer divides its losses by the number of batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@pytest.mark.parametrize("kind", [tiny_gpt, OwnLoss])
@pytest.mark.parametrize("accumulated", [1, 2, 3])
def test_the_loss_under_the_trainer_is_what_it_logs(tmp_path, kind, accumulated):
    monitor, trainer = train_gpt(tmp_path, kind(), gradient_accumulation_steps=accumulated)
    logged = list(history(trainer, "loss").values())
    assert len(logged) == 2 * -(-5 // accumulated)
    assert numbers(monitor, "loss_local") == pytest.approx(logged, rel=1e-4)
    assert numbers(monitor, "loss") == pytest.approx(logged)


def test_a_loss_that_the_trainer_computes_itself_is_what_it_logs(tmp_path):
    def summed(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"].flatten(0, 1)
        return nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch

    trainer = made(tmp_path, [], model=tiny_gpt(), gradient_accumulation_steps=2, max_steps=4)
    trainer.compute_loss_func = summed
    with watch(trainer.model, None, ["gradient"]) as monitor:
        trainer.train()
    found = next(numbers(monitor, name) for name in ("loss_local", "loss_backward") if numbers(monitor, name))
    assert found == pytest.approx(list(history(trainer, "loss").values()), rel=1e-4)


def test_evaluations_of_the_trainer_are_kept_and_are_no_training_loss(tmp_path):
    monitor, trainer = train_gpt(tmp_path, eval_strategy="steps", eval_steps=3, logging_steps=100)
    assert numbers(monitor, "eval_loss") == pytest.approx(list(history(trainer, "eval_loss").values()))
    assert len(numbers(monitor, "loss_local")) == trainer.state.global_step == 10
    assert numbers(monitor, "loss") == []


def test_a_trainer_of_another_model_is_not_listened_to(tmp_path):
    model = nn.Linear(4, 1)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), ["gradient"]) as monitor:
        made(tmp_path, [], max_steps=2).train()
    assert numbers(monitor, "loss") == []


def test_the_trainer_is_left_as_it_was(tmp_path):
    from transformers.trainer_callback import CallbackHandler

    before = dict(vars(CallbackHandler))
    train_gpt(tmp_path)
    assert dict(vars(CallbackHandler)) == before


TWO_RANKS = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import torch, vario
from tiny_trainer import history, made, sentences, tiny_gpt
model = tiny_gpt()
trainer = made(Path.cwd(), [], model=model, gradient_accumulation_steps=2, max_steps=-1, num_train_epochs=2,
    ddp_backend="gloo")
trainer.train_dataset = sentences(20)
trainer.train()
if trainer.is_world_process_zero():
    print("LOSSES", json.dumps(list(history(trainer, "loss").values())))
torch.distributed.destroy_process_group()
"""


def test_on_two_ranks_the_mean_of_what_each_found_is_what_the_trainer_logs(tmp_path):
    here = Path(__file__).parent
    (tmp_path / "train.py").write_text(TWO_RANKS)
    words = ["-m", "vario", "run", "--name", "two", "train.py", here, here.parent]
    result = run_ranks(words, cwd=tmp_path, ready=["transformers.trainer"])
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("LOSSES"))
    logged = json.loads(line.removeprefix("LOSSES"))
    run = vario.open_run(tmp_path / "vario_runs" / "two")
    assert run.series("loss", "scalar", rank=0).values.tolist() == pytest.approx(logged)
    assert run.series("loss_local", "scalar", rank="all").values.tolist() == pytest.approx(logged, rel=1e-4)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_lightning_module_shows_its_loss_and_its_validations(package):
    lightning = importlib.import_module(package)

    class Small(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1)
            self.losses = []

        def training_step(self, batch, index):
            loss = self.layer(batch[0]).square().mean()
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, **quiet)
    model = Small()
    with watch(model, None, ["gradient"]) as monitor:
        trainer.fit(model, DataLoader(rows(), batch_size=4), DataLoader(rows(8, 1), batch_size=4))
    epochs = [model.losses[:5], model.losses[5:]]
    expected = [sum(group) / len(group) for losses in epochs for group in (losses[:2], losses[2:4], losses[4:])]
    assert numbers(monitor, "loss_backward") == pytest.approx(expected)
    assert len(numbers(monitor, "val_loss")) == 2
    assert numbers(monitor, "val_loss")[-1] == pytest.approx(float(trainer.callback_metrics["val_loss"]))


def test_an_accelerated_loop_shows_its_loss_and_what_it_logs():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    layer = nn.Linear(4, 1)
    parts = layer, torch.optim.SGD(layer.parameters(), lr=0.01), DataLoader(rows(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(*parts)
    losses = []
    with watch(layer, None, ["gradient"]) as monitor:
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                losses.append(loss.item())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.log({"accuracy": 0.5})
    expected = [sum(losses[:2]) / 2, sum(losses[2:4]) / 2, losses[4]]
    assert numbers(monitor, "loss_backward") == pytest.approx(expected)
    assert scalar(monitor, "accuracy") == {2: 0.5}


def labelled(seed):
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=5)


def test_what_engines_of_ignite_compute_is_kept_by_what_they_ran_over():
    engines, found = importlib.import_module("ignite.engine"), importlib.import_module("ignite.metrics")
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.05), nn.MSELoss()
    trainer = engines.create_supervised_trainer(model, optimizer, criterion)
    evaluator = engines.create_supervised_evaluator(model, metrics={"mse": found.MeanSquaredError()})
    training, validation, test = (labelled(seed) for seed in range(3))
    printed = {"train_mse": [], "eval_mse": [], "eval_mse/2": []}

    @trainer.on(engines.Events.EPOCH_COMPLETED)
    def evaluate(engine):
        for name, loader in zip(printed, (training, validation, test), strict=True):
            printed[name].append(evaluator.run(loader).metrics["mse"])

    losses = []
    trainer.add_event_handler(engines.Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    with watch(model, optimizer, ["gradient"]) as monitor:
        trainer.run(training, max_epochs=2)
    assert numbers(monitor, "loss_backward") == pytest.approx(losses)
    assert {name: numbers(monitor, name) for name in printed} == printed
    assert sorted(scalar(monitor, "eval_mse")) == [3, 7]


def test_the_history_of_skorch_is_kept():
    skorch = importlib.import_module("skorch")

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x).softmax(dim=-1)

    torch.manual_seed(0)
    net = skorch.NeuralNetClassifier(Classifier, max_epochs=3, lr=0.1, batch_size=16, verbose=0)
    inputs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    net.initialize()
    with watch(net.module_, None, ["gradient"]) as monitor:
        net.partial_fit(inputs, (inputs[:, 0] > 0).astype(np.int64))
    for name in ("train_loss", "valid_loss", "valid_acc"):
        assert numbers(monitor, name) == pytest.approx(net.history[:, name])
    assert len(numbers(monitor, "loss_backward")) == sum(net.history[:, "train_batch_count"])
