"""`vario gather`: ranks of one job come together from many hosts, again and again, and never those of two jobs."""

import json

import pytest
from remote_runs import files

import vario
from made_runs import header, record
from synthetic import write_run
from vario.cli import main
from vario.core.errors import RunNotFound, RunTaken
from vario.remote.shipping.gathering import gather
from vario.sinks.store import Store


def begin_rank(path, rank, job="job-7", num_steps=25, store=None, first=0):
    """A rank of three, which goes on being written."""
    if store is None:
        store = Store(part_steps=10, small_part_bytes=0)
        store.open(header(path, rank=rank, world_size=3, job=job))
    for step in range(first, first + num_steps):
        store.write(record(step))
    return store


def tell_host(path, rank, host):
    """A `rank.json` as another host writes it."""
    file = path / f"rank{rank}" / "rank.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "host": host, "machine": None}))


def test_ranks_come_together_and_a_second_call_copies_only_what_is_new(tmp_path, sftp, capsys):
    nodes = [tmp_path / f"node{number}" / "job" for number in range(3)]
    stores = [begin_rank(node, rank) for rank, node in enumerate(nodes)]
    sources = [sftp.host.url(nodes[0], sftp.port), sftp.host.url(nodes[1], sftp.port), str(nodes[2])]
    whole = tmp_path / "here" / "job"
    words = ["gather", *sources, str(whole), "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranks"] == [0, 1, 2]
    assert told["num_bytes"] >= sum(len(content) for node in nodes for content in files(node).values()) * 0.9
    assert vario.open_run(whole).ranks == [0, 1, 2]
    assert vario.open_run(whole).last_step == 24
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["num_files"] == 0
    begin_rank(nodes[1], 1, num_steps=3, store=stores[1], first=25)
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["num_files"] <= 3
    assert told["num_bytes"] < 10_000
    assert vario.open_run(whole).steps("gradient", 1)[-1] == 27
    for node, store in zip(nodes, stores, strict=True):
        store.close("finished", None)
        tell_host(node, nodes.index(node), f"node{nodes.index(node)}")
    assert main(words) == 0
    run = vario.open_run(whole)
    assert run.state == "finished"
    assert run.hosts == {0: "node0", 1: "node1", 2: "node2"}
    for rank, node in enumerate(nodes):
        assert files(whole / f"rank{rank}") == files(node / f"rank{rank}")


def test_they_come_together_elsewhere_too(tmp_path, s3):
    nodes = [tmp_path / f"node{number}" / "job" for number in range(2)]
    for rank, node in enumerate(nodes):
        begin_rank(node, rank).close("finished", None)
    url = f"s3://{s3.bucket}/whole/job"
    assert main(["gather", *map(str, nodes), url]) == 0
    run = vario.open_run(url)
    assert (run.ranks, run.last_step) == ([0, 1], 24)
    assert main(["gather", url, str(tmp_path / "back")]) == 0
    for rank, node in enumerate(nodes):
        assert files(tmp_path / "back" / f"rank{rank}") == files(node / f"rank{rank}")


def test_a_host_that_cannot_be_reached_is_left_out(tmp_path, sftp, capsys):
    nodes = [tmp_path / f"node{number}" / "job" for number in range(2)]
    for rank, node in enumerate(nodes):
        begin_rank(node, rank).close("finished", None)
    sftp.cut()
    sources = [sftp.host.url(nodes[0], sftp.port), str(nodes[1])]
    assert main(["gather", *sources, str(tmp_path / "whole")]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert vario.open_run(tmp_path / "whole").ranks == [1]
    sftp.restore()
    assert main(["gather", *sources, str(tmp_path / "whole")]) == 0
    assert vario.open_run(tmp_path / "whole").ranks == [0, 1]


def test_different_jobs_are_refused_before_anything_is_copied(tmp_path):
    def refused(sources, destination, text):
        with pytest.raises((RunTaken, RunNotFound), match=text):
            gather([str(source) for source in sources], str(destination), None, print)

    one, other = tmp_path / "one", tmp_path / "other"
    begin_rank(one, 1, "job-1").close("finished", None)
    begin_rank(other, 2, "job-2").close("finished", None)
    refused([one, other], tmp_path / "whole", "its job is job-2, not job-1")
    assert not (tmp_path / "whole").exists()
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    refused(runs, tmp_path / "whole", "its id is")
    refused([runs[1]], runs[0], "its id is")
    for name, host in (("c", "node1"), ("d", "node2")):
        begin_rank(tmp_path / name, 1).close("finished", None)
        tell_host(tmp_path / name, 1, host)
    refused([tmp_path / "c", tmp_path / "d"], tmp_path / "whole", "both have a rank1, of other hosts")
    refused([tmp_path / "nothing"], tmp_path / "whole", "has no folder of a rank")
    refused([runs[0]], tmp_path, "Name the folder of the run")
