import os
import sys
import uuid
from pathlib import Path

import pytest

# Runs with known numbers serve other tests too, so they lie above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from remote_runs import files
from remote_servers import SSHD, CutProxy, SshHost, free_port, moto_words, objects, started

from vario.remote.mirror import mirror

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is kept from one test to the next, and mirrors of a test end with it."""
    monkeypatch.setenv("VARIO_CACHE", str(tmp_path / "cache"))
    yield
    for url in list(mirror._mirrors):
        mirror.forget(url)


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory):
    port = free_port()
    with started(moto_words(port), port, tmp_path_factory.mktemp("s3") / "log.txt"):
        yield port


@pytest.fixture
def s3(s3_port, monkeypatch):
    """A proxy in front of the S3 server, which this process and those it starts talk to; `s3.bucket` is a new one."""
    import boto3

    proxy = CutProxy(s3_port)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": proxy.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    proxy.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")
    proxy.bucket = f"b{uuid.uuid4().hex[:12]}"
    proxy.client.create_bucket(Bucket=proxy.bucket)
    yield proxy
    proxy.client.close()
    proxy.close()


@pytest.fixture(scope="session")
def ssh_host(tmp_path_factory):
    if not SSHD:
        pytest.fail("there is no sshd: apt-get install openssh-server, or `make ready`")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root wants it
    host = SshHost(tmp_path_factory.mktemp("ssh"))
    with started(host.words, host.port, host.folder / "log.txt"):
        yield host


@pytest.fixture
def sftp(ssh_host, monkeypatch):
    """A proxy in front of the SSH server, for a user who has accepted its key."""
    proxy = CutProxy(ssh_host.port)
    proxy.host = ssh_host
    ssh_host.trust(proxy.port)
    monkeypatch.setenv("HOME", str(ssh_host.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield proxy
    proxy.close()


@pytest.fixture(params=["s3", "sftp"])
def elsewhere(request, tmp_path):
    """A folder of runs elsewhere, by its URL, behind a proxy; `elsewhere.files(run)` is what it has."""
    proxy = request.getfixturevalue(request.param)
    if request.param == "s3":
        proxy.runs = f"s3://{proxy.bucket}/runs"
        proxy.files = lambda run: objects(proxy, f"runs/{run}/")
    else:
        there = tmp_path / "there"
        proxy.runs = proxy.host.url(there, proxy.port)
        proxy.files = lambda run: files(there / run)
    return proxy
