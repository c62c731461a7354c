"""The command line: the document's calls, languages, watching, and what importing costs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import golden_files
import made_runs
from trainer_outputs import LONG_AGO, age, answer, put, refusal, sample, write_state
from vario.cli import main
from vario.cli.progress_following import watch
from vario.logs.finding import find_history


@pytest.fixture
def outputs(run_folder, monkeypatch):
    """An output folder in the working directory, as the document's commands expect it."""
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("LC_MESSAGES", raising=False)
    put(run_folder / "outputs", "checkpoint-8", "normal__checkpoint-8")
    put(run_folder / "outputs", "checkpoint-24", "normal__checkpoint-24", LONG_AGO + 40)
    return run_folder / "outputs"


def said(capsys, *words):
    assert main(["progress", *words]) == 0
    return capsys.readouterr()


def without_age(text):
    """The summary, less how long ago the file was written."""
    lines = [line for line in text.splitlines() if "2023-11-14" not in line]
    assert len(lines) < len(text.splitlines())
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_summary_of_a_run_under_way(outputs, capsys, language):
    golden_files.check(f"progress_{language}", without_age(said(capsys, "--lang", language).out))


def test_the_summary_of_a_broken_run(outputs, capsys):
    path = outputs.parent / "trainer_state.json"
    shutil.copyfile(sample("nan__filter_on.json"), path)
    age(path)
    golden_files.check("progress_broken", without_age(said(capsys, str(path.relative_to(outputs.parent))).out))


def test_a_comparison_as_text(outputs, capsys):
    put(outputs.parent / "other", "checkpoint-12", "restart_same_dir__newest_checkpoint-12")
    words = ["outputs/checkpoint-8", "outputs/checkpoint-24", "other/checkpoint-12"]
    golden_files.check("progress_compare", said(capsys, "--compare", *words).out)


def test_the_documents_commands_work(outputs, capsys):
    assert "Progress" in said(capsys, "--latest", "--summary").out
    assert "No display" in said(capsys, "--latest", "--plot").err
    captured = said(capsys, "--latest", "--plot", "--save-plot", "training_progress.png")
    assert (captured.out, captured.err) == ("", "written: training_progress.png\n")
    captured = said(capsys, "--checkpoint", "outputs/checkpoint-24", "--summary", "--plot")
    assert "step    24 of 30" in captured.out
    assert "┤" in captured.out
    compared = ["outputs/checkpoint-8", "outputs/checkpoint-24"]
    said(capsys, "--compare", *compared, "--save-plot", "comparison.png")
    assert Path("training_progress.png").stat().st_size > 10_000
    assert Path("comparison.png").stat().st_size > 10_000


def test_a_display_that_no_window_can_be_opened_on_is_no_display(outputs):
    for backend in ("agg", "tkagg"):
        environment = {**os.environ, "DISPLAY": ":987", "MPLBACKEND": backend}
        command = [sys.executable, "-m", "vario.progress", "--plot"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        assert result.stderr.startswith("No display found")
        assert "┤" in result.stdout


def test_the_short_flags_work_together(outputs, capsys):
    captured = said(capsys, "-l", "-u", "-p", "-s", "plot.pdf", "-o", "outputs")
    assert "24 of 30" in captured.out
    assert Path("plot.pdf").read_bytes().startswith(b"%PDF")
    assert "8 of 30" in said(capsys, "-u", "-c", "outputs/checkpoint-8").out
    assert "24 of 30" in said(capsys, "-lu").out


def test_as_a_module_it_is_the_same_command(outputs):
    command = [sys.executable, "-m", "vario.progress", "--latest", "--summary", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["step"] == 24
    failed = subprocess.run([*command[:3], "-c", "nowhere"], capture_output=True, text=True)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)


def test_without_an_outputs_folder_the_way_out_is_named(capsys, run_folder):
    assert "vario progress PATH" in refusal(capsys)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--lang", "fr"], "--lang: unknown 'fr'"),
        (["outputs", "-c", "outputs/checkpoint-8"], "give PATH or --checkpoint, not both"),
        (["outputs/checkpoint-8", "--compare", "outputs"], "--compare cannot be combined with"),
        (["--watch", "--json"], "--watch cannot be combined with --json"),
        (["--watch", "-p"], "--watch cannot be combined with a plot"),
        (["--watch", "-s", "plot.png"], "--watch cannot be combined with a plot"),
        (["--sumary"], "Did you mean '--summary'?"),
    ],
)
def test_contradictions_and_mistakes_are_refused(outputs, capsys, words, hint):
    assert hint in refusal(capsys, *words)


def test_the_language_comes_from_the_locale(outputs, capsys, monkeypatch):
    assert "Progress" in said(capsys).out
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "训练进度" in said(capsys).out


