"""`directory="s3://..."`: a run is written here and shipped by a process of its own, never in the way of training."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from remote_runs import files, numbers, ship
from remote_servers import eventually

import vario
from made_runs import header
from vario.cli import main
from vario.config import Config
from vario.core.errors import ConfigError
from vario.sinks.shipping import Shipping

SCRIPT = Path(__file__).with_name("watched_training.py")
SAME_VARIO = {"PYTHONPATH": os.pathsep.join([str(Path(vario.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}


@contextmanager
def training(cwd, environment=None, **options):
    """A script that logs numbers, and its run's folder."""
    told = {"seconds": 0.01, "num_steps": 200, "name": "first", "machine": "off", **options}
    words = [sys.executable, str(SCRIPT), json.dumps(told)]
    env = {**os.environ, **SAME_VARIO, **(environment or {})}
    with subprocess.Popen(
        words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, cwd / process.stdout.readline().strip()
        finally:
            process.kill()


def shippers(run):
    """Process ids of those that ship a run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"ship" in words and str(run).encode() in words:
            found.append(int(place.name))
    return found


def test_a_run_is_shipped_while_it_is_written(tmp_path, elsewhere):
    with training(tmp_path, directory=elsewhere.runs, num_steps=400) as (process, run):
        assert run == tmp_path / "vario_runs" / "first"
        shipper = eventually(lambda: shippers(run))[0]
        there = eventually(lambda: vario.open_run(elsewhere.runs) if elsewhere.files("first") else None)
        assert there.state == "running"
        mapped = Path(f"/proc/{shipper}/maps").read_text()
        assert "libtorch" not in mapped
        assert process.wait(60) == 0
    eventually(lambda: not shippers(run))
    assert elsewhere.files("first") == files(run)
    eventually(lambda: there.state == "finished")
    assert numbers(f"{elsewhere.runs}/first") == numbers(run)
    assert vario.open_run(run).shipping.state == "done"


def test_a_shipper_that_was_killed_is_finished_by_hand(tmp_path, sftp):
    url = sftp.host.url(tmp_path / "there", sftp.port)
    with training(tmp_path, {"VARIO_SHIP_WAIT": "0"}, directory=url) as (process, run):
        for shipper in eventually(lambda: shippers(run)):
            os.kill(shipper, signal.SIGKILL)
        assert process.wait(60) == 0
    assert ship(run, url) == 0
    assert files(tmp_path / "there" / "first") == files(run)


def test_a_training_that_is_killed_is_shipped_to_its_end(tmp_path, sftp):
    url = sftp.host.url(tmp_path / "there", sftp.port)
    with training(tmp_path, directory=url, num_steps=100_000) as (process, run):
        eventually(lambda: (tmp_path / "there" / "first" / "rank0" / "rank.json").is_file())
        process.kill()
    eventually(lambda: not shippers(run))
    assert files(tmp_path / "there" / "first") == files(run)


def test_a_target_that_cannot_be_reached_is_said_once_and_delays_nothing(tmp_path, s3, capsys):
    url = f"s3://{s3.bucket}/runs"
    s3.cut()
    with training(tmp_path, directory=url, num_steps=700) as (process, run):
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert float(out) < 30, "seconds that its end took: it waits for nothing"
    warnings = [line for line in err.splitlines() if line.startswith("WARNING")]
    assert len([line for line in warnings if "cannot be reached" in line]) == 1
    assert f"Finish it with: vario ship {run} {url}" in err
    assert main(["report", str(run)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"not completely at {url}/first since" in told
    assert len(vario.open_run(run).steps("scalar")) == 700
    s3.restore()
    eventually(lambda: not shippers(run))
    assert numbers(f"{url}/first") == numbers(run)


def test_no_credentials_are_written_into_a_run(tmp_path, s3):
    secrets = {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENG", "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaDHqa0AP"}
    with training(tmp_path, secrets, directory=f"s3://{s3.bucket}/runs") as (process, run):
        assert process.wait(60) == 0
    eventually(lambda: not shippers(run))
    written = {**files(tmp_path), **dict(enumerate(s3.client.list_objects_v2(Bucket=s3.bucket)["Contents"]))}
    assert len(written) > 10
    for secret in secrets.values():
        assert not [name for name, content in written.items() if secret in str(content)]


@pytest.mark.parametrize("place", ["s3://key:secret@bucket/runs", "sftp://me:secret@host/runs", "s3://"])
def test_a_url_that_cannot_be_used_is_refused_before_the_first_step(place):
    with pytest.raises(ConfigError, match="directory: ") as raised:
        vario.start(directory=place)
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="staging: expected a folder of this machine"):
        Config(staging="s3://bucket/runs")


def test_the_environment_names_the_directory(monkeypatch):
    monkeypatch.setenv("VARIO_DIRECTORY", "s3://bucket/runs")
    assert (Config().directory, Config().local_directory) == ("s3://bucket/runs", "vario_runs")
    assert Config(directory="here").local_directory == "here"


def test_a_run_of_that_name_elsewhere_is_left_alone_and_said(tmp_path, sftp):
    url = sftp.host.url(tmp_path / "there", sftp.port)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with training(tmp_path / "a", directory=url) as (process, _):
        assert process.wait(60) == 0
    before = files(tmp_path / "there" / "first")
    with training(tmp_path / "b", directory=url, num_steps=700) as (process, run):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "contains another run than" in err
    assert vario.open_run(run).shipping.state == "refused"
    assert len(vario.open_run(run).steps("scalar")) == 700
    assert files(tmp_path / "there" / "first") == before


def test_a_missing_package_is_said_before_the_first_step(tmp_path):
    hidden = "import sys; sys.modules['s3fs'] = None; import vario; vario.start(directory='s3://bucket/runs')"
    words, env = [sys.executable, "-c", hidden], {**os.environ, **SAME_VARIO}
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert "pip install 'vario[remote]'" in ended.stderr


def test_hosts_that_share_no_disk_are_told_to_name_their_run(tmp_path, caplog):
    url = (tmp_path / "there").as_uri()
    for name, texts in (("big", 0), (None, 1)):
        sink = Shipping(url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCAL_RANK", "0")
            patch.setenv("LOCAL_WORLD_SIZE", "2")
            caplog.clear()
            sink.open(header(tmp_path / "runs" / "x", world_size=4, config={"name": name}))
        sink._process.kill()
        sink._process.wait()
        assert len([line for line in caplog.messages if "need a `name`" in line]) == texts
