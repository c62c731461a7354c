"""Logs of other tools than the HF Trainer. Files in progress_samples were written by the tools named here."""

import json
import shutil

import pytest

from trainer_outputs import answer, note_kinds, refusal, sample
from vario.logs.finding import find_history

MEGATRON = """\
[default0]: using world size: 8, data-parallel size: 2
 [2026-02-28 16:46:59] iteration        1/    5000 | consumed samples:          512 | elapsed time per iteration (ms): \
12000.5 | throughput per GPU (TFLOP/s/GPU): 110.2 | learning rate: 1.500000E-06 | global batch size:   512 | lm loss: \
1.081234E+01 | loss scale: 1.0 | grad norm: 5.960 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2026-02-28 16:47:01] iteration        2/    5000 | consumed samples:         1024 | elapsed time per iteration (ms): \
2000.0/2100.0 | learning rate: 3.000000E-06 | global batch size:   512 | loss scale: 1.0 | grad norm: nan | number of \
skipped iterations:   0 | number of nan iterations:   1 |
 [2026-02-28 16:47:03] iteration        3/    5000 | consumed samples:         1536 | elapsed time per iteration (ms): \
2000.0 | learning rate: 4.500000E-06 | global batch size:   512 | lm loss: 9.500000E+00 | loss scale: 1.0 | \
grad norm: 3.500 | number of skipped iterations:   0 | number of nan iterations:   0 |
-----------------------------------------------------------------------------------------------------
 validation loss at iteration 3 on validation set | lm loss value: 9.400000E+00 | lm loss PPL: 1.208838E+04 |
 validation loss at iteration 3 on test set | lm loss value: 9.600000E+00 | lm loss PPL: 1.476478E+04 |
-----------------------------------------------------------------------------------------------------
"""
"""By the grammar of Megatron-LM's log lines: it cannot be run without GPUs."""


def test_lightnings_csv_file(capsys):
    # Written by Lightning 2.6.6 with its rate monitor: three epochs of 20 steps, a row every second step.
    found = answer(capsys, sample("lightning_logs"))
    assert (found["format"], found["step"], found["epoch"]) == ("lightning_csv", 59, 2)
    assert found["loss"]["count"] == 30
    assert found["learning_rate"]["last"] == 0.0025
    assert found["grad_norm"]["count"] == 30
    assert [(each["name"], each["last_step"]) for each in found["evaluation"]] == [("eval_loss", 59)]
    assert list(found["others"]) == ["train_loss_epoch"]


def test_a_csv_file_with_a_torn_last_line_is_read_up_to_it(capsys, tmp_path):
    text = sample("lightning_logs/version_0/metrics.csv").read_text()
    (tmp_path / "metrics.csv").write_text(text[: text.rindex("\n", 0, -20)] + "\n2,0.5,")
    assert answer(capsys, tmp_path)["step"] >= 57


def test_a_csv_file_of_something_else_is_refused(capsys, tmp_path):
    (tmp_path / "metrics.csv").write_text("name,price\nbread,3\n")
    assert "has no column 'step'" in refusal(capsys, tmp_path / "metrics.csv")


def test_llama_factorys_log_has_its_own_clock(capsys):
    # Written by the callback of LLaMA-Factory 0.9.5 in a real Trainer: 40 steps of 0.12 s and a little.
    found = answer(capsys, sample("llama_factory/trainer_log.jsonl"))
    assert (found["step"], found["max_steps"], found["epoch"], found["is_finished"]) == (40, 40, 4, True)
    assert found["grad_norm"] is None
    assert found["learning_rate"]["last"] == 0.00025
    assert found["speed"]["source"] == "elapsed_time"
    assert 0.12 < found["speed"]["seconds_per_step"] < 0.17


def test_beside_the_state_of_a_finished_training_llama_factorys_log_has_nothing_to_add(capsys):
    found = answer(capsys, sample("llama_factory"))
    assert found["format"] == "trainer_state"
    assert found["grad_norm"]["count"] == 20
    assert found["notes"] == []


