"""Which checkpoint of an output folder tells where the run is."""

import os

import pytest

from trainer_outputs import LONG_AGO, age, answer, note_kinds, put, refusal, sample, write_state


def read_from(found, folder):
    return os.path.relpath(found["path"], folder)


def test_the_newest_checkpoint_is_read(capsys, tmp_path):
    put(tmp_path, "checkpoint-8", "normal__checkpoint-8")
    put(tmp_path, "checkpoint-24", "normal__checkpoint-24", LONG_AGO + 40)
    found = answer(capsys, "-o", tmp_path, "--latest")
    assert (found["step"], read_from(found, tmp_path)) == (24, "checkpoint-24/trainer_state.json")
    assert found["notes"] == []


def test_speed_and_remaining_time_come_from_the_times_of_checkpoints(capsys, tmp_path):
    put(tmp_path, "checkpoint-8", "normal__checkpoint-8")
    put(tmp_path, "checkpoint-24", "normal__checkpoint-24", LONG_AGO + 40)
    speed = answer(capsys, tmp_path)["speed"]
    assert speed["seconds_per_step"] == 2.5
    assert speed["source"] == "checkpoint_times"
    assert speed["remaining_seconds"] == 6 * 2.5
    assert answer(capsys, tmp_path / "checkpoint-24")["speed"] == speed
    assert answer(capsys, tmp_path / "checkpoint-8")["speed"] is None


def test_the_file_of_the_folder_itself_wins_when_it_goes_as_far(capsys, tmp_path):
    put(tmp_path, "checkpoint-24", "normal__checkpoint-24")
    put(tmp_path, "", "normal__root_after_save_state", LONG_AGO + 5)
    assert answer(capsys, tmp_path)["step"] == 30


def test_a_checkpoint_after_an_interruption_wins_over_the_file_of_the_folder(capsys, tmp_path):
    put(tmp_path, "", "resume__1_interrupted_root")
    put(tmp_path, "checkpoint-30", "resume__2_checkpoint-30", LONG_AGO + 100)
    found = answer(capsys, tmp_path)
    assert (found["step"], note_kinds(found)) == (30, [])


def test_checkpoints_left_over_from_an_earlier_run_are_told_from_the_live_one(capsys, tmp_path):
    put(tmp_path, "checkpoint-30", "restart_same_dir__stale_checkpoint-30")
    put(tmp_path, "checkpoint-12", "restart_same_dir__newest_checkpoint-12", LONG_AGO + 900)
    found = answer(capsys, "-o", tmp_path, "-l")
    assert found["step"] == 12
    assert found["notes"] == [{"kind": "stale_checkpoints", "about": {"steps": "30", "live_step": 12}}]
    # The stale one's time says nothing about the speed of this run.
    assert found["speed"] is None


def test_the_stale_file_of_the_folder_itself_is_passed_over(capsys, tmp_path):
    put(tmp_path, "", "resume__2_root")
    put(tmp_path, "checkpoint-12", "restart_same_dir__newest_checkpoint-12", LONG_AGO + 900)
    found = answer(capsys, tmp_path)
    assert (found["step"], note_kinds(found)) == (12, ["stale_root"])


def test_a_new_run_that_ended_before_its_first_checkpoint_is_the_live_one(capsys, tmp_path):
    put(tmp_path, "checkpoint-30", "restart_same_dir__stale_checkpoint-30")
    put(tmp_path, "", "diverge__lr3", LONG_AGO + 900)
    assert answer(capsys, tmp_path)["step"] == 40


def test_copied_checkpoints_with_scrambled_times_are_sorted_by_their_histories(capsys, tmp_path):
    put(tmp_path, "checkpoint-8", "normal__checkpoint-8", LONG_AGO + 900)
    put(tmp_path, "checkpoint-24", "normal__checkpoint-24", LONG_AGO)
    found = answer(capsys, tmp_path)
    assert (found["step"], found["notes"], found["speed"]) == (24, [], None)


