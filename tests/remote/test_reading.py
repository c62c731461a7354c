"""Runs that lie elsewhere are read in place: the same numbers, few bytes, and nothing hangs without a network."""

import http.server
import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from remote_runs import begun, numbers, ship, write_large
from remote_servers import eventually

import vario
from made_runs import record
from synthetic import write_run
from vario.cli import main
from vario.core.errors import ConfigError, MissingExtra, RunError, RunNotFound, Unreachable
from vario.remote.mirror.cache_folder import _size
from vario.remote.mirror.mirror import forget, mirrored
from vario.remote.places.opening import open_place

BROKEN = {"bad_step": 25, "state": "crashed", "error": "ValueError: loss"}

COMMANDS = ("report", "show", "diagnose", "check")
GRADIENT = ("--quantity", "gradient")


def test_a_run_elsewhere_is_read_as_one_here(tmp_path, elsewhere, capsys):
    here = write_run(tmp_path / "runs" / "one", **BROKEN)
    write_run(tmp_path / "runs" / "two", started=1_800_000_000.0)
    assert ship(tmp_path / "runs", elsewhere.runs) == 0
    url = f"{elsewhere.runs}/one"
    assert numbers(url) == numbers(here)
    run, same = vario.open_run(url), vario.open_run(here)
    assert (run.name, run.id, run.state, run.error) == ("one", same.id, "crashed", same.error)
    assert str(vario.first_bad(run)) == str(vario.first_bad(same))
    query = "select target, sum(count) from gradient group by target order by target"
    assert run.sql(query).equals(same.sql(query))
    assert vario.open_run(elsewhere.runs).name == "two", "the latest of a folder"
    assert [found.name for found in vario.list_runs(elsewhere.runs)] == ["one", "two"]
    there_and_here = [(elsewhere.runs, tmp_path / "runs"), (url, here)]
    for command, (there, near) in [("ls", there_and_here[0]), *((name, there_and_here[1]) for name in COMMANDS)]:
        told = []
        for place in (there, near):
            words = [command, str(place)] if command != "show" else ["show", "head.weight", str(place), *GRADIENT]
            capsys.readouterr()
            told.append(main(words))
            told.append("".join(capsys.readouterr().out.replace(str(place), "PLACE").split()))
        assert told[:2] == told[2:]
        assert told[0] < 2
        assert "one" in told[1] or command == "show"


def test_a_series_of_a_large_run_takes_a_small_share_of_its_bytes(tmp_path, elsewhere):
    here = write_large(tmp_path / "runs" / "large")
    assert ship(here, elsewhere.runs) == 0
    whole = sum(path.stat().st_size for path in here.rglob("*") if path.is_file())
    assert whole > 8 << 20
    before = elsewhere.num_bytes_down
    found = vario.open_run(f"{elsewhere.runs}/large").series("layers.0700.weight", "gradient")
    assert elsewhere.num_bytes_down - before < whole / 4
    same = vario.open_run(here).series("layers.0700.weight", "gradient")
    assert found.values.tolist() == same.values.tolist()
    before = elsewhere.num_bytes_down
    again = vario.open_run(f"{elsewhere.runs}/large").series("layers.0700.weight", "gradient")
    assert again.values.tolist() == same.values.tolist()
    assert elsewhere.num_bytes_down - before < whole / 100, "it is kept"
    forget(f"{elsewhere.runs}/large")
    vario.open_run(f"{elsewhere.runs}/large").series("layers.0700.weight", "gradient")
    assert elsewhere.num_bytes_down - before < whole / 50, "for the next process too"