def test_a_running_llama_factory_job_is_as_far_as_its_log(capsys, tmp_path):
    lines = sample("llama_factory/trainer_log.jsonl").read_text().splitlines()
    (tmp_path / "trainer_log.jsonl").write_text("\n".join(lines[:15]) + '\n{"current_steps": 30, "tot')
    (tmp_path / "checkpoint-20").mkdir()
    state = json.loads(sample("llama_factory/trainer_state.json").read_text())
    state["log_history"] = [row for row in state["log_history"] if row["step"] <= 20]
    state.update(global_step=20, epoch=2.0)
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text(json.dumps(state))
    found = answer(capsys, tmp_path)
    assert (found["step"], found["epoch"], found["is_finished"]) == (28, 2.8, False)
    assert (found["loss"]["count"], found["grad_norm"]["last_step"]) == (14, 20)
    assert found["speed"]["source"] == "elapsed_time"
    assert found["speed"]["remaining_seconds"] == pytest.approx(12 * found["speed"]["seconds_per_step"])
    assert note_kinds(found) == ["joined"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("1:00:10", 3610), ("1 day, 1:00:00", 90_000), ("2 days, 0:00:05", 172_805)]
)
def test_clocks_with_hours_and_days(tmp_path, text, seconds):
    rows = [{"current_steps": 0, "loss": 2.0, "elapsed_time": "0:00:00"}]
    rows.append({"current_steps": 10, "loss": 1.0, "learning_rate": 0.5, "elapsed_time": text})
    (tmp_path / "trainer_log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    history = find_history(tmp_path)
    assert history.pace.seconds_per_step.tolist() == [seconds / 10]
    assert history.curves["learning_rate"].values.tolist() == [0.5]


def test_megatrons_text(capsys, tmp_path):
    (tmp_path / "stdout.log").write_text(MEGATRON)
    found = answer(capsys, tmp_path)
    assert (found["format"], found["step"], found["max_steps"]) == ("megatron", 3, 5000)
    assert (found["loss"]["first"], found["loss"]["last"]) == (10.81234, 9.5)
    assert found["learning_rate"]["last"] == 4.5e-06
    assert {each["name"]: each["last"] for each in found["evaluation"]} == {"eval_loss": 9.4, "eval_test_loss": 9.6}
    assert found["speed"]["seconds_per_step"] == 2
    assert found["speed"]["remaining_seconds"] == 2 * 4997
    assert found["notes"] == [{"kind": "loss_left_out", "about": {"count": 1}}]
    # The loss of the bad step is not in the log at all; its norm tells.
    assert (found["broken"]["step"], found["broken"]["name"], found["broken"]["is_lasting"]) == (2, "grad_norm", False)


def test_deepspeeds_text_has_no_loss_and_says_so(capsys):
    # Printed by DeepSpeed 0.19.8 on a CPU.
    found = answer(capsys, sample("deepspeed.log"))
    assert (found["format"], found["step"], found["loss"]) == ("deepspeed", 12, None)
    assert found["learning_rate"]["last"] == 0.01
    assert found["others"]["samples_per_second"] == 522.6042808444354
    assert found["speed"]["source"] == "line_times"
    assert 0.01 < found["speed"]["seconds_per_step"] < 0.02


def test_deepspeeds_csv_files_with_a_header_repeated_after_a_restart(capsys, tmp_path):
    # Written by DeepSpeed 0.19.8; a second start appends.
    text = sample("deepspeed_csv/Train_Samples_lr.csv").read_text()
    (tmp_path / "Train_Samples_lr.csv").write_text(text + "step,lr\n48,0.5\n56,0.25\n")
    (tmp_path / "Train_Samples_train_loss.csv").write_text("step,train_loss\n8,3.5\n16,3.0\n")
    found = answer(capsys, tmp_path)
    assert (found["format"], found["learning_rate"]["last"], found["loss"]["last"]) == ("deepspeed_csv", 0.25, 3)
    assert note_kinds(found) == ["steps_went_back", "steps_are_samples"]


def test_torchtunes_text(capsys, tmp_path):
    # Written by the DiskLogger of torchtune 0.6.1; the last line is one with a tensor in it.
    text = sample("torchtune_log.txt").read_text()
    (tmp_path / "log_1763200000.txt").write_text(
        text + "Step 9 | loss:8.5 lr:0.02 grad_norm:tensor(7.25, device='cuda:0') \n"
    )
    found = answer(capsys, tmp_path)
    assert (found["format"], found["step"], found["loss"]["count"]) == ("torchtune", 9, 9)
    assert (found["learning_rate"]["last"], found["grad_norm"]["last"]) == (0.02, 7.25)


def test_what_a_trainer_prints_with_its_progress_bar(capsys, tmp_path):
    # Printed by transformers 5.22: numbers are strings, and the bar tells the steps.
    found = answer(capsys, sample("trainer_console_bar.log"))
    assert (found["format"], found["step"], found["max_steps"], found["is_finished"]) == (
        "trainer_console",
        40,
        40,
        True,
    )
    history = find_history(sample("trainer_console_bar.log"))
    assert history.loss.steps.tolist() == list(range(2, 41, 2))
    assert history.curves["eval_loss"].steps.tolist() == [20, 40]
    assert found["loss"]["last"] == 0.1885
    assert found["notes"] == []


def test_what_a_trainer_prints_without_a_bar_has_its_rows_counted(capsys):
    found = answer(capsys, sample("trainer_console_plain.log"))
    assert (found["step"], found["epoch"], note_kinds(found)) == (20, 4, ["steps_counted"])
    assert found["speed"]["source"] == "final_row"


def test_what_a_trainer_of_4_x_prints(capsys, tmp_path):
    log = tmp_path / "nohup.out"
    log.write_text(
        "loading weights\n{'loss': 2.25, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.5}\n"
        "{'loss': 0.0, 'grad_norm': -inf, 'learning_rate': 4e-05, 'epoch': 1.0, 'rewards/chosen': 0.5}\n"
    )
    found = answer(capsys, log)
    assert (found["loss"]["count"], found["learning_rate"]["last"]) == (2, 4e-05)
    assert found["grad_norm"]["last"] == "-inf"
    assert found["broken"]["is_lasting"] is True
    assert found["others"] == {"rewards/chosen": 0.5}


def test_a_text_file_of_something_else_is_refused_with_the_formats_that_are_read(capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("buy bread\n")
    said = refusal(capsys, tmp_path / "notes.txt")
    assert "unknown log format" in said
    assert "trainer_state" in said
    assert "no checkpoint, log or run" in refusal(capsys, tmp_path)


def test_a_binary_file_is_refused(capsys, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    assert "unknown log format" in refusal(capsys, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["train.log", "metrics.csv", "trainer_log.jsonl", "x.json"])
def test_an_empty_file_is_refused(capsys, tmp_path, name):
    (tmp_path / name).write_text("")
    assert "empty" in refusal(capsys, tmp_path / name)


def test_a_log_that_begins_long_after_the_start_of_its_file_is_known(capsys, tmp_path):
    (tmp_path / "slurm-7.out").write_text("chatter\n" * 200_000 + MEGATRON)
    assert answer(capsys, tmp_path)["format"] == "megatron"


def test_the_newest_of_several_runs_is_read_and_the_others_are_named(capsys, tmp_path):
    for number in (0, 1):
        shutil.copytree(sample("lightning_logs/version_0"), tmp_path / f"version_{number}")
    found = answer(capsys, tmp_path)
    assert found["path"].endswith("version_1/metrics.csv")
    assert found["notes"][0]["about"]["places"] == "version_0/metrics.csv"


def test_a_file_that_is_no_log_does_not_hide_one_that_is(capsys, tmp_path):
    shutil.copytree(sample("lightning_logs/version_0"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "nohup.out").write_text("\n")
    (tmp_path / "notes.txt").write_text("buy bread\n")
    (tmp_path / "model.log").write_bytes(bytes(100))
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    assert answer(capsys, tmp_path)["format"] == "lightning_csv"
