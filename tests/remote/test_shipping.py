"""`vario ship`: whatever happens on the way, the target becomes the same, byte for byte, and is never contradictory."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from remote_runs import TARGETS, begun, files, numbers, ship, write_large
from remote_servers import eventually, objects

import vario
from made_runs import ALERT, header, record
from synthetic import write_run
from vario.cli import main
from vario.core.errors import RunTaken
from vario.sinks.store import Store

VARIO = [sys.executable, "-m", "vario"]
WRITER = Path(__file__).with_name("slow_writer.py")


def test_a_run_arrives_once(tmp_path, elsewhere, capsys):
    here = write_run(tmp_path / "runs" / "one")
    assert ship(here, elsewhere.runs) == 0
    assert elsewhere.files("one") == files(here)
    assert "(8 files, " in capsys.readouterr().err
    assert ship(here, elsewhere.runs) == 0
    assert "(0 files, 0 B sent)" in capsys.readouterr().err


def test_a_shipper_that_is_killed_at_any_moment_is_finished_by_the_next(tmp_path, elsewhere):
    here = write_large(tmp_path / "runs" / "large")
    chance = random.Random(1)
    words = [*VARIO, "ship", str(here), elsewhere.runs, "--rate", "10MB"]
    num_killed = 0
    while num_killed < 4:
        before = elsewhere.num_bytes_up
        wanted = before + chance.randint(1, 3 << 20)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            eventually(lambda wanted=wanted: elsewhere.num_bytes_up >= wanted or process.poll() is not None)
            process.kill()
        num_killed += 1
    assert ship(here, elsewhere.runs) == 0
    assert elsewhere.files("large") == files(here)


def test_what_was_sent_before_a_break_is_not_sent_again(tmp_path, sftp):
    here = write_large(tmp_path / "runs" / "large")
    there = tmp_path / "there"
    whole = sum(map(len, files(here).values()))
    sftp.cut_after = whole // 2
    words = [*VARIO, "ship", str(here), sftp.host.url(there, sftp.port)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert "cannot be reached" in process.stderr.readline()
        sftp.restore()
        assert process.wait(60) == 0
        assert "can be reached again" in process.stderr.readline()
    assert files(there / "large") == files(here)
    assert sftp.num_bytes_up < whole * 1.3


def test_a_network_that_is_cut_again_and_again_delays_only(tmp_path, s3):
    here = write_large(tmp_path / "runs" / "large")
    words = [*VARIO, "ship", str(here), f"s3://{s3.bucket}/runs"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            s3.cut_after = s3.num_bytes_up + (1 << 20)
            eventually(lambda: s3.is_cut or process.poll() is not None)
            time.sleep(0.2)
            s3.restore()
        assert process.wait(60) == 0
    assert objects(s3, "runs/large/") == files(here)


def test_readers_never_see_a_status_that_rows_contradict(tmp_path, elsewhere):
    here = tmp_path / "runs" / "live"
    url = f"{elsewhere.runs}/live"
    here.parent.mkdir()
    words = [*VARIO, "ship", str(here), elsewhere.runs, "--follow"]
    looks = []
    with (
        subprocess.Popen([sys.executable, str(WRITER), str(here), "700"]) as writing,
        subprocess.Popen(words, stderr=subprocess.DEVNULL) as shipping,
    ):
        eventually(lambda: (here / "rank0" / "rank.json").is_file())
        run = eventually(lambda: open_if_there(url))
        while shipping.poll() is None:
            told = run.noted_rank_states[0].last_step
            rows = [run.reader(0, quantity).read(["step"], run.sessions) for quantity in ("gradient", "scalar")]
            steps = [sorted(set(table.column("step").to_pylist())) for table in rows]
            for found in steps:
                assert found == list(range(len(found))), "a step is missing"
                assert told is None or len(found) > told
            looks.append((told, len(steps[0]), run.state))
            time.sleep(0.1)
        assert (writing.wait(60), shipping.wait(60)) == (0, 0)
    assert len({found[1] for found in looks}) > 3, "it was seen to grow"
    eventually(lambda: run.state == "finished")
    assert numbers(url) == numbers(here)
    assert elsewhere.files("live") == files(here)


def open_if_there(url):
    try:
        return vario.open_run(url)
    except vario.RunError:
        return None


def test_a_training_that_is_killed_arrives_completely(tmp_path, sftp):
    here, there = tmp_path / "runs" / "live", tmp_path / "there"
    with subprocess.Popen([sys.executable, str(WRITER), str(here), "100000"]) as writing:
        eventually(lambda: (here / "rank0" / "rank.json").is_file())
        words = [*VARIO, "ship", str(here), sftp.host.url(there, sftp.port), "--follow", "--own-ranks"]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as shipping:
            eventually(lambda: (there / "live" / "rank0" / "gradient").is_dir())
            writing.kill()
            assert shipping.wait(60) == 0, "it ends by itself"
    assert files(there / "live") == files(here)
    told = json.loads((tmp_path / "runs" / ".shipping" / "live.json").read_text())
    assert told["state"] == "done"
    assert vario.open_run(here).shipping.state == "done"


def test_all_kinds_of_files_follow_a_run(tmp_path, sftp):
    """Lines that are taken back, streams that begin anew, snapshots: what a resumed run does to its files."""
    here, there = tmp_path / "runs" / "run", tmp_path / "there"
    url = sftp.host.url(there, sftp.port)
    store = begun(here)
    alerts = here / "rank0" / "alerts.jsonl"
    for step in range(25):
        store.write(record(step))
        with alerts.open("a") as file:
            file.write(json.dumps({**ALERT, "step": step}) + "\n")
        if step % 4 == 0:
            assert ship(here, url) == 0
    assert ship(here, url) == 0
    assert files(there / "run").keys() == files(here).keys()
    store._compactor.finish()
    del store
    alerts.write_text(alerts.read_text()[:1000])
    again = Store(part_steps=10, small_part_bytes=0)
    rank = json.loads((here / "rank0" / "rank.json").read_text())
    (here / "rank0" / "rank.json").write_text(json.dumps({**rank, "pid": 2**22 - 1, "born": 1}))
    again.open(header(here, resume=True, first_step=12))
    for step in range(12, 20):
        again.write(record(step))
    (here / "rank0" / "snapshots").mkdir()
    (here / "rank0" / "snapshots" / "step-1.npz").write_bytes(os.urandom(3 << 20))
    again.close("finished", None)
    assert ship(here, url) == 0
    assert files(there / "run") == files(here)
    assert ship(here, url) == 0


def test_another_run_at_the_target_is_left_alone(tmp_path, elsewhere):
    assert ship(write_run(tmp_path / "a" / "one"), elsewhere.runs) == 0
    before = elsewhere.files("one")
    other = write_run(tmp_path / "b" / "one", num_steps=3)
    assert ship(other, elsewhere.runs) == 2
    with pytest.raises(RunTaken, match="contains another run than"):
        main_raises(["ship", str(other), elsewhere.runs])
    assert elsewhere.files("one") == before


def main_raises(words):
    from vario.cli import _dispatch

    return _dispatch(words)


def test_ranks_of_several_hosts_arrive_in_one_run(tmp_path, elsewhere):
    for rank in range(3):
        store = Store()
        store.open(header(tmp_path / f"host{rank}" / "job", rank=rank, world_size=3, job="job-7"))
        for step in range(5):
            store.write(record(step))
        store.close("finished", None)
    threads = [
        threading.Thread(target=ship, args=(tmp_path / f"host{rank}" / "job", elsewhere.runs)) for rank in (2, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vario.open_run(f"{elsewhere.runs}/job").ranks == [1, 2]
    assert ship(tmp_path / "host0" / "job", elsewhere.runs) == 0
    run = vario.open_run(f"{elsewhere.runs}/job")
    eventually(lambda: run.ranks == [0, 1, 2] and run.state == "finished")
    store = Store()
    store.open(header(tmp_path / "else" / "job", rank=1, world_size=3, job="job-8"))
    store.close("finished", None)
    assert ship(tmp_path / "else" / "job", elsewhere.runs) == 2, "of another job"


def test_what_somebody_deletes_at_the_target_comes_back(tmp_path, sftp):
    here, there = tmp_path / "runs" / "live", tmp_path / "there"
    words = [*VARIO, "ship", str(here), sftp.host.url(there, sftp.port), "--follow"]
    with subprocess.Popen([sys.executable, str(WRITER), str(here), "300"]) as writing:
        eventually(lambda: (here / "rank0" / "rank.json").is_file())
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as shipping:
            eventually(lambda: (there / "live" / "run.json").is_file())
            for name in ("scalar.live.arrow", "rank.json", "structure.json"):
                (there / "live" / "rank0" / name).unlink(missing_ok=True)
            assert (writing.wait(60), shipping.wait(60)) == (0, 0)
    assert ship(here, sftp.host.url(there, sftp.port)) == 0
    assert files(there / "live") == files(here)


def test_parts_that_were_merged_take_the_place_of_the_others_at_the_target(tmp_path, elsewhere):
    here = write_large(tmp_path / "runs" / "merged", num_steps=40, part_steps=5, targets=TARGETS[:20])
    assert ship(here, elsewhere.runs) == 0
    before = numbers(here)
    assert main(["compact", str(here)]) == 0
    assert any("part-000001-" in name for name in files(here)), "nothing was merged"
    assert ship(here, elsewhere.runs) == 0
    assert elsewhere.files("merged") == files(here)
    assert numbers(f"{elsewhere.runs}/merged") == before


def test_each_host_ships_its_own_ranks_of_a_shared_folder(tmp_path, sftp):
    here, there = tmp_path / "runs" / "job", tmp_path / "there"
    for rank in range(2):
        store = Store()
        store.open(header(here, rank=rank, world_size=2, job="job-7"))
        store.write(record(0))
        store.close("finished", None)
    for name in ("run.json", "rank0/rank.json"):
        told = json.loads((here / name).read_text())
        (here / name).write_text(json.dumps({**told, "host": "another"}))
    assert ship(here, sftp.host.url(there, sftp.port), "--own-ranks") == 0
    assert {name.partition("/")[0] for name in files(there / "job")} == {"job.json", "rank1"}
    assert ship(here, sftp.host.url(there, sftp.port)) == 0
    assert files(there / "job") == files(here)


def test_what_a_shipper_says_may_be_damaged(tmp_path, caplog):
    here = write_run(tmp_path / "runs" / "one")
    (tmp_path / "runs" / ".shipping").mkdir()
    (tmp_path / "runs" / ".shipping" / "one.json").write_text('{"state": 1}')
    assert vario.open_run(here).shipping is None
    assert "'state': expected a text" in caplog.text


def test_a_local_copy_is_deleted_only_when_all_of_it_is_there(tmp_path, sftp):
    there = tmp_path / "there"
    url = sftp.host.url(there, sftp.port)
    live = begun(tmp_path / "runs" / "live")
    live.write(record(0))
    assert ship(tmp_path / "runs" / "live", url, "--delete-local") == 2
    assert (tmp_path / "runs" / "live").is_dir(), "it has not ended"
    live.close("finished", None)
    kept = files(tmp_path / "runs" / "live")
    assert ship(tmp_path / "runs" / "live", url, "--delete-local") == 0
    assert not (tmp_path / "runs" / "live").exists()
    assert files(there / "live") == kept


def test_links_in_a_run_are_not_sent(tmp_path, sftp):
    here = write_run(tmp_path / "runs" / "one")
    (tmp_path / "secret").write_text("secret")
    (here / "rank0" / "output.txt").symlink_to(tmp_path / "secret")
    (here / "rank1").symlink_to(tmp_path)
    assert ship(here, sftp.host.url(tmp_path / "there", sftp.port)) == 0
    assert not [name for name in files(tmp_path / "there" / "one") if "output" in name or "rank1" in name]


def test_a_folder_is_a_place_too(tmp_path):
    here = write_run(tmp_path / "runs" / "one")
    assert ship(here, str(tmp_path / "mounted")) == 0
    assert files(tmp_path / "mounted" / "one") == files(here)
    assert ship(here, f"file://{tmp_path}/other") == 0
    assert files(tmp_path / "other" / "one") == files(here)
    assert ship(here, str(tmp_path / "runs")) == 2, "onto itself"


def test_a_rate_is_kept(tmp_path, sftp):
    here = write_large(tmp_path / "runs" / "large", num_steps=54)
    whole = sum(map(len, files(here).values()))
    began = time.monotonic()
    assert ship(here, sftp.host.url(tmp_path / "there", sftp.port), "--rate", "1MB") == 0
    assert time.monotonic() - began > whole / 1e6 - 1.1, "all but its last piece have waited"
    assert main(["ship", str(here), "s3://bucket/runs", "--rate", "fast"]) == 2
