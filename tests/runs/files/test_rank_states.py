"""Ranks on many hosts: which one died, and a run whose leading rank never came."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from made_runs import check_rows, frame, header, record
from vario.cli import main
from vario.core.errors import RunNotFound
from vario.runs.run import list_runs, open_run
from vario.sinks.store import Store

HERE = socket.gethostname()
WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from made_runs import frame, header, record
from vario.sinks.store import Store
store = Store()
store.open(header(sys.argv[2], rank=1, world_size=2))
for step in range(5):
    store.write(record(step, frame(step, rank=1)))
print("written", flush=True)
sys.stdin.read()
"""


def write(path, rank, num_steps=3, close="finished", error=None, **changes):
    store = Store()
    store.open(header(path, rank=rank, **changes))
    for step in range(num_steps):
        store.write(record(step, frame(step, rank=rank)))
    if close:
        store.close(close, error)


def move(path, **hosts):
    """As if these ranks had run on other hosts."""
    for rank, host in hosts.items():
        status = path / rank / "rank.json"
        status.write_text(json.dumps({**json.loads(status.read_text()), "host": host}))


def test_a_rank_that_is_killed_leaves_its_part_and_is_named(tmp_path, capsys):
    path = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parents[2]), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "written\n"
        write(path, 0, world_size=2, close=None)
        run = open_run(path)
        assert {found.rank: found.state for found in run.rank_states} == {0: "running", 1: "running"}
        other.send_signal(signal.SIGKILL)
    assert run.state == "crashed"
    assert {found.rank: found.state for found in run.rank_states} == {0: "running", 1: "died"}
    check_rows(run.to_arrow("gradient", 1), range(5), rank=1)
    check_rows(run.to_arrow("gradient", 0), range(3))
    assert main(["report", str(path)]) == 0
    # rank.json is written about once a second, by the time that the records tell: five steps are five of these.
    assert f"rank 1 died on {HERE} after step 4" in capsys.readouterr().out


def test_mesh_and_hosts_are_kept(tmp_path):
    path = tmp_path / "run"
    for rank in range(4):
        mesh = {"data": 2, "tensor": 2}
        write(path, rank, world_size=4, mesh=mesh, coordinates={"data": rank // 2, "tensor": rank % 2})
    move(path, rank2="node-b", rank3="node-b")
    run = open_run(path)
    assert run.mesh == {"data": 2, "tensor": 2}
    assert run.hosts == {0: HERE, 1: HERE, 2: "node-b", 3: "node-b"}
    assert run.rank_states[2].coordinates == {"data": 1, "tensor": 0}
    assert json.loads((path / "run.json").read_text())["host"] == HERE


def test_report_and_list_say_ranks_and_hosts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # the table is cut to the terminal
    path = tmp_path / "runs" / "spread"
    mesh = {"data": 2, "tensor": 2}
    for rank in range(4):
        error = "ValueError: no more text" if rank == 2 else None
        config = {"ranks": [0, 1, 2, 3], "quantities": ["gradient"]}
        state = "crashed" if rank == 2 else "finished"
        write(path, rank, close=state, error=error, world_size=8, mesh=mesh, config=config, started=1.7e9)
    move(path, rank0="node-a", rank1="node-a", rank2="node-b", rank3="node-b")
    assert main(["report", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "4 of 8 recorded (data 2 x tensor 2), 0-1 on node-a, 2-3 on node-b" in printed
    assert "rank 2 crashed on node-b after step 2" in printed
    assert main(["ls", str(tmp_path / "runs")]) == 0
    assert "4 of 8 on 2 hosts" in capsys.readouterr().out
    assert main(["ls", str(tmp_path / "runs"), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert [found["host"] for found in listed["rank_states"]] == ["node-a", "node-a", "node-b", "node-b"]


def test_many_hosts_and_many_dead_are_counted_not_listed(tmp_path, capsys):
    path = tmp_path / "run"
    for rank in range(6):
        write(path, rank, close="crashed" if rank else "finished", world_size=6)
        move(path, **{f"rank{rank}": f"node-{rank}"})
    assert main(["report", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "6 of 6 recorded, on 6 hosts" in printed
    assert "ranks 1-5 crashed" in printed


RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26815: Connection reset by peer"


def test_the_first_error_of_its_own_is_the_cause_whichever_rank_it_is_on(tmp_path, capsys):
    path = tmp_path / "run"
    write(path, 0, close="crashed", error=RESET, world_size=4)
    write(path, 3, close="crashed", error="KeyError: 'text'", world_size=4)
    write(path, 1, close="crashed", error="ValueError: no more text", world_size=4)
    write(path, 2, close=None, world_size=4)
    status = path / "rank2" / "rank.json"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    status.write_text(json.dumps({**json.loads(status.read_text()), "pid": gone.pid}))
    run = open_run(path)
    assert run.error == "KeyError: 'text'"
    # Two errors of their own: the second is no victim.
    assert {found.rank: found.victim_of for found in run.rank_states} == {0: 3, 1: None, 2: 3, 3: None}
    assert main(["report", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert printed.index("rank 3 crashed") < printed.index("rank 1 crashed") < printed.index("rank 3 took down ranks")


def test_of_several_that_died_without_a_word_none_is_called_a_victim(tmp_path):
    path = tmp_path / "run"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for rank in range(3):
        write(path, rank, close=None if rank else "crashed", error=None if rank else RESET, world_size=3)
    for rank in (1, 2):
        status = path / f"rank{rank}" / "rank.json"
        status.write_text(json.dumps({**json.loads(status.read_text()), "pid": gone.pid}))
    run = open_run(path)
    assert [found.state for found in run.rank_states] == ["crashed", "died", "died"]
    assert [found.victim_of for found in run.rank_states] == [None] * 3
    assert run.error == "rank 1 died without an error message"


def test_ranks_that_ctrl_c_ended_have_not_failed(tmp_path):
    path = tmp_path / "run"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(path, 0, close="interrupted", world_size=2)
    write(path, 1, close=None, world_size=2)
    status = path / "rank1" / "rank.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "pid": gone.pid}))
    run = open_run(path)
    assert (run.state, run.error) == ("interrupted", None)
    assert [found.victim_of for found in run.rank_states] == [None, None]


@pytest.mark.parametrize("close", [None, "finished"])
def test_a_run_whose_leading_rank_never_came_is_read_as_far_as_it_goes(tmp_path, capsys, close):
    path = tmp_path / "runs" / "headless"
    for rank in (1, 2):
        write(path, rank, close=close, world_size=3, started=1000.0 + rank)
    assert not (path / "run.json").exists()
    (run,) = list_runs(tmp_path / "runs")
    assert open_run(tmp_path / "runs").name == "headless"
    assert (run.ranks, run.world_size, run.started) == ([1, 2], 3, 1001.0)
    assert run.state == ("running" if close is None else "finished")
    check_rows(run.to_arrow("gradient", 2), range(3), rank=2)
    assert main(["report", str(path)]) == 0
    assert "2 of 3 recorded" in capsys.readouterr().out


def test_a_folder_with_an_empty_rank_in_it_is_no_run(tmp_path):
    (tmp_path / "run" / "rank0").mkdir(parents=True)
    with pytest.raises(RunNotFound, match="not a run"):
        open_run(tmp_path / "run")
