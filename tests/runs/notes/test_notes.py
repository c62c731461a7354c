"""Notes on runs and the trash: beside the runs, never in them, through no link."""

import json
import os
import shutil
import threading

import pytest

import vario
from vario.core.errors import ConfigError, RunError, RunNotFound
from vario.runs.notes.keeping import move_to_trash, restore, trashed, write_note
from vario.runs.notes.notes import RunNote, note_of, read_notes


@pytest.fixture
def run(sweep, tmp_path):
    return shutil.copytree(sweep / "lr0.1-w4-s0", tmp_path / "runs" / "one")


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_note_is_kept_beside_the_run(run):
    before = files(run)
    write_note(run, {"title": "the first", "tags": ["good", " good", "", "slow"], "is_starred": True})
    note = write_note(run, {"text": "fine"})
    assert note == RunNote("the first", ("good", "slow"), "fine", True, False)
    assert note_of(read_notes(run.parent), "one", vario.open_run(run).id) == note
    assert files(run) == before
    assert sorted(os.listdir(run.parent)) == [".vario", "one"]


def test_a_new_run_in_a_folder_of_that_name_starts_without_one(run, sweep):
    write_note(run, {"text": "about the old one"})
    shutil.rmtree(run)
    shutil.copytree(sweep / "lr0.3-w4-s0", run)
    assert note_of(read_notes(run.parent), "one", vario.open_run(run).id) == RunNote()


@pytest.mark.parametrize(
    "changes", [{"stars": True}, {"is_starred": 1}, {"tags": "good"}, {"text": "x" * 30_000}, {"title": None}]
)
def test_what_cannot_be_a_note_is_refused(run, changes):
    with pytest.raises(ConfigError):
        write_note(run, changes)
    assert read_notes(run.parent) == {}


def test_the_trash_and_back(run, sweep):
    write_note(run, {"text": "kept"})
    moved = move_to_trash(run)
    assert not run.exists()
    assert vario.open_run(moved).last_step == 15
    shutil.copytree(sweep / "lr0.3-w4-s0", run)
    assert move_to_trash(run).name == "one-2"
    assert trashed(run.parent) == ["one", "one-2"]
    assert restore(run.parent, "one") == run
    assert note_of(read_notes(run.parent), "one", vario.open_run(run).id).text == "kept"
    with pytest.raises(RunNotFound, match="In it: one-2"):
        restore(run.parent, "one")
    for name in ("../one", "..", ""):
        with pytest.raises(ConfigError):
            restore(run.parent, name)


def test_a_run_that_trains_is_not_deleted(tmp_path):
    from torch import nn

    with vario.watch(nn.Linear(2, 1), directory=str(tmp_path), name="now"), pytest.raises(RunError, match="training"):
        move_to_trash(tmp_path / "now")
    assert (tmp_path / "now").is_dir()


def test_no_link_is_followed(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run.parent / ".vario").symlink_to(elsewhere)
    with pytest.raises(RunError, match="cannot be written"):
        write_note(run, {"text": "x"})
    with pytest.raises(RunError, match="cannot be written"):
        move_to_trash(run)
    assert os.listdir(elsewhere) == []
    assert read_notes(run.parent) == {}
    (run.parent / "link").symlink_to(run)
    with pytest.raises(RunError, match="is a link"):
        move_to_trash(run.parent / "link")


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": 3}', '{"runs": {"one": {"tags": "x"}}}', '{"format": 9}'])
def test_a_damaged_file_hides_no_run_and_is_not_overwritten(run, text):
    (run.parent / ".vario").mkdir()
    file = run.parent / ".vario" / "notes.json"
    file.write_text(text)
    assert read_notes(run.parent) == {}
    with pytest.raises(RunError):
        write_note(run, {"text": "x"})
    assert file.read_text() == text


def test_two_writers_at_once_lose_nothing(run, sweep):
    others = [shutil.copytree(sweep / "lr0.1-w4-s1", run.parent / f"run{number}") for number in range(8)]
    threads = [threading.Thread(target=write_note, args=(other, {"text": other.name})) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: note.text for name, (_, note) in read_notes(run.parent).items()} == {
        other.name: other.name for other in others
    }
    assert json.loads((run.parent / ".vario" / "notes.json").read_text())["format"] == 1
