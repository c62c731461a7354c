"""TensorBoard event files by real writers: torch's own, and vario's."""

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from trainer_outputs import LONG_AGO, answer, note_kinds, put, refusal
from vario.core.event_file import EventFile, _record
from vario.logs.finding import find_history

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def write(folder, steps, base=0.0, **options):
    with SummaryWriter(folder) as writer:
        for step in steps:
            writer.add_scalar("train/loss", base + 1 / step, step, walltime=1000 + 2.5 * step, **options)
            writer.add_scalar("train/learning_rate", 0.5, step, walltime=1000 + 2.5 * step, **options)
            writer.add_scalar("train/epoch", step / 10, step, walltime=1000 + 2.5 * step, **options)
        writer.add_scalar("eval/loss", 0.75, steps[-1], walltime=2000, **options)
        writer.add_text("note", "a text is no number")
        writer.add_histogram("weights", np.arange(10.0), 1)
        writer.add_image("picture", np.zeros((3, 4, 4)), 1)


@pytest.mark.parametrize("options", [{}, {"new_style": True}, {"double_precision": True}], ids=str)
def test_scalars_of_torchs_writer_are_read(capsys, tmp_path, options):
    write(tmp_path / "runs" / "Nov15", range(1, 21), **options)
    found = answer(capsys, tmp_path)
    assert (found["format"], found["step"], found["epoch"]) == ("tensorboard", 20, pytest.approx(2))
    assert found["loss"]["last"] == pytest.approx(0.05)
    assert found["learning_rate"]["last"] == 0.5
    assert [(each["name"], each["last"]) for each in found["evaluation"]] == [("eval_loss", 0.75)]
    assert found["speed"] == {
        "seconds_per_step": pytest.approx(2.5),
        "source": "event_times",
        "num_intervals": 19,
        "remaining_seconds": None,
    }
    assert found["others"] == {}


def test_a_restarted_job_has_two_files_in_one_folder(capsys, tmp_path):
    for number, (steps, base) in enumerate([(range(1, 25), 0.0), (range(21, 31), 10.0)]):
        file = EventFile(tmp_path, started=1000.0 + number)
        for step in steps:
            file.add_scalars(["loss"], [base + step], step, time=1000.0 + step)
        file.close()
    history = find_history(tmp_path)
    assert history.loss.steps.tolist() == list(range(1, 31))
    assert history.loss.values.tolist() == [*range(1, 21), *range(31, 41)]
    assert note_kinds(answer(capsys, tmp_path)) == ["steps_went_back"]


def continue_checkpoint(folder, shift):
    """A checkpoint of step 24 of 30, and newer event files whose losses are shifted by so much."""
    known = find_history(put(folder, "checkpoint-24", "normal__checkpoint-24")).loss
    file = EventFile(folder / "runs" / "now", started=LONG_AGO)
    for step in range(1, 29):
        loss = known.values[step - 1] if step <= 24 else 2.9
        file.add_scalars(["train/loss"], [loss + shift], step, time=LONG_AGO + 3 * step)
    file.close()


def test_event_files_with_the_same_losses_continue_a_checkpoint(capsys, tmp_path):
    continue_checkpoint(tmp_path, shift=0.0)
    found = answer(capsys, tmp_path)
    assert (found["format"], found["step"], found["max_steps"]) == ("trainer_state", 28, 30)
    assert found["speed"]["remaining_seconds"] == 2 * 3
    assert note_kinds(found) == ["joined"]


def test_newer_event_files_with_other_losses_are_another_run(capsys, tmp_path):
    continue_checkpoint(tmp_path, shift=0.5)
    found = answer(capsys, tmp_path)
    assert (found["format"], found["step"], found["max_steps"]) == ("tensorboard", 28, None)
    assert found["notes"][0]["kind"] == "older_run"
    assert found["notes"][0]["about"]["step"] == 24


def test_a_torn_or_damaged_end_costs_nothing_before_it(tmp_path):
    file = EventFile(tmp_path, started=5.0)
    for step in range(10):
        file.add_scalars(["loss"], [step], step, time=float(step))
    file.close()
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-7])
    assert find_history(file.path).loss.steps.tolist() == list(range(9))
    damaged = bytearray(whole)
    damaged[-8] ^= 1
    file.path.write_bytes(damaged)
    assert find_history(tmp_path).loss.steps.tolist() == list(range(9))


def test_a_file_without_scalars_is_refused(capsys, tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_text("note", "nothing to plot")
    assert "no TensorBoard scalar" in refusal(capsys, tmp_path)


def test_negative_steps_are_what_they_are(tmp_path):
    file = EventFile(tmp_path, started=5.0)
    file.add_scalars(["loss"], [1.0], -1, time=1.0)
    file.close()
    assert find_history(tmp_path).loss.steps.tolist() == [-1]


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("lm loss", "loss"),
        ("Train/Samples/train_loss", "loss"),
        ("reduced_train_loss", "loss"),
        ("train/loss", "loss"),
        ("learning-rate", "learning_rate"),
        ("lr-AdamW/pg1", "learning_rate"),
        ("Train/Samples/lr", "learning_rate"),
        ("grad-norm", "grad_norm"),
        ("lm loss validation", "eval_loss"),
        ("val/loss", "eval_loss"),
        ("validation_accuracy", "eval_accuracy"),
        ("my/own", "my/own"),
    ],
)
def test_what_others_call_these_numbers(tmp_path, tag, name):
    file = EventFile(tmp_path, started=5.0)
    file.add_scalars([tag], [1.0], 1, time=1.0)
    file.close()
    assert list(find_history(tmp_path).curves) == [name]


def test_records_of_another_kind_are_refused(capsys, tmp_path):
    # A TFRecord file may hold anything: here a message that no event could be.
    path = tmp_path / "x.tfevents.1"
    path.write_bytes(_record(b"\x0b\x0c"))
    assert "not TensorBoard events" in refusal(capsys, path)
