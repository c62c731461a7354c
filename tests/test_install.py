"""`pip install` in a clean clone, as README says, into an empty environment."""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_COMMITTED = (".git", ".venv*", ".peers", ".mindspore", "node_modules", "built", "vario_runs", ".tests", ".*_cache")
NOT_COMMITTED += ("__pycache__",)


@pytest.fixture
def clone(tmp_path):
    """The tree as `git clone` gives it."""
    return shutil.copytree(ROOT, tmp_path / "vario", ignore=shutil.ignore_patterns(*NOT_COMMITTED))


def run(*words, **options):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, **options)


def get(port, path):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.mark.slow
@pytest.mark.timeout(900)  # npm and pip fetch packages
def test_an_empty_environment_gets_the_dashboard(clone, healthy_run, tmp_path):
    line = re.search(r"^pip install '(\S+)'$", (clone / "README.md").read_text(encoding="utf8"), re.MULTILINE)
    venv.create(tmp_path / "empty")
    python, command = (tmp_path / "empty" / "bin" / name for name in ("python", "vario"))
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", line[1], cwd=clone)
    assert installed.returncode == 0, installed.stderr
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    written = run(command, "export", healthy_run, "--html", tmp_path / "run.html", cwd=tmp_path, env=environment)
    assert written.returncode == 0, written.stderr
    assert "<script>" in (tmp_path / "run.html").read_text(encoding="utf8")
    words = [str(command), "serve", str(healthy_run.parent), "--no-token", "--no-browser"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            said = next(line for line in server.stdout if "http://" in line)
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)", said)[1])
            status, page = get(port, "/")
            assert (status, "has not been built" in page) == (200, False)
            assets = re.findall(r"(?:src|href)=\"\./(assets/[^\"]+)\"", page)
            assert len(assets) >= 2
            assert [get(port, f"/{name}")[0] for name in assets] == [200] * len(assets)
        finally:
            server.send_signal(signal.SIGINT)


BUILD = """
import sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
kind, folder, where = sys.argv[1:]
builder, version = (SdistBuilder, "standard") if kind == "sdist" else (WheelBuilder, kind)
print(next(builder(folder).build(directory=where, versions=[version])))
"""


def build(kind, folder, where, path=os.environ["PATH"]):
    return run(sys.executable, "-c", BUILD, kind, folder, where, env={**os.environ, "PATH": path})


def test_without_node_the_wheel_is_built_and_says_what_is_missing(clone, healthy_run, tmp_path):
    built = build("standard", clone, tmp_path / "out", path="")
    assert built.returncode == 0, built.stderr
    assert "Node (npm) was not found" in built.stderr + built.stdout
    with zipfile.ZipFile(next((tmp_path / "out").glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    words = [sys.executable, "-m", "vario", "export", healthy_run, "--html", tmp_path / "run.html"]
    written = run(*words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert written.returncode == 2
    assert "Node (npm) was not found when vario was installed. Install Node 20.19 or newer." in written.stderr


def test_an_editable_install_does_not_ask_for_node(clone, tmp_path):
    built = build("editable", clone, tmp_path / "out", path="")
    assert built.returncode == 0, built.stderr
    assert "npm" not in built.stderr + built.stdout
    assert not (clone / "src" / "vario" / "web" / "built").exists()


def test_a_source_archive_carries_the_page_and_needs_no_node_to_be_installed(clone, tmp_path):
    pages = clone / "src" / "vario" / "web" / "built"
    pages.mkdir()
    for name in ("index.html", "report.js"):
        (pages / name).write_text("built")
    assert build("sdist", clone, tmp_path / "out", path="").returncode == 0
    shutil.unpack_archive(next((tmp_path / "out").glob("*.tar.gz")), tmp_path / "unpacked")
    (folder,) = (tmp_path / "unpacked").iterdir()
    built = build("standard", folder, tmp_path / "out", path="")
    assert "npm" not in built.stderr + built.stdout
    with zipfile.ZipFile(next((tmp_path / "out").glob("*.whl"))) as archive:
        assert archive.read("vario/web/built/index.html") == b"built"
