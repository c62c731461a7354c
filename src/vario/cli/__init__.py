"""The command line. Each file in `commands/` is one command; this file finds it, runs it and prints its errors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from vario.cli.commands import RENAMED, Command, command_names, load
from vario.cli.output import EscapedRecords, say
from vario.cli.parser import Parser
from vario.core.errors import VarioError
from vario.core.process.script import ScriptRaised, passed_on
from vario.core.urls import is_url

OWN_SCRIPTS = ("run", "demo")
"""Commands that run the user's code, whose log records vario leaves alone."""
SENTENCE = "See what happens inside a deep-learning training run."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for a usage error, 130 if interrupted.

    An exception of a script under `vario run` propagates unchanged.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    raised: BaseException
    try:
        return _dispatch(words)
    except VarioError as error:
        say(f"vario: {error}", to_stderr=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("vario: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) is gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ScriptRaised as ended:
        raised = ended.error
    raise passed_on(raised)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] == "--version":
        from vario import __version__

        print(f"vario {__version__}")
        return 0
    name, *rest = words
    if name in RENAMED:
        say(f"vario: `vario {name}` is deprecated: use `vario {RENAMED[name]}`.", to_stderr=True)
        name = RENAMED[name]
    if name not in command_names() and (os.path.isdir(name) or is_url(name)):
        # `vario DIR`: open the dashboard on it.
        name, rest = "serve", words
    if name not in OWN_SCRIPTS and logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapedRecords())
    command = load(name)
    arguments = make_parser(name, command).parse_args(rest)
    return command.run(arguments)


def make_parser(name: str, command: Command) -> Parser:
    """Build the parser of one command, with its examples at the end of its help."""
    examples = "examples:\n" + "\n".join(f"  {line}" for line in command.EXAMPLES.strip().splitlines())
    parser = Parser(prog=f"vario {name}", description=(command.__doc__ or "").strip(), epilog=examples)
    command.prepare(parser)
    return parser


def overview() -> str:
    """Return the text of `vario --help`."""
    names = command_names()
    width = max(map(len, names))
    lines = [f"usage: vario COMMAND ...\n       vario DIR\n\n{SENTENCE}\n\ncommands:"]
    for name in names:
        first_line = (load(name).__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:{width}}  {first_line}")
    lines.append("\nRun `vario COMMAND --help` for one command, `vario --version` for the version.")
    lines.append(
        "\nexamples:\n"
        "  vario demo                    watch a small transformer go wrong\n"
        "  vario run train.py --lr 3e-4  watch your own script, unchanged\n"
        "  vario report                  what happened in the latest run\n"
        "  vario vario_runs              open the dashboard with all runs\n"
        "  vario progress outputs        training status, from the logs of any trainer"
    )
    return "\n".join(lines)
