"""What a run was started from: written after its first step, without secrets, and read back."""

import os
import re
import subprocess
import sys

import pytest

import vario
from vario.cli import main
from vario.core.errors import ConfigError, RunCorrupt
from vario.runs.table.summary import read_summary
from vario.sinks.origin.printed import HEAD_CHARACTERS, TAIL_CHARACTERS, Printed

SCRIPT = """
import os, sys, warnings
import vario
with vario.start("run", **eval(sys.argv[1])) as run:
    run.log(a=1)
    print("hello", os.environ.get("MY_API_KEY"))
    warnings.warn("careful", stacklevel=1)
"""


def git(folder, *words):
    identity = ("-c", "user.email=a@b.c", "-c", "user.name=n", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)


@pytest.fixture
def project(tmp_path):
    """A repository with a script that was changed since its commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    git(folder, "init", "-q", "-b", "trunk")
    git(folder, "remote", "add", "origin", "https://me:hunter22@example.org/x.git")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "First")
    (folder / "train.py").write_text(SCRIPT + "# token = abcdefgh\n")
    (folder / "new.txt").write_text("")
    return folder


def start(project, tmp_path, *more, **options):
    options = {"directory": str(tmp_path / "runs"), **options}
    environment = {**os.environ, "MY_API_KEY": "correct-horse-battery", "OMP_NUM_THREADS": "1", "HF_TOKEN": "secret123"}
    command = [sys.executable, str(project / "train.py"), repr(options), *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return vario.open_run(tmp_path / "runs" / "run"), done


def test_code_environment_packages_and_output(project, tmp_path):
    run, done = start(project, tmp_path, "--api-key", "k")
    origin = run.origin
    commit = git(project, "rev-parse", "HEAD").stdout.strip()
    assert (origin.commit, origin.branch, origin.subject) == (commit, "trunk", "First")
    assert (origin.changed, origin.untracked) == (["train.py"], ["new.txt"])
    assert origin.remote == "https://***@example.org/x.git"
    assert "+# token = ***" in run.code_diff
    assert origin.command[-2:] == ["--api-key", "***"]
    assert run.command.endswith("--api-key ***")
    assert (origin.environment["OMP_NUM_THREADS"], origin.environment["HF_TOKEN"]) == ("1", "***")
    assert "MY_API_KEY" not in origin.environment
    assert origin.packages["numpy"]
    assert done.stdout == "hello correct-horse-battery\n"
    assert run.output.splitlines()[0] == "hello ***"
    assert "UserWarning: careful" in run.output
    stored = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    assert not [secret for secret in (b"correct-horse", b"hunter22", b"secret123", b"abcdefgh") if secret in stored]


def test_parts_can_be_left_out(project, tmp_path):
    run, _ = start(project, tmp_path, origin=["packages"])
    assert (run.origin.commit, run.origin.environment, run.output, run.code_diff) == ("", {}, "", "")
    assert run.origin.packages


def test_nothing_is_kept_if_nothing_is_wanted(project, tmp_path):
    run, _ = start(project, tmp_path, origin=[])
    assert run.origin == vario.open_run(run.path).origin
    assert (run.origin.command, run.origin.packages) == ([], {})
    assert not [name for name in os.listdir(run.path / "rank0") if name.startswith(("origin", "output"))]


def test_outside_a_repository_there_is_no_commit(project, tmp_path):
    (project / ".git").rename(tmp_path / "elsewhere")
    run, _ = start(project, tmp_path)
    assert (run.origin.commit, run.code_diff) == ("", "")
    assert run.origin.packages


def test_a_wrong_part_raises_before_the_first_step():
    with pytest.raises(ConfigError, match=r"origin: unknown 'ouptut'. Did you mean 'output'\?"):
        vario.start("run", origin=["ouptut"])


def test_two_runs_show_what_was_set_differently(project, tmp_path, capsys):
    first, _ = start(project, tmp_path, params={"lr": 1})
    first.path.rename(tmp_path / "first")
    first = vario.open_run(tmp_path / "first")
    (project / "train.py").write_text(SCRIPT)
    git(project, "commit", "-q", "--allow-empty", "-m", "Second")
    second, _ = start(project, tmp_path, params={"lr": 2})
    found = vario.diff(first, second)
    assert next(iter(found.settings)) == "params.lr"
    assert found.settings["commit"] == (first.origin.commit, second.origin.commit)
    assert found.settings["changed files"] == ("train.py", None)
    assert found.settings["changes since the commit"][1] is None
    assert not [name for name in found.settings if name.startswith(("package", "variable"))]
    assert main(["diff", str(tmp_path / "first"), str(second.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("set differently")
    assert lines[1].split() == ["params.lr", "1", "2"]


def test_a_run_that_kept_nothing_is_not_one_that_had_nothing(project, tmp_path):
    first, _ = start(project, tmp_path)
    first.path.rename(tmp_path / "first")
    second, _ = start(project, tmp_path, origin=[])
    settings = vario.diff(vario.open_run(tmp_path / "first"), second).settings
    assert not [name for name in settings if name.startswith(("package", "variable", "commit"))]


def test_runs_are_found_by_their_commit(project, tmp_path, capsys):
    run, _ = start(project, tmp_path)
    assert main(["ls", str(run.path.parent), "--columns", "name,commit,branch"]) == 0
    assert ["run", run.origin.commit[:12], "trunk"] in map(str.split, capsys.readouterr().out.splitlines())
    assert main(["ls", str(run.path.parent), "--where", "branch = other"]) == 0
    assert "trunk" not in capsys.readouterr().out


def test_the_command_prints_each_part(project, tmp_path, capsys):
    run, _ = start(project, tmp_path)
    assert main(["origin", str(run.path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["commit", run.origin.commit[:12], "(trunk)", "First"] in lines
    assert main(["origin", str(run.path), "--diff"]) == 0
    assert capsys.readouterr().out == run.code_diff
    assert main(["origin", str(run.path), "--output"]) == 0
    assert capsys.readouterr().out == run.output


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("origin.json", '{"packages": 3}'),
        ("origin.json", '{"code": {"commit": 3}}'),
        ("origin.json", '{"environment": {"A": 3}}'),
        ("origin.json", "[" * 100_000),
        ("output.txt", "x" * ((2 << 20) + 1)),
    ],
)
def test_files_that_vario_cannot_have_written_are_refused_by_name(tmp_path, name, content):
    with vario.start("run", directory=tmp_path) as log:
        log.log(a=1)
    run = vario.open_run(log.path)
    (run.path / "rank0" / name).write_text(content)
    with pytest.raises(RunCorrupt, match=re.escape(name)):
        assert run.origin == run.output
    assert read_summary(run, "run").brief.state == "finished"  # the list of runs does without it


def test_links_are_not_followed(tmp_path):
    with vario.start("run", directory=tmp_path) as log:
        log.log(a=1)
    path = log.path / "rank0" / "output.txt"
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/hostname")
    with pytest.raises(RunCorrupt, match="is a link"):
        vario.open_run(log.path).output  # noqa: B018


# What is printed


def test_a_long_output_keeps_its_first_and_its_last_lines():
    printed = Printed()
    for number in range(50_000):
        printed.take(f"line {number}\n")
    text = printed.text
    assert text.startswith("line 0\n")
    assert text.endswith("line 49999\n")
    assert "[...]" in text
    assert len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS + 20


def test_a_progress_bar_is_one_line():
    printed = Printed()
    printed.take("begin\n")
    for number in range(100_000):
        printed.take(f"\r{number} %")
    printed.take("\nend\n")
    assert printed.text == "begin\n99999 %\nend\n"


def test_the_streams_are_as_before_also_with_two_runs(tmp_path, capsys):
    stream, before = sys.stdout, sys.stdout.write
    with vario.start("a", directory=tmp_path) as a:
        sys.stdout.write("one\n")
        with vario.start("b", directory=tmp_path) as b:
            sys.stdout.write("two\n")
        sys.stdout.write("three\n")
    assert (sys.stdout, sys.stdout.write) == (stream, before)
    assert "write" not in vars(stream)
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert vario.open_run(a.path).output == "one\ntwo\nthree\n"
    assert vario.open_run(b.path).output == "two\n"


def test_a_stream_that_cannot_be_listened_to_stays_as_it_is(tmp_path, monkeypatch):
    class Closed:
        __slots__ = ("said",)

        def write(self, text):
            self.said = text

        def flush(self):
            pass

    monkeypatch.setattr("sys.stderr", Closed())
    with vario.start("run", directory=tmp_path) as run:
        run.log(a=1)
        sys.stderr.write("x")
    assert vario.open_run(run.path).state == "finished"