def test_the_cache_keeps_within_its_bound(tmp_path, s3, monkeypatch):
    here = write_large(tmp_path / "runs" / "large")
    url = f"s3://{s3.bucket}/runs"
    assert ship(here, url) == 0
    bound = 3 << 20
    monkeypatch.setenv("VARIO_CACHE_BYTES", str(bound))
    run, same = vario.open_run(f"{url}/large"), vario.open_run(here)
    for target in ("layers.0000.weight", "layers.0500.weight", "layers.1000.weight", "layers.1400.weight") * 2:
        assert run.series(target, "gradient").values.tolist() == same.series(target, "gradient").values.tolist()
        assert _size(tmp_path / "cache") < bound + (1 << 20)
    assert ship(write_run(tmp_path / "runs" / "small"), url) == 0
    forget(f"{url}/large")
    monkeypatch.setenv("VARIO_CACHE_BYTES", "200kB")
    assert numbers(f"{url}/small") == numbers(tmp_path / "runs" / "small")
    assert _size(tmp_path / "cache") < 1 << 20, "what nobody uses goes first"


def test_nothing_else_in_the_folder_of_the_cache_is_touched(tmp_path, monkeypatch):
    others = tmp_path / "cache" / "thesis"
    others.mkdir(parents=True)
    (others / "index").write_text("x" * 100_000)
    (tmp_path / "cache" / "mirrors" / "mine").mkdir(parents=True)
    monkeypatch.setenv("VARIO_CACHE_BYTES", "1")
    run = write_run(tmp_path / "runs" / "one")
    assert numbers(run.as_uri()) == numbers(run)
    assert [path.name for path in others.iterdir()] == ["index"]
    assert (tmp_path / "cache" / "mirrors" / "mine").is_dir()


def test_a_run_that_grows_is_the_same_there_as_here(tmp_path, elsewhere):
    here = tmp_path / "runs" / "live"
    store = begun(here)
    url = f"{elsewhere.runs}/live"
    run = None
    for step in range(36):
        store.write(record(step))
        if step % 7 == 5:
            store._write_rank()
            assert ship(here, elsewhere.runs) == 0
            run = run or vario.open_run(url)
            eventually(lambda run=run, step=step: run.last_step == step)
            assert numbers(url) == numbers(here)
            assert run.state == "running"
    store.close("finished", None)
    assert ship(here, elsewhere.runs) == 0
    eventually(lambda: run.state == "finished")
    assert numbers(url) == numbers(here)
    assert not [name for name in elsewhere.files("live") if name.endswith(".arrow")]
    assert not list(mirrored(url).rglob("*.arrow")), "what vanished there vanishes here"


def test_without_a_network_what_is_kept_is_shown_with_a_notice(tmp_path, s3, caplog):
    url = f"s3://{s3.bucket}/runs"
    assert ship(write_run(tmp_path / "runs" / "one"), url) == 0
    before = numbers(f"{url}/one")
    forget(f"{url}/one")
    s3.cut()
    with pytest.raises(Unreachable, match=r"s3://.*other: cannot be reached"):
        vario.open_run(f"{url}/other")
    with caplog.at_level(logging.WARNING):
        assert numbers(f"{url}/one") == before
    assert [line for line in caplog.messages if "cannot be reached" in line and "Showing what" in line]
    s3.restore()


def test_who_began_without_a_network_keeps_up_when_it_is_back(tmp_path, sftp):
    store = begun(tmp_path / "runs" / "live")
    url = sftp.host.url(tmp_path / "there", sftp.port)
    store.write(record(0))
    assert ship(tmp_path / "runs", url) == 0
    assert vario.open_run(f"{url}/live").steps("scalar").tolist() == [0]
    forget(f"{url}/live")
    sftp.cut()
    run = vario.open_run(f"{url}/live")
    assert run.steps("scalar").tolist() == [0]
    sftp.restore()
    store.write(record(1))
    assert ship(tmp_path / "runs", url) == 0
    eventually(lambda: run.steps("scalar").tolist() == [0, 1])


def test_a_place_that_does_not_answer_is_given_up(tmp_path, s3):
    url = f"s3://{s3.bucket}/runs"
    assert ship(write_run(tmp_path / "runs" / "one"), url) == 0
    s3.is_silent = True
    words = [sys.executable, "-m", "vario", "report", f"{url}/one"]
    environment = {**os.environ, "VARIO_ANSWER_SECONDS": "1"}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    s3.restore()
    assert ended.returncode == 2
    assert "cannot be reached" in ended.stderr


