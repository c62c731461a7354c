"""`vario top`: one screen where there is no terminal, and keys in a real one."""

import io
import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from rich.console import Console

import little_trainings
from vario.cli import main
from vario.cli.commands.top import Screen


def text_of(screen, height=40):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(screen.render(height))
    return console.export_text()


def test_without_a_terminal_it_prints_one_screen(capsys, sweep):
    assert main(["top", str(sweep), "--where", "lr = 0.1 and width = 4"]) == 0
    printed = capsys.readouterr().out
    assert "2 runs, 0 running" in printed
    assert "lr0.1-w4-s0" in printed
    assert main(["top", str(sweep), "--where", "name = none"]) == 0
    assert "No runs in" in capsys.readouterr().out


def test_the_same_runs_as_json(capsys, sweep):
    assert main(["top", str(sweep), "--where", "lr = 0.1 and width = 4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    assert {row["state"] for row in rows} == {"finished"}


def test_a_folder_that_is_not_there_is_refused(capsys, tmp_path):
    assert main(["top", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_keys_move_sort_open_and_go_back(sweep):
    screen = Screen(sweep, "")
    screen.read()
    first = text_of(screen)
    for _ in range(4):
        screen.press("s")
    assert text_of(screen) == first
    screen.press("s")
    assert "by loss" in text_of(screen)
    screen.press("j")
    screen.press("down")
    screen.press("k")
    screen.press("\r")
    opened = text_of(screen)
    assert "gradient norm, steps 0 to 15" in opened
    assert "0.weight" in opened
    screen.press("esc")
    assert "30 runs" in text_of(screen)
    screen.press("q")
    assert screen.is_over


def test_a_search_takes_the_syntax_of_the_page(sweep):
    screen = Screen(sweep, "")
    screen.read()
    for key in ("/", *"re:w(4|8)-s0q", "back", "\r"):
        screen.press(key)
    listed = text_of(screen)
    assert "/re:w(4|8)-s0" in listed
    assert "10 runs" in listed
    assert not screen.is_over
    screen.press("end")
    assert text_of(screen).splitlines()[-1].startswith(">")
    screen.press("/")
    screen.press("esc")
    assert "30 runs" in text_of(screen)


def test_a_broken_run_shows_its_alert_and_its_nan(tmp_path):
    little_trainings.train(tmp_path / "broken", steps=12, nan_step=8)
    screen = Screen(tmp_path, "")
    screen.read()
    screen.press("\r")
    opened = text_of(screen)
    assert "1 page" in opened
    assert "NaN" in opened
    assert "x" in opened.splitlines()[-2]


def test_in_a_real_terminal_it_runs_until_q(sweep):
    above, below = pty.openpty()
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30", "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "vario", "top", str(sweep)]
    with subprocess.Popen(command, stdin=below, stdout=below, stderr=below, env=environment) as process:
        os.close(below)
        wait_for(above, "30 runs")
        os.write(above, b"j\r")
        wait_for(above, "gradient norm")
        os.write(above, b"q")
        while read(above):
            pass
        assert process.wait() == 0
    os.close(above)


def wait_for(descriptor, text):
    seen = ""
    while text not in seen:
        piece = read(descriptor)
        assert piece, seen
        seen += piece


def read(descriptor):
    try:
        assert select.select([descriptor], [], [], 20)[0], "nothing came for a minute"
        return os.read(descriptor, 65536).decode("utf8", "replace")
    except OSError:
        return ""  # the other end is closed