def test_a_picture_can_be_written_beside_json(outputs, capsys):
    assert main(["progress", "--json", "-p", "-s", "plot.svg"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 24
    assert Path("plot.svg").exists()


# -- terminals of all kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["-u"], ["-p"], ["--lang", "zh"], ["--compare", "outputs", "实验"]])
def test_an_output_that_takes_ascii_only_gets_characters_that_are_alike(outputs, words):
    put(outputs.parent / "实验", "", "restart_same_dir__newest_checkpoint-12")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "vario.progress", *words]
    result = subprocess.run(command, capture_output=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode("ascii").count("\n") > 5
    if words == ["-u"]:
        assert b"###################-----  80.00 %" in result.stdout


def test_a_path_that_is_no_text_is_shown_all_the_same(outputs):
    folder = outputs.parent / os.fsdecode(b"\xff")
    put(folder, "", "normal__checkpoint-8")
    result = subprocess.run([sys.executable, "-m", "vario.progress", folder], capture_output=True)
    assert result.returncode == 0, result.stderr


def test_brackets_in_names_are_no_markup(outputs, capsys):
    put(outputs.parent / "[bold]a[", "", "restart_same_dir__newest_checkpoint-12")
    put(outputs.parent / "[red] b", "", "normal__checkpoint-24")
    text = said(capsys, "--compare", "[bold]a[", "[red] b").out
    assert text.count("[bold]a[") == text.count("[red] b") == 2
    assert "[bold]a[" in said(capsys, "[bold]a[").out


@pytest.mark.parametrize("columns", ["5", "60", "none"])
def test_odd_widths_are_no_trouble(outputs, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert said(capsys, "-u", "-p").out
    if columns == "60":
        assert max(map(len, said(capsys).out.splitlines())) <= 60


# -- watching ------------------------------------------------------------------------------------------------------


class Job:
    """A training that gets on only while its watcher sleeps."""

    def __init__(self, path, moments):
        self.path = path
        self.moments = iter(moments)
        self.sleep(0)

    def sleep(self, seconds):
        step = next(self.moments)
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, str):
            self.path.write_text(step)
            age(self.path)
        else:
            rows = [{"loss": 5.0 - at / 10, "learning_rate": 0.5, "step": at} for at in range(1, step + 1)]
            write_state(self.path, rows, max_steps=6)

    def watch(self, is_terminal=False):
        watch(lambda: find_history(self.path), "en", is_terminal, self.sleep)


def test_watching_prints_each_row_once_and_ends_with_the_run(capsys, tmp_path):
    Job(tmp_path / "trainer_state.json", [2, 2, 4, 6]).watch()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 1  loss 4.9  learning_rate 0.5"
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4", "5", "6"]


def test_watching_goes_on_when_it_meets_a_half_written_file(capsys, tmp_path):
    Job(tmp_path / "trainer_state.json", [2, '{"log_history": [', "", 6]).watch()
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_watching_ends_quietly_on_ctrl_c(capsys, tmp_path):
    Job(tmp_path / "trainer_state.json", [2, 3, KeyboardInterrupt()]).watch()
    captured = capsys.readouterr()
    assert (len(captured.out.splitlines()), captured.err) == (3, "")


def test_watching_on_a_terminal_shows_the_summary(capsys, tmp_path):
    Job(tmp_path / "trainer_state.json", [2, 6]).watch(is_terminal=True)
    assert "6 of 6" in capsys.readouterr().out


def test_watching_says_at_once_that_a_run_is_broken(capsys, tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text(sample("nan__filter_on.json").read_text())
    assert main(["progress", str(path), "--watch", "--lang", "en"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("Broken: grad_norm is nan from step 8")


def test_watching_a_run_that_crashed_ends(capsys, tmp_path):
    made_runs.write_run(tmp_path / "crashed", [made_runs.record(step) for step in range(3)], close="crashed")
    assert main(["progress", str(tmp_path / "crashed"), "--watch", "--lang", "en"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_watching_nothing_is_refused(capsys, tmp_path):
    assert "no such file or folder" in refusal(capsys, tmp_path / "nothing", "--watch")


# -- what importing costs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["--help"], ["progress", "--help"], ["progress", str(sample("trl_dpo__checkpoint-4.json"))]]
)
def test_help_and_summary_import_no_heavy_package(words):
    heavy = ["torch", "matplotlib", "pandas", "transformers", "tensorboard"] + (["numpy"] if "--help" in words else [])
    code = (
        "import sys\nfrom vario.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print('FOUND', [name for name in {heavy} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "FOUND []"


def test_formats_are_parts_like_others(capsys):
    assert main(["parts", "--kind", "log formats", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"trainer_state", "tensorboard", "lightning_csv", "llama_factory", "megatron", "deepspeed"} <= set(names)


def test_the_summary_is_readable_where_no_clock_is_known(capsys, tmp_path):
    found = answer(capsys, write_state(tmp_path / "trainer_state.json", [{"loss": 1.0, "step": 1}]))
    assert found["speed"] is None
    assert os.path.exists(found["path"])