def test_a_run_that_was_deleted_is_gone(tmp_path, sftp):
    there = tmp_path / "there"
    url = sftp.host.url(there, sftp.port)
    for name in ("one", "two"):
        write_run(there / name)
    assert len(vario.list_runs(url)) == 2
    for path in sorted((there / "two").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (there / "two").rmdir()
    eventually(lambda: [run.name for run in vario.list_runs(url)] == ["one"])
    with pytest.raises(RunNotFound, match="no such folder"):
        vario.open_run(f"{url}/three")


def test_two_processes_read_the_same_place(tmp_path, sftp):
    url = sftp.host.url(write_run(tmp_path / "there" / "one"), sftp.port)
    vario.open_run(url)
    words = [sys.executable, "-m", "vario", "report", url]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len([folder for folder in (tmp_path / "cache" / "mirrors").iterdir() if folder.is_dir()]) == 2


@contextmanager
def hostile_store(keys):
    """An S3 server that answers every listing with these keys, a page at a time, for ever if they do not end."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page = [key for key, _ in zip(keys, range(1000), strict=False)]
            rows = "".join(
                f"<Contents><Key>{key}</Key><Size>5</Size><ETag>x</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key in page
            )
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{time.time()}</NextContinuationToken>"
            told = more if len(page) == 1000 else "<IsTruncated>false</IsTruncated>"
            is_listing = "list-type" in self.path
            body = f"<ListBucketResult><Name>b</Name>{told}{rows}</ListBucketResult>" if is_listing else "hello"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_names_of_a_hostile_listing_stay_below_the_cache(tmp_path, s3, monkeypatch):
    names = [
        "run.json",
        "rank0/rank.json",
        "../../evil",
        "/etc/evil",
        "rank0/../../../../evil",
        "rank0//evil",
        "a\\evil",
    ]
    names += ["rank0/./evil", f"rank0/{'e' * 300}vil", "rank0/rank.json/inside", "rank0/a/b/c/d/evil"]
    with hostile_store([f"run/{name}" for name in names]) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(RunError):
            vario.open_run("s3://hostile/run")
        place = open_place("s3://hostile/run")
        assert set(place.tree("")) <= {"run.json", "rank0/rank.json", "rank0/rank.json/inside"}
        assert not list(tmp_path.rglob("*evil*"))


def test_a_listing_without_an_end_is_refused(s3, monkeypatch):
    def endless():
        number = 0
        while True:
            number += 1
            yield f"run/file{number}"

    with hostile_store(endless()) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(RunError, match=r"lists more than 20,000 names"):
            vario.open_run("s3://hostile/run")


def test_links_on_another_host_are_not_followed(tmp_path, sftp):
    run = write_run(tmp_path / "there" / "one")
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (run / "rank0" / "output.txt").symlink_to(secret)
    (run / "rank1").symlink_to(run / "rank0")
    found = vario.open_run(sftp.host.url(run, sftp.port))
    assert found.ranks == [0]
    assert found.output == ""


def test_a_host_whose_key_is_not_known_is_refused(tmp_path, sftp):
    url = sftp.host.url(write_run(tmp_path / "there" / "one"), sftp.port)
    (sftp.host.home / ".ssh" / "known_hosts").write_text("")
    with pytest.raises(Unreachable, match=r"key of this host is not known yet.*ssh 127\.0\.0\.1"):
        vario.open_run(url)


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("gs://bucket/runs", MissingExtra, "pip install gcsfs"),
        ("az://container/runs", MissingExtra, "pip install adlfs"),
        ("sftp://me:secret@host/runs", ConfigError, "a password in a URL"),
        ("s4://bucket/runs", ConfigError, "no such kind of place. Did you mean 's3'"),
        ("s3://bucket/../runs", ConfigError, "'.' or '..'"),
        ("s3://", ConfigError, "s3://NAME/FOLDER"),
    ],
)
def test_what_cannot_be_opened_says_why(url, error, text):
    with pytest.raises(error) as raised:
        vario.open_run(url)
    assert text in str(raised.value)
    assert "secret" not in str(raised.value)