def test_merged_unfinished_and_misnamed_folders_are_no_checkpoints(capsys, tmp_path):
    put(tmp_path, "checkpoint-8", "normal__checkpoint-8")
    put(tmp_path, "checkpoint-100-merged", "normal__checkpoint-24", LONG_AGO + 1)
    put(tmp_path, "checkpoint-50", "normal__checkpoint-24", LONG_AGO + 2)
    (tmp_path / "checkpoint-200").mkdir()
    found = answer(capsys, tmp_path)
    assert found["step"] == 8
    assert {(note["kind"], *note["about"].values()) for note in found["notes"]} >= {
        ("unfinished_checkpoints", "200"),
        ("misnamed_checkpoint", "checkpoint-50", 24),
    }


def test_a_torn_newest_checkpoint_falls_back_to_the_one_before_and_says_so(capsys, tmp_path):
    put(tmp_path, "checkpoint-8", "normal__checkpoint-8")
    torn = put(tmp_path, "checkpoint-24", "normal__checkpoint-24")
    torn.write_text(torn.read_text()[:500])
    age(torn, LONG_AGO + 60)
    found = answer(capsys, tmp_path)
    assert (found["step"], note_kinds(found)[0]) == (8, "unreadable_checkpoint")


def test_nothing_but_a_torn_checkpoint_is_exit_code_2(capsys, tmp_path):
    torn = put(tmp_path, "checkpoint-24", "normal__checkpoint-24")
    torn.write_text("{")
    age(torn)
    assert "truncated or not valid JSON" in refusal(capsys, tmp_path)


def test_nothing_but_an_unfinished_checkpoint_is_exit_code_2(capsys, tmp_path):
    (tmp_path / "checkpoint-24").mkdir()
    assert "checkpoint-24 has no trainer_state.json yet" in refusal(capsys, tmp_path)


def test_a_checkpoint_is_found_by_its_name_in_the_output_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "outputs", "checkpoint-8", "normal__checkpoint-8")
    assert answer(capsys, "-c", "checkpoint-8")["step"] == 8
    assert answer(capsys, "--checkpoint", "outputs/checkpoint-8")["step"] == 8


def test_a_mistyped_checkpoint_is_answered_with_the_nearest(capsys, tmp_path):
    put(tmp_path, "checkpoint-24", "normal__checkpoint-24")
    assert "Did you mean 'checkpoint-24'?" in refusal(capsys, "-c", tmp_path / "checkpoint-42")


def test_searches_over_hyperparameters_are_found_one_level_below(capsys, tmp_path):
    put(tmp_path, "run-1/checkpoint-8", "normal__checkpoint-8")
    put(tmp_path, "run-2/checkpoint-12", "restart_same_dir__newest_checkpoint-12", LONG_AGO + 9)
    found = answer(capsys, tmp_path)
    assert (found["step"], note_kinds(found)) == (12, ["others_found"])


@pytest.mark.parametrize("step", [8, 24])
def test_a_named_checkpoint_is_read_though_there_are_later_ones(capsys, tmp_path, step):
    for number in (8, 24):
        put(tmp_path, f"checkpoint-{number}", f"normal__checkpoint-{number}")
    assert answer(capsys, tmp_path / f"checkpoint-{step}")["step"] == step


def test_checkpoints_with_an_empty_history_still_tell_the_step(capsys, tmp_path):
    put(tmp_path, "checkpoint-3", "empty_history__checkpoint-3")
    write_state(tmp_path / "checkpoint-6" / "trainer_state.json", [], LONG_AGO + 6, global_step=6, max_steps=6)
    found = answer(capsys, tmp_path)
    assert (found["step"], found["speed"]["seconds_per_step"]) == (6, 2)


def test_a_state_under_any_name_is_known_by_its_content(capsys, tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(sample("normal__checkpoint-8.json").read_text())
    assert answer(capsys, path)["format"] == "trainer_state"
