import pytest
from made_csv import folder, write

from vario.compat.msprobe.csv_folders import find_files, find_folders, rank_folders
from vario.core.errors import ConfigError
from vario.core.event_file import EventFile


def tags(found):
    return [entry.path.name.partition("-rank")[0] for entry in found]


def test_folders_come_by_rank_and_then_by_start(tmp_path):
    folder(tmp_path, rank=10, tag="Dec03_21-34-40")
    folder(tmp_path, rank=2, tag="Dec03_21-34-41")
    folder(tmp_path, rank=2, tag="Dec03_21-34-40")
    (tmp_path / "anomaly_detected").mkdir()
    (tmp_path / "notes.txt").write_text("")
    found = find_folders(tmp_path)
    assert [entry.rank for entry in found] == [2, 2, 10]
    assert tags(found) == ["Dec03_21-34-40", "Dec03_21-34-41", "Dec03_21-34-40"]


def test_both_ends_of_a_range_belong_to_it(tmp_path):
    for second in range(5):
        folder(tmp_path, tag=f"Dec03_21-34-4{second}")
    found = find_folders(tmp_path, "Dec03_21-34-41", "Dec03_21-34-43")
    assert tags(found) == ["Dec03_21-34-41", "Dec03_21-34-42", "Dec03_21-34-43"]


def test_a_range_may_be_open_at_either_end(tmp_path):
    for second in range(3):
        folder(tmp_path, tag=f"Dec03_21-34-4{second}")
    assert len(find_folders(tmp_path, time_start="Dec03_21-34-41")) == 2
    assert len(find_folders(tmp_path, time_end="Dec03_21-34-40")) == 1


def test_the_29th_of_february_is_a_day(tmp_path):
    folder(tmp_path, tag="Feb29_10-00-00", changed=(2024, 2, 29, 12))
    folder(tmp_path, tag="Mar01_10-00-00", changed=(2024, 3, 1, 12))
    (leap, march) = find_folders(tmp_path, "Feb29_00-00-00", "Mar01_23-59-59")
    assert (leap.started.year, leap.started.day, march.started.month) == (2024, 29, 3)


def test_a_29th_of_february_copied_in_another_year_keeps_its_leap_year(tmp_path):
    folder(tmp_path, tag="Feb29_10-00-00", changed=(2026, 5, 1))
    assert find_folders(tmp_path)[0].started.year == 2024


def test_a_range_may_go_across_new_year_and_the_old_year_comes_first(tmp_path):
    folder(tmp_path, tag="Jan01_00-10-00", changed=(2026, 1, 1, 1))
    folder(tmp_path, tag="Dec31_23-50-00", changed=(2025, 12, 31, 23, 59))
    folder(tmp_path, tag="Jun15_00-00-00", changed=(2025, 6, 15, 1))
    found = find_folders(tmp_path, "Dec31_00-00-00", "Jan02_00-00-00")
    assert tags(found) == ["Dec31_23-50-00", "Jan01_00-10-00"]


def test_a_run_that_lasts_over_new_year_began_in_the_old_one(tmp_path):
    folder(tmp_path, tag="Dec31_23-50-00", changed=(2026, 1, 5))
    assert find_folders(tmp_path)[0].started.year == 2025


def test_one_folder_of_a_rank_can_be_given_itself(tmp_path):
    path = folder(tmp_path, rank=3)
    assert [(entry.rank, entry.path) for entry in find_folders(path)] == [(3, path)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "monitor_path: 'nowhere' is not a folder"),
        ((".", "Dec3"), "time_start: expected a time like Dec03_21-34-40, got 'Dec3'"),
        ((".", None, "Feb30_00-00-00"), "time_end: expected a time like"),
        ((".", "Dec05_00-00-00", "Dec03_00-00-00"), "time_start: 'Dec05_00-00-00' is after the end, 'Dec03_00-00-00'"),
        ((".", "Jan05_00-00-00", "Jan06_00-00-00"), "It has Dec03_21-34-40-rank0-0a1b2c3d."),
        ((".", "Dec05_00-00-00"), "monitor_path: '.' has no folder started Dec05_00-00-00 or later. It has"),
        ((".", None, "Nov05_00-00-00"), "monitor_path: '.' has no folder started Nov05_00-00-00 or before. It has"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, monkeypatch, arguments, words):
    folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        find_folders(*arguments)
    assert words in str(refused.value)


def test_a_folder_without_folders_of_ranks_says_so(tmp_path):
    with pytest.raises(ConfigError) as refused:
        find_folders(tmp_path)
    assert str(refused.value) == f"monitor_path: '{tmp_path}' has no folder `<time>-rank<n>-<id>`"


@pytest.mark.parametrize("place", [".", "rank0/actv", "Dec03_21-34-40-csv2tensorboard_by_step/rank0/actv"])
def test_event_files_are_told_apart_from_nothing(tmp_path, place):
    EventFile(tmp_path / place, 0.0).close()
    with pytest.raises(ConfigError, match="contains event files, but import and convert read CSV"):
        find_folders(tmp_path)


def test_looking_for_a_rank_to_continue_finds_nothing_where_there_is_nothing(tmp_path):
    assert rank_folders(tmp_path / "nowhere", "Dec03_21-34-40", "Dec03_21-34-41") == []
    path = folder(tmp_path, rank=1)
    assert rank_folders(tmp_path, "Dec03_21-34-40", "Dec03_21-34-41") == [(1, path)]


def test_files_are_told_apart_by_kind_and_come_by_step(tmp_path):
    path = folder(tmp_path)
    write(path, "actv", [10, 9], micros=[0])
    write(path, "actv_grad", [9], micros=[0])
    write(path, "exp_avg_sq", [25], per_file=10)
    (path / "stack_info.csv").write_text("module_name,stack_info\n")
    files = find_files(find_folders(tmp_path))
    assert {kind: [(file.first_step, file.last_step) for file in found] for kind, found in files.items()} == {
        "actv": [(9, 9), (10, 10)],
        "actv_grad": [(9, 9)],
        "exp_avg_sq": [(20, 29)],
    }
