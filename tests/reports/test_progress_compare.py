"""Several checkpoints or runs side by side."""

import pytest

from trainer_outputs import answer, put, refusal, sample, write_state
from vario.cli import main


def losses(start, stop, base=0.0):
    return [{"loss": base + 10 - step / 10, "epoch": step / 10, "step": step} for step in range(start, stop)]


def test_checkpoints_of_one_run_are_told_to_be_one_run(capsys, tmp_path):
    for step in (8, 24):
        put(tmp_path, f"checkpoint-{step}", f"normal__checkpoint-{step}")
    found = answer(capsys, "--compare", tmp_path / "checkpoint-8", tmp_path / "checkpoint-24")
    first, second = found["entries"]
    assert (first["name"], first["part_of"], second["part_of"]) == ("checkpoint-8", "checkpoint-24", None)
    assert (first["loss"], second["loss"]) == (3.672750949859619, 2.967904806137085)
    assert (found["lines"], found["differences"]) == (["checkpoint-24"], [])


def test_an_interrupted_and_a_resumed_run_are_one(capsys):
    names = ("resume__1_interrupted_root.json", "resume__2_root.json", "resume__2_checkpoint-30.json")
    found = answer(capsys, "--compare", *map(sample, names))
    assert found["lines"] == ["resume__2_root.json"]


def test_different_runs_are_compared_where_they_differ(capsys):
    one, other = (
        sample("restart_same_dir__newest_checkpoint-12.json"),
        sample("restart_same_dir__stale_checkpoint-30.json"),
    )
    found = answer(capsys, "--compare", one, other)
    # Both start from the same weights, so the first loss is the same; then the rates differ.
    assert (found["axis"], found["same_until"], found["differ_from"]) == ("step", 1, 2)
    places = [row["at"] for row in found["differences"]]
    assert (places[0], places[-1]) == (2, 12)
    for row in found["differences"]:
        assert row["differences"] == pytest.approx([0, row["losses"][1] - row["losses"][0]])
    assert found["differences"][-1]["differences"][1] < -0.3


def test_a_branch_shares_its_beginning(capsys, tmp_path):
    shared = losses(1, 11)
    one = write_state(tmp_path / "a" / "trainer_state.json", shared + losses(11, 31))
    other = write_state(tmp_path / "b" / "trainer_state.json", shared + losses(11, 21, base=1.0))
    found = answer(capsys, "--compare", one.parent, other.parent)
    assert (found["same_until"], found["differ_from"]) == (10, 11)
    assert [row["at"] for row in found["differences"]][-1] == 20
    assert found["differences"][0]["differences"][1] == pytest.approx(1.0)


def test_runs_without_common_steps_are_compared_by_epoch(capsys, tmp_path):
    one = write_state(tmp_path / "a" / "trainer_state.json", losses(1, 11))
    later = [{**row, "step": row["step"] + 1000} for row in losses(1, 11, base=2.0)]
    other = write_state(tmp_path / "b" / "trainer_state.json", later)
    found = answer(capsys, "--compare", one, other)
    assert found["axis"] == "epoch"
    assert {round(row["differences"][1], 6) for row in found["differences"]} == {2.0}


def test_rows_at_other_steps_are_read_off_the_line_between(capsys, tmp_path):
    one = write_state(tmp_path / "a" / "trainer_state.json", [{"loss": 4.0, "step": 2}, {"loss": 2.0, "step": 6}])
    other = write_state(tmp_path / "b" / "trainer_state.json", [{"loss": 9.0, "step": 1}, {"loss": 1.0, "step": 5}])
    found = answer(capsys, "--compare", one, other)
    assert [row["losses"] for row in found["differences"]] == [[4.0, 7.0], [2.5, 1.0]]


def test_nothing_in_common_is_said(capsys, tmp_path):
    one = write_state(tmp_path / "a" / "trainer_state.json", [{"loss": 4.0, "step": 2}])
    other = write_state(tmp_path / "b" / "trainer_state.json", [{"loss": 9.0, "step": 100}])
    assert main(["progress", "--compare", str(one), str(other), "--lang", "en"]) == 0
    assert "share neither steps nor epochs" in capsys.readouterr().out


def test_names_are_as_long_as_it_takes_to_tell_them_apart(capsys, tmp_path):
    for name in ("x", "y"):
        put(tmp_path, f"{name}/checkpoint-8", "normal__checkpoint-8")
    found = answer(capsys, "--compare", tmp_path / "x" / "checkpoint-8", tmp_path / "y" / "checkpoint-8")
    assert [entry["name"] for entry in found["entries"]] == ["x/checkpoint-8", "y/checkpoint-8"]


def test_different_formats_can_be_compared(capsys):
    found = answer(capsys, "--compare", sample("lightning_logs"), sample("trl_sft_lora__checkpoint-4.json"))
    assert found["axis"] == "step"


def test_comparing_needs_no_outputs_folder_and_fails_when_one_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "checkpoint-8", "normal__checkpoint-8")
    assert main(["progress", "--compare", "checkpoint-8"]) == 0
    capsys.readouterr()
    assert "no such file or folder" in refusal(capsys, "--compare", "checkpoint-8", "checkpoint-9999/nothing")


def test_a_checkpoint_compared_with_itself_or_its_copy_holds_the_same_history(capsys, tmp_path):
    one, copy = (write_state(tmp_path / name / "trainer_state.json", losses(1, 11)).parent for name in ("a", "copy"))
    assert main(["progress", "--compare", str(one), str(one), "--lang", "en"]) == 0
    assert "a has the same history as a.\n" in capsys.readouterr().out
    assert main(["progress", "--compare", str(one), str(copy), "--lang", "zh"]) == 0
    assert "copy 和 a 历史相同。\n" in capsys.readouterr().out
    assert main(["progress", "--compare", str(one), "--lang", "en"]) == 0
    assert "same history" not in capsys.readouterr().out


def test_the_filtered_loss_of_a_broken_run_is_not_compared_as_a_number(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")  # the table is cut to the terminal
    words = ["--compare", str(sample("normal__checkpoint-24.json")), str(sample("nan__filter_on.json"))]
    assert answer(capsys, *words)["entries"][1]["loss"] == "nan"
    assert main(["progress", *words, "--lang", "en"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("nan__filter_on"))
    assert row.split()[3:5] == ["nan", "-"]


def test_many_runs_are_compared_in_a_table_that_is_not_wide(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folders = [
        str(write_state(tmp_path / f"run{n}" / "trainer_state.json", losses(1, 31, n)).parent) for n in range(12)
    ]
    assert main(["progress", "--compare", *folders, "--lang", "en"]) == 0
    table = capsys.readouterr().out.partition("Where they differ\n")[2].splitlines()
    assert len(table) == 13
    assert table[12].split() == ["run11", "20.9", "20.5", "20.1", "19.7", "19.2", "18.8", "18.4", "18"]
