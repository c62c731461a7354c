"""What the Trainer's own reports show of vario: TensorBoard and W&B files, read back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_hf_trainer import callback, series
from tiny_trainer import history, made

import vario
from starting import run_ranks
from thorough import thorough
from vario.analysis.training import get_gpu_memory_info


def tensorboard(folder):
    (file,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file))
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def train(folder, watching, **arguments):
    made(folder, [watching], report_to="tensorboard", eval_strategy="steps", eval_steps=3, **arguments).train()
    return tensorboard(folder / "output")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_checks_of_gradients_found_is_reported_where_the_trainer_reports(tmp_path):
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=2)
    reported = train(tmp_path, watching)
    run = vario.open_run(watching.path)
    assert reported["train/gradient_check_norm"] == pytest.approx(series(run, "gradient_check_norm"))
    assert sorted(reported["train/gradient_check_healthy"]) == [2, 4, 6]
    assert sorted(reported["eval/loss"]) == [3, 6]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_added_to_the_reports(tmp_path):
    reported = train(tmp_path, callback(tmp_path, log_gpu_memory=True))
    assert not [tag for tag in reported if "gpu" in tag or "check" in tag]
    assert len(reported["train/loss"]) == 6


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_memory_is_reported_where_the_trainer_reports(tmp_path):
    watching = callback(tmp_path)
    reported = train(tmp_path, watching, use_cpu=False)
    total = get_gpu_memory_info()["total_gb"]
    for name in ("used", "allocated", "peak"):
        values = reported[f"train/gpu_memory_{name}_gb"]
        assert sorted(values) == [1, 2, 3, 4, 5, 6]
        assert all(0 < value < total for value in values.values())
    assert "gpu_memory_used_gb" not in vario.open_run(watching.path).targets("scalar")
    quiet = train(tmp_path / "quiet", callback(tmp_path, log_gpu_memory=False), use_cpu=False)
    assert not [tag for tag in quiet if "gpu" in tag]


WANDB = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from test_hf_trainer import callback
from tiny_trainer import made
folder = Path.cwd()
made(folder, [callback(folder, check_gradients=True, gradient_check_steps=2)], report_to="wandb").train()
import wandb
print("SUMMARY", __import__("json").dumps(dict(wandb.run.summary)))
wandb.finish()
"""


@thorough
def test_weights_and_biases_gets_the_same(tmp_path):
    here = Path(__file__).parent
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    command = [sys.executable, "-c", WANDB, str(here), str(here.parent)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("SUMMARY"))
    summary = json.loads(line.removeprefix("SUMMARY"))
    run = vario.open_run(tmp_path / "runs")
    assert summary["train/gradient_check_norm"] == pytest.approx(series(run, "gradient_check_norm")[6])
    assert "train/gpu_memory_used_gb" not in summary or torch.cuda.is_available()


TWO_RANKS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import torch
from test_hf_trainer import callback
from tiny_trainer import made, history
folder = Path.cwd()
watching = callback(folder, print_model_summary=True, check_gradients=True, gradient_check_steps=2, name="two")
trainer = made(folder, [watching], gradient_accumulation_steps=2, max_steps=4, ddp_backend="gloo")
trainer.train()
if trainer.is_world_process_zero():
    print("NORMS", __import__("json").dumps(history(trainer, "grad_norm")))
torch.distributed.destroy_process_group()
"""


@thorough
def test_of_two_processes_each_records_its_rank_and_one_speaks(tmp_path):
    here = Path(__file__).parent
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    result = run_ranks([script, here, here.parent], cwd=tmp_path, ready=["transformers.trainer"])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("MODEL INFO") == 1
    run = vario.open_run(tmp_path / "runs" / "two")
    assert (run.state, run.ranks, run.world_size) == ("finished", [0, 1], 2)
    for rank in (0, 1):
        assert run.steps("activation", rank).tolist() == run.steps("scalar", rank).tolist() != []
        assert run.series(run.targets("gradient")[0], "gradient", rank=rank).steps.tolist() == [1, 2, 3, 4]
    assert "loss" in run.targets("scalar", rank=0)
    assert "loss" not in run.targets("scalar", rank=1), "one rank keeps what all ranks log"
    line = next(line for line in result.stdout.splitlines() if line.startswith("NORMS"))
    logged = {int(step): value for step, value in json.loads(line.removeprefix("NORMS")).items()}
    checked = series(run, "gradient_check_norm")
    assert checked == pytest.approx({step: logged[step] for step in (2, 4)}, rel=1e-4)


def test_the_history_of_the_trainer_is_left_alone(tmp_path):
    watching = callback(tmp_path, check_gradients=True, gradient_check_steps=2)
    trainer = made(tmp_path, [watching])
    trainer.train()
    assert not any(key.startswith("gradient_check") for row in trainer.state.log_history for key in row)
    assert len(history(trainer, "loss")) == 6
