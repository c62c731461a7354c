"""The callbacks without MindSpore: for any loop."""

import contextlib
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
import torch
from monitored import Board, Tower, said

import vario
from vario.compat.mindformers import MFLossMonitor, TopkBiasBalanceCallback, TrainingStateMonitor, watch
from vario.core.errors import ConfigError


def board(folder):
    return {"tensorboard_dir": str(folder / "board"), "log_timers_to_tensorboard": True}


def test_a_folder_called_mindspore_is_not_taken_for_the_package(tmp_path):
    (tmp_path / "mindspore").mkdir()
    words = "import mindspore; from vario.compat.mindformers import MFLossMonitor; MFLossMonitor(dataset_size=3)"
    done = subprocess.run([sys.executable, "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def test_one_monitor_does_what_all_callbacks_ask_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Tower(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    callbacks = [
        MFLossMonitor(dataset_size=3, origin_epochs=1),
        TrainingStateMonitor(config={"local_norm_format": "tensorboard", "weight_state_format": "tensorboard"}),
        TopkBiasBalanceCallback(),
    ]
    with watch(model, optimizer, callbacks, tensorboard=board(tmp_path), name="run"):
        for _ in range(3):
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = Board(tmp_path)
    for tag in ("loss", "grad-norm", "learning-rate", "weight_norm", "local_norm/head.weight"):
        assert found.steps(tag) == [1, 2, 3], tag
    assert vario.open_run(tmp_path / "vario_runs" / "run").series("weight_norm", "scalar").values.shape == (3,)


def test_by_hand_in_a_loop_without_a_framework(tmp_path):
    monitor = MFLossMonitor(dataset_size=2, origin_epochs=2, global_batch_size=8, tensorboard=board(tmp_path))
    with said() as lines:
        for step in range(4):
            monitor.step_started()
            monitor.step_ended(loss=np.float32(step), learning_rate=0.5, grad_norm=None)
        monitor.close()
    found = Board(tmp_path)
    assert list(found.curve("loss").values()) == [0.0, 1.0, 2.0, 3.0]
    assert found.steps("loss-vs-samples") == [8, 16, 24, 32]
    assert "grad-norm" not in found.tags
    assert sum("loss:[" in line for line in lines) == 4
    assert "Epoch:[  2/  2], step:[    2/    2], loss:[3.000000/2.500000]" in lines[-2]
    assert "100.0%" in lines[-1]


def test_losses_that_are_sums_become_means(tmp_path):
    class Context:
        def __init__(self, outputs):
            self.net_outputs, self.batch_num, self.epoch_num = outputs, 5, 1
            self.network = self.train_network = object()

        def original_args(self):
            return self

    for outputs in (6.0, (6.0, False, 1024.0), (6.0, False, 1024.0, 0.5), (6.0, True, 1024.0, 0.5, 2.0)):
        folder = tmp_path / str(np.size(outputs))
        given = {**board(folder), "log_loss_scale_to_tensorboard": True}
        monitor = MFLossMonitor(learning_rate=0.5, gradient_accumulation_steps=3, tensorboard=given)
        monitor.on_train_begin(Context(outputs))
        monitor.on_train_step_end(Context(outputs))
        monitor.on_train_end(Context(outputs))
        found = Board(folder)
        assert found.curve("loss") == {1: 2.0}
        assert found.curve("learning-rate") == {1: 0.5}
        assert ("loss-scale" in found.tags) == (np.size(outputs) > 1)
        assert ("grad-norm" in found.tags) == (np.size(outputs) == 5)


def test_wrong_arguments_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"callbacks\[0\].per_print_times: expected a whole number"):
        MFLossMonitor(per_print_times=0)
    with pytest.raises(ConfigError) as raised:
        TrainingStateMonitor(config={"target": ["*"], "nonsense": 1}, dataset_size="many")
    for part in ("'*' is not a regular expression", "unknown 'nonsense'", "callbacks[0].dataset_size"):
        assert part in str(raised.value)


def test_a_failing_callback_is_told_once_and_training_goes_on(tmp_path, caplog):
    monitor = MFLossMonitor(tensorboard={"tensorboard_dir": str(tmp_path)})
    monitor._report_step = None
    for _ in range(3):
        monitor.step_ended(loss=1.0)
    assert len([record for record in caplog.records if "MFLossMonitor failed" in record.getMessage()]) == 1


def test_importing_the_callbacks_imports_no_mindspore_and_no_torch():
    code = (
        "import sys\n"
        "from vario.compat.mindformers import MFLossMonitor, TrainingStateMonitor, TopkBiasBalanceCallback\n"
        "MFLossMonitor(); TrainingStateMonitor(); TopkBiasBalanceCallback()\n"
        "print([name for name in ('mindspore', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


BAR = """
import time
from vario.compat.mindformers import MFLossMonitor
monitor = MFLossMonitor(dataset_size=4, global_batch_size=8)
for step in range(4):
    monitor.step_ended(loss=1.0)
monitor.close()
"""


def test_in_a_terminal_there_is_a_bar_below_the_lines():
    main, other = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", BAR], stderr=other, stdout=other)
    os.close(other)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(main, 4096):
            shown += part
    os.close(main)
    assert child.wait(timeout=60) == 0
    text = shown.decode()
    bars = [piece for piece in text.split("\r\x1b[K") if piece.startswith(("25.0%", "50.0%", "75.0%", "100.0%"))]
    assert len(bars) == 4
    assert bars[1].startswith("50.0% |█████████████████████████                         |")
    assert all("\n" not in bar for bar in bars)
    assert text.count("loss:[1.000000/1.000000]") == 4
