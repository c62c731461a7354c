"""Files and folders as they should not be: each is read as far as it goes, or refused in one line."""

import json
import math
import os
import subprocess
import sys

import pytest

from trainer_outputs import answer, note_kinds, refusal, sample, write_state
from vario.cli import main

ROWS = [{"loss": 3.0 / step, "step": step} for step in range(1, 7)]


@pytest.mark.parametrize("history", [[5, 6], [True, None, "a"], [[{"step": 1, "loss": 2.0}]]])
def test_a_history_of_anything_but_rows_holds_no_loss(capsys, tmp_path, history):
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history}))
    assert answer(capsys, path)["loss"] is None


@pytest.mark.parametrize("step", [10**30, 1e25, math.inf])
def test_a_step_past_all_counting_is_left_out(capsys, tmp_path, step):
    rows = [*ROWS, {"loss": 1.0, "step": step}]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"global_step": step, "max_steps": 1e300, "log_history": rows}))
    found = answer(capsys, path)
    assert (found["step"], found["max_steps"], found["loss"]["count"]) == (6, None, 6)
    assert note_kinds(found) == ["rows_without_step"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.log", " iteration {step}/ 9 | lm loss: 2.0 |\n"),
        ("log_1.txt", "Step {step} | loss:2.0\n"),
        ("trainer_log.jsonl", '{{"current_steps": {step}, "loss": 2.0}}\n'),
    ],
)
def test_a_step_past_all_counting_is_left_out_of_text_too(capsys, tmp_path, name, line):
    (tmp_path / name).write_text(line.format(step=3) + line.format(step=10**30))
    assert answer(capsys, tmp_path)["step"] == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_totals_and_clocks_that_are_no_numbers_are_not_reckoned_with(capsys, tmp_path, value, language):
    final = {"train_loss": 1.0, "train_runtime": value, "train_steps_per_second": value, "step": 6}
    path = write_state(tmp_path / "trainer_state.json", [*ROWS, final], epoch=value, num_train_epochs=value)
    found = answer(capsys, path)
    assert (found["epoch_percent"], found["speed"], found["runtime_seconds"]) == (None, None, None)
    assert main(["progress", str(path), "--lang", language]) == 0


def test_an_iteration_time_that_was_rounded_to_nothing_gives_no_speed(capsys, tmp_path):
    line = " iteration {}/ 9 | elapsed time per iteration (ms): {} | lm loss: 2.0 |\n"
    (tmp_path / "train.log").write_text(line.format(1, 0.0) + line.format(2, 0.0))
    assert answer(capsys, tmp_path)["speed"] is None
    (tmp_path / "train.log").write_text(line.format(1, 0.0) + line.format(2, 500.0))
    assert answer(capsys, tmp_path)["speed"]["seconds_per_step"] == 0.5


def test_losses_at_the_end_of_all_numbers_are_summarised(capsys, tmp_path):
    rows = [{"loss": 1e308 * (-1) ** step, "step": step} for step in range(1, 60)]
    path = write_state(tmp_path / "trainer_state.json", rows)
    assert answer(capsys, path)["loss"]["highest"] == 1e308
    assert main(["progress", str(path), "-u", "-p"]) == 0


# -- what is no file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["train.log", "trainer_state.json", "metrics.csv", "trainer_log.jsonl", "events.out.tfevents.1", "Train_x.csv"],
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_pipes_folders_and_broken_links_with_the_name_of_a_log_are_passed_over(tmp_path, name, make):
    make(tmp_path / name)
    command = [sys.executable, "-m", "vario.progress", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)  # a pipe would be waited for
    assert result.returncode == 2
    assert "no checkpoint, log or run in it" in result.stderr


def test_a_pipe_is_refused_by_its_name(capsys, tmp_path):
    os.mkfifo(tmp_path / "train.log")
    assert "neither a file nor a folder" in refusal(capsys, tmp_path / "train.log")


def test_event_files_are_read_beside_a_pipe(capsys, tmp_path):
    (tmp_path / "Train_Samples_train_loss.csv").write_text("step,Train/Samples/train_loss\n8,2.0\n16,1.0\n")
    os.mkfifo(tmp_path / "Train_Samples_lr.csv")
    assert answer(capsys, tmp_path)["loss"]["last"] == 1.0


def test_a_name_that_no_system_takes_is_refused(capsys, tmp_path):
    assert "no such file or folder" in refusal(capsys, tmp_path / ("x" * 300))


def test_a_folder_that_may_not_be_entered_says_so(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret").chmod(0)
    # The super-user enters all the same, unless that power is given up.
    command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        for name in ("secret", "secret/trainer_state.json"):
            words = [*command, sys.executable, "-m", "vario.progress", str(tmp_path / name)]
            result = subprocess.run(words, capture_output=True, text=True)
            assert (result.returncode, result.stderr.count("\n")) == (2, 1)
            assert "Permission denied" in result.stderr
    finally:
        (tmp_path / "secret").chmod(0o755)


# -- text of other systems -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_written_on_windows_are_read(capsys, tmp_path, encoding):
    text = "step,train_loss\r\n1,2.0\r\n2,1.0\r\n"
    (tmp_path / "metrics.csv").write_bytes(text.encode(encoding))
    assert answer(capsys, tmp_path)["loss"]["count"] == 2
    console = sample("trainer_console_plain.log").read_text()
    (tmp_path / "console.txt").write_bytes(console.replace("\n", "\r\n").encode(encoding))
    plain = answer(capsys, sample("trainer_console_plain.log"))
    assert answer(capsys, tmp_path / "console.txt")["loss"] == plain["loss"]


def test_a_csv_file_that_breaks_the_rules_is_refused(capsys, tmp_path):
    (tmp_path / "metrics.csv").write_text("step,train_loss\n1," + "9" * 200_000 + "\n")
    assert "is not valid CSV" in refusal(capsys, tmp_path)


def test_colours_within_a_line_do_not_hide_it(capsys, tmp_path):
    line = "\x1b[32miteration\x1b[0m \x1b[1m{}\x1b[0m/ 9 | lm loss: 2.0 |\n"
    (tmp_path / "train.log").write_text(line.format(1) + line.format(2))
    assert answer(capsys, tmp_path)["step"] == 2


def test_of_ranks_that_write_into_one_log_the_lowest_is_heard(capsys, tmp_path):
    line = (
        "[2026-01-01 00:00:{:02d},000] [INFO] [logging.py:96:log_dist] [Rank {}] step={}, skipped=0, lr=[0.1], mom=[]\n"
    )
    told = [(1, 0, 10), (1, 1, 10), (2, 0, 20), (3, 0, 30), (3, 1, 20)]
    (tmp_path / "ds.log").write_text("".join(line.format(*each) for each in told))
    found = answer(capsys, tmp_path)
    assert (found["step"], note_kinds(found)) == (30, [])
