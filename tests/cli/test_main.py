import subprocess
import sys

import pytest

from vario.cli import main, make_parser
from vario.cli.commands import command_names, load


def test_without_a_word_the_overview_is_shown(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in command_names():
        assert f"\n  {name} " in shown


def test_an_unknown_command_names_the_nearest(capsys):
    assert main(["reprot"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "vario: unknown command 'reprot'. Did you mean 'report'? See `vario --help`.\n"


def test_an_unknown_flag_names_the_nearest(capsys):
    assert main(["ls", "--jsn"]) == 2
    assert capsys.readouterr().err == "vario: ls: unknown argument '--jsn'. Did you mean '--json'?\n"


def test_flags_are_not_guessed_from_their_beginning(capsys):
    assert main(["ls", "--js"]) == 2


def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path):
    assert main(["report", str(tmp_path / "nothing")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vario: ")
    assert error.count("\n") == 1


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vario 0.")


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself_and_ends_with_examples(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert (load(name).__doc__ or "").splitlines()[0] in shown
    last = shown.partition("examples:")[2].strip().splitlines()
    assert last
    assert any(line.strip().startswith(f"vario {name}") for line in last)


@pytest.mark.parametrize("name", sorted(set(command_names()) - {"run", "demo", "mcp"}))  # mcp speaks nothing else
def test_every_reading_command_has_json(name):
    flags = [flag for action in make_parser(name, load(name))._actions for flag in action.option_strings]
    assert "--json" in flags


def test_vario_is_also_a_module():
    result = subprocess.run([sys.executable, "-m", "vario", "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert "usage: vario" in result.stdout
