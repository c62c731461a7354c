"""The first of several ranks to come decides for all of one start, and for that one only."""

import errno
import os
import threading
import time

import pytest

from vario.store.rank_agreement import agree, process_age


def choice(name):
    return lambda known: {"by": name, "nth": known.nth}


def ask(folder, rank, **options):
    return agree(folder, "series", rank, choice(f"rank {rank}"), **options)


def test_the_first_decides_and_the_others_follow(tmp_path):
    entries = [ask(tmp_path, rank) for rank in (2, 0, 1)]
    assert [entry.content["by"] for entry in entries] == ["rank 2"] * 3
    assert [entry.number for entry in entries] == [0, 0, 0]


def test_ranks_that_come_at_the_same_moment_agree(tmp_path):
    found = {}
    gate = threading.Barrier(12)

    def come(rank):
        gate.wait()
        found[rank] = ask(tmp_path, rank)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(entry.number, entry.content["by"]) for entry in found.values()}) == 1
    assert os.listdir(tmp_path) == ["series-0.json"]


def test_what_is_older_than_this_process_is_of_an_earlier_start(tmp_path):
    old = ask(tmp_path, 0)
    before = old.written - process_age(os.getpid()) - 1
    os.utime(tmp_path / "series-0.json", (before, before))
    assert ask(tmp_path, 1).number == 1
    assert ask(tmp_path, 0).number == 1


def test_the_clock_of_the_host_has_no_part_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert ask(tmp_path, 0).number == ask(tmp_path, 1).number == 0


def test_each_further_monitor_takes_the_next_entry_also_behind_a_rank_that_is_ahead(tmp_path):
    assert [ask(tmp_path, 0).number for _ in range(3)] == [0, 1, 2]
    behind = [ask(tmp_path, 1) for _ in range(4)]
    assert [entry.number for entry in behind] == [0, 1, 2, 3]
    assert [entry.content["by"] for entry in behind] == ["rank 0"] * 3 + ["rank 1"]
    assert [entry.content["nth"] for entry in behind] == [0, 1, 2, 3]


def test_entries_of_other_jobs_are_passed_over(tmp_path):
    ask(tmp_path, 0)
    own = ask(tmp_path, 1, is_ours=lambda content: content["by"] != "rank 0")
    assert (own.number, own.content["by"]) == (1, "rank 1")


def test_a_file_that_is_still_being_written_is_waited_for(tmp_path):
    (tmp_path / "series-0.json").write_text('{"by": "slo')
    finish = threading.Timer(0.02, (tmp_path / "series-0.json").write_text, ['{"by": "slow"}'])
    finish.start()
    assert ask(tmp_path, 0, poll_seconds=0.001).content == {"by": "slow"}
    finish.join()


def test_a_file_that_is_never_finished_is_given_up(tmp_path):
    (tmp_path / "series-0.json").write_text("")
    assert ask(tmp_path, 0, poll_seconds=0.001, limit_seconds=0.01).number == 1


def test_a_disk_without_hard_links_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refuse)
    assert [ask(tmp_path, rank).content["by"] for rank in (1, 0)] == ["rank 1", "rank 1"]


def test_a_disk_that_loses_files_is_an_error_not_an_endless_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: None)
    with pytest.raises(OSError, match="cannot be found afterwards"):
        ask(tmp_path, 0)
