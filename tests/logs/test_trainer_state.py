import json
import math

import pytest

from trainer_outputs import SAMPLES, age, answer, note_kinds, put, refusal, sample, write_state
from vario.core.errors import RunCorrupt
from vario.logs.trainer_state import read_state

ALL = sorted(path.name for path in SAMPLES.glob("*.json"))


@pytest.mark.parametrize("name", ALL)
def test_every_real_file_is_read_whole(name):
    state = json.loads(sample(name).read_text())
    history = read_state(sample(name))
    rows = [row for row in state["log_history"] if "loss" in row]
    assert history.loss.steps.tolist() == [row["step"] for row in rows]
    assert history.loss.values.tolist() == pytest.approx([row["loss"] for row in rows], nan_ok=True, abs=0)
    assert history.loss.epochs.tolist() == [row["epoch"] for row in rows]
    assert (history.step, history.epoch) == (state["global_step"], state["epoch"])


def test_an_endless_stream_has_no_number_of_epochs(capsys):
    found = answer(capsys, sample("iterable_max_steps.json"))
    assert (found["num_epochs"], found["epoch_percent"]) == (None, None)
    assert (found["step"], found["max_steps"], found["step_percent"]) == (10, 10, 100)


def test_the_final_row_is_no_point_of_a_curve(capsys):
    found = answer(capsys, sample("normal__root_after_save_state.json"))
    assert found["loss"]["count"] == 30
    assert found["runtime_seconds"] == 4.1176
    assert "train_runtime" not in found["others"]


def test_rows_of_tokens_have_a_runtime_and_are_not_the_end(capsys):
    found = answer(capsys, sample("accum4_tokens_seen.json"))
    assert found["loss"]["count"] == 4
    assert found["speed"]["source"] == "train_runtime"
    assert found["others"]["num_input_tokens_seen"] == 1408


def test_an_evaluation_before_training_stands_at_step_0():
    curve = read_state(sample("eval_best__root_after_evaluate.json")).curves["eval_loss"]
    assert curve.steps[0] == 0
    # `evaluate()` after training repeats the last step: one point, not two.
    assert curve.steps.tolist().count(40) == 1


def test_each_evaluation_set_has_its_own_numbers(capsys):
    found = answer(capsys, sample("eval_two_sets__root.json"))
    assert [each["name"] for each in found["evaluation"]] == ["eval_code_loss", "eval_wiki_loss"]


def test_the_best_checkpoint_is_told(capsys):
    best = answer(capsys, sample("eval_best__checkpoint-40.json"))["best"]
    assert best == {"value": 2.786400318145752, "step": 40, "checkpoint": "outputs/checkpoint-40"}


@pytest.mark.parametrize("name", ["trl_sft_lora", "trl_dpo", "trl_grpo"])
def test_the_numbers_of_trl_are_kept_under_their_names(capsys, name):
    row = json.loads(sample(f"{name}__checkpoint-4.json").read_text())["log_history"][-1]
    found = answer(capsys, sample(f"{name}__checkpoint-4.json"))
    known = {"loss", "learning_rate", "grad_norm", "step", "epoch"}
    assert found["others"] == {key: value for key, value in row.items() if key not in known}
    assert found["loss"]["last"] == row["loss"]


def test_rows_of_a_users_own_callback_are_numbers_too(capsys):
    found = answer(capsys, sample("custom_rows_bf16.json"))
    assert found["others"]["gpu_mem_gb"] == 1.5
    assert found["loss"]["count"] == 2


def test_an_empty_history_is_no_loss_and_not_a_loss_of_zero(capsys):
    found = answer(capsys, sample("empty_history__checkpoint-3.json"))
    assert (found["loss"], found["learning_rate"], found["grad_norm"], found["trend"]) == (None, None, None, None)
    assert (found["step"], found["step_percent"]) == (3, 50)


def test_missing_null_and_text_values(capsys, tmp_path):
    rows = [
        {"loss": "3.5", "step": 1, "epoch": 0.1},
        {"loss": None, "learning_rate": 0.1, "step": 2, "epoch": 0.2},
        {"loss": 3.0, "step": "3", "note": "text", "flag": True},
        {"loss": 2.9, "epoch": 0.4},
    ]
    found = answer(capsys, write_state(tmp_path / "trainer_state.json", rows, global_step=3))
    assert (found["loss"]["count"], found["loss"]["first"], found["loss"]["last"]) == (2, 3.5, 3)
    assert found["grad_norm"] is None
    assert found["others"] == {}
    assert found["notes"] == [{"kind": "rows_without_step", "about": {"count": 1}}]


def test_a_step_that_goes_back_is_shown_once_as_it_was_later(capsys, tmp_path):
    first = [{"loss": 5.0 - step / 10, "eval_loss": 9.0, "step": step} for step in range(1, 25)]
    second = [{"loss": 1.0 + step / 100, "step": step} for step in range(21, 31)]
    path = write_state(tmp_path / "trainer_state.json", first + second)
    history = read_state(path)
    assert history.loss.steps.tolist() == list(range(1, 31))
    assert history.loss.values[19] == 3.0
    assert history.loss.values[20] == 1.21
    assert history.curves["eval_loss"].steps[-1] == 20
    assert answer(capsys, path)["notes"] == [{"kind": "steps_went_back", "about": {"from": 24, "to": 21}}]


def test_training_that_went_on_after_a_final_row_is_not_finished(tmp_path):
    rows = [{"loss": 3.0, "step": 1}, {"train_loss": 3.0, "train_runtime": 1.0, "step": 1}, {"loss": 2.0, "step": 2}]
    assert read_state(write_state(tmp_path / "trainer_state.json", rows)).is_finished is False
    assert read_state(write_state(tmp_path / "trainer_state.json", rows[:2])).is_finished is True


def test_a_run_that_ended_before_its_last_step_says_so(capsys):
    found = answer(capsys, sample("resume__1_interrupted_root.json"))
    assert found["is_finished"] is True
    assert note_kinds(found) == ["ended_early"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ('{"log_history": [{"loss": 1.0, "st', "truncated or not valid JSON"),
        ('{"model_type": "llama"}', "not a Trainer state"),
        ("[1, 2]", "not a Trainer state"),
        ("\x00\x01\xff", "truncated or not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(capsys, tmp_path, content, said):
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    age(path)
    assert said in refusal(capsys, path)
    assert str(path) in refusal(capsys, tmp_path)


def test_a_half_written_file_gets_a_second_chance(tmp_path):
    whole = sample("normal__checkpoint-8.json").read_text()
    path = tmp_path / "trainer_state.json"
    path.write_text(whole[: len(whole) // 2])
    pauses = []

    def finish_writing(seconds):
        pauses.append(seconds)
        path.write_text(whole)

    assert read_state(path, pause=finish_writing).step == 8
    assert len(pauses) == 1


def test_an_old_torn_file_is_not_waited_for(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [')
    age(path)
    with pytest.raises(RunCorrupt):
        read_state(path, pause=lambda _: pytest.fail("waited"))


def test_numbers_beyond_all_measure_do_no_harm(capsys, tmp_path):
    rows = [{"loss": 10**400, "step": 1}, {"loss": 1e308, "step": 2}, {"loss": math.inf, "step": 3}]
    found = answer(capsys, write_state(tmp_path / "trainer_state.json", rows, max_steps=0))
    assert (found["loss"]["count"], found["loss"]["last"], found["max_steps"]) == (2, "inf", None)


def test_the_written_time_is_that_of_the_file(capsys, tmp_path):
    assert answer(capsys, put(tmp_path, written=1_600_000_000.0))["written"] == 1_600_000_000.0
