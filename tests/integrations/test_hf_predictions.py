"""MonitorCallback(predict_memory=True): said before the first step, kept in the run, shown by the report."""

import gc

import pytest
import tiny_trainer
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import vario
from thorough import thorough
from vario.cli import main


def trained(folder, **options):
    watching = vario.MonitorCallback(print_model_summary=False, directory=str(folder / "runs"), **options)
    trainer = tiny_trainer.made(folder, [watching])
    trainer.train()
    return trainer, watching


def test_the_peak_is_said_once_kept_and_reported(tmp_path, capsys):
    trainer, watching = trained(tmp_path, predict_memory=True)
    printed = capsys.readouterr().out
    assert printed.count("predicted peak memory: ") == 1
    run = vario.open_run(watching.path)
    kept = run.series("predicted_peak_bytes", "scalar")
    expected = vario.predict_memory(
        trainer.model,
        {key: torch.zeros(4, 8, dtype=torch.int64) for key in ("input_ids", "labels")},
        optimizer=trainer.optimizer,
    )
    # The Trainer hands the model one number more, the count of tokens: 512 bytes.
    assert kept.values.tolist() == [expected.peak_bytes + 512]
    assert main(["report", str(watching.path)]) == 0
    assert "on a GPU; this run used no GPU" in capsys.readouterr().out


def test_training_is_the_same_with_and_without_a_prediction(tmp_path):
    without, _ = trained(tmp_path / "without")
    with_one, _ = trained(tmp_path / "with", predict_memory=True)
    assert tiny_trainer.history(with_one, "loss") == tiny_trainer.history(without, "loss")


def test_a_model_that_cannot_be_simulated_trains_on_with_one_warning(tmp_path, caplog):
    class Peeking(GPT2LMHeadModel):
        def forward(self, input_ids, labels=None, **kwargs):
            assert int(input_ids.max()) < 32
            return super().forward(input_ids, labels=labels, **kwargs)

    watching = vario.MonitorCallback(print_model_summary=False, predict_memory=True, directory=str(tmp_path / "runs"))
    model = Peeking(
        GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    trainer = tiny_trainer.made(tmp_path, [watching], model)
    trainer.train()
    warned = [record.getMessage() for record in caplog.records if "not predicted" in record.getMessage()]
    assert len(warned) == 1
    assert "depends on values" in warned[0]
    assert len(tiny_trainer.history(trainer, "loss")) == 6


@thorough
@pytest.mark.filterwarnings("ignore")  # what dynamo warns of is its own
def test_a_compiled_training_is_predicted_outside_of_the_compiler(tmp_path, monkeypatch):
    # transformers leaves its wish to compile in the environment, where later trainings of this process would find it.
    for name in ("BACKEND", "MODE"):
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "")
        monkeypatch.delenv(f"ACCELERATE_DYNAMO_{name}")

    def compiled(**options):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        watching = vario.MonitorCallback(print_model_summary=False, directory=str(tmp_path / "runs"), **options)
        tiny_trainer.made(tmp_path, [watching], max_steps=2, torch_compile=True, torch_compile_backend="eager").train()
        return dict(torch._dynamo.utils.counters["stats"]), watching

    without, _ = compiled()
    with_one, watching = compiled(predict_memory=True)
    assert vario.open_run(watching.path).series("predicted_peak_bytes", "scalar").steps.tolist() == [1]
    assert with_one == without
    assert without["unique_graphs"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_on_a_gpu_the_prediction_agrees_with_what_the_run_measures(tmp_path, capsys, bf16):
    # What earlier tests left is gone but for cuBLAS's workspaces, which the prediction knows.
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    watching = vario.MonitorCallback(print_model_summary=False, predict_memory=True, directory=str(tmp_path / "runs"))
    shape = {"n_positions": 512, "n_embd": 768, "n_layer": 6, "n_head": 12, "vocab_size": 20000}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 20000, (32, 512))]
    trainer = tiny_trainer.made(tmp_path, [watching], model, use_cpu=False, bf16=bf16)
    trainer.train_dataset = rows
    trainer.train()
    run = vario.open_run(watching.path)
    measured = run.series("device_memory_peak_bytes", "scalar").values.max()
    predicted = run.series("predicted_peak_bytes", "scalar").values[0]
    # The Trainer keeps the sum of losses and the monitor its tables beside what a bare step takes.
    assert predicted == pytest.approx(measured, rel=0.03)
    assert main(["report", str(watching.path)]) == 0
    assert "measured" in capsys.readouterr().out
