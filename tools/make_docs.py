"""Write what is made from the code: config.md from Config, cli.md from commands, rules.md from rules, and the types of
the dashboard's page from the description of its server.

python tools/make_docs.py           write them
python tools/make_docs.py --check   say which are stale, and exit with 1 if any is
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from api_types import api_types

from vario.cli import make_parser
from vario.cli.commands import command_names, load
from vario.cli.options import flag
from vario.config import Config
from vario.core.docstrings import field_docs
from vario.core.quantities import default_every, watchable
from vario.rules import RULES

ROOT = Path(__file__).parents[1]
MADE = "<!-- Made by tools/make_docs.py from the code; edit the docstrings there. -->\n"

CONFIG_INTRO = """# Options

Every option is a keyword of `vario.watch`, a key of a config file and a flag of `vario run`. Nothing has to be set.

```python
import torch

import vario

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vario.watch(model, optimizer, quantities=["gradient", "weight"], every={"weight": 5}) as monitor:
    for step in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss.item())
```

The same as a file, for `vario run --config vario.toml train.py`, or for `vario.watch(..., config=...)` after
`vario.config.read_config("vario.toml")`:

```toml
quantities = ["gradient", "weight"]

[every]
weight = 5
```

`VARIO=off` in the environment, or `enabled=False`, switches everything off: `vario.watch`, the trainers' callbacks,
msprobe's `TrainerMon` and `vario run` do nothing and import nothing, and whatever they return accepts the same calls.

A file can be TOML, YAML (needs the extra `yaml`) or JSON. What is given by keyword or flag wins over the file. An
unknown key is refused before the first step, with the nearest known one named.
"""

CLI_INTRO = """# Commands

`vario COMMAND --help` says what stands here. Answers go to stdout; progress and remarks go to stderr. Output is plain
when it is piped, and without colour where `NO_COLOR` is set. A mistake in what was asked ends with one line and exit
code 2.

`--json` writes one strict JSON document. JSON has no word for what is not a finite number, so such a value becomes one
of the strings `"nan"`, `"inf"` and `"-inf"`; `null` means that there is no value.
"""


RULES_INTRO = """# Rules

A rule checks the steps of a run as they are recorded and reports what is wrong: which tensor, which rank, since which
step, and what to look at next. All rules are on by default and need no tuning. They run on the monitor's background
thread, so training never waits for them. A rule that fails is switched off like any other part.

Alerts are stored in `alerts.jsonl` of the run. Alerts with the same root cause become one incident, which is reported
once, three steps after its first alert. `vario diagnose RUN` explains it, `vario check RUN` replays the rules over a
stored run. See [alerts.md](alerts.md) to configure notifications and automatic actions.

Three kinds:

- **exact** rules check what must hold in any correct training: replicas are equal, weights change only in updates, no
  number is NaN. A few allow for rounding or wait for several steps; these are their options.
- **limit** rules compare a bounded quantity with a physical limit: an update that is a tenth of its weight.
- **relative** rules compare a series with its own past. Two things must hold: the change is unusual (z), and it is
  large enough to matter (size).

If most tensors change together, the report names a common cause (optimizer, learning rate, loss scale) and blames no
single tensor.

## Choosing and tuning

```python
import torch

import vario

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vario.watch(model, optimizer, rules={"grad_spike": {"threshold": 10}, "drift": False}) as monitor:
    for step in range(10):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss.item())
```

`rules=["non_finite", "grad_spike"]` uses only these, `rules=False` none. In a config file:

```toml
[rules.grad_spike]
threshold = 10

[rules]
drift = false
```

## A rule of your own

A rule is a function that yields findings. Its keyword arguments are its options; `vario rules` shows the paragraphs of
its docstring. Pass it in `rules=[...]`, add it as a file in `vario/rules/`, or provide it from your own package through
the entry point group `vario.rules` ([Extend vario](extending.md#a-rule)).

```python
from vario.rules import RULES, Finding, rule


@rule("limit")
def large_weight(step, limit: float = 100.0):
    \"\"\"A weight above a limit.

    Why: in this project no weight should get there.

    Next: Lower its learning rate.
    \"\"\"
    rows = step.rows("weight")
    for target, size in zip(rows.targets, rows.statistic("absmax")):
        if size > limit:
            yield Finding(f"'{target}' reaches {size}", "weight", target, size, high=limit)


rules = [*(found.part for found in RULES), large_weight]
```

`step.trend("gradient", "rms")` compares a statistic of every target with its own past, vectorised; its state is saved
with the run and restored on resume. `@rule(..., over="ranks")` gets the same step of all ranks; such
rules run in `vario follow` and `vario check`, never inside training.
"""


def rules_page() -> str:
    """The page about rules."""
    lines = [MADE, RULES_INTRO, "## The rules\n"]
    for found in RULES:
        rule = found.part
        lines.append(f"### {rule.name}\n")
        options = ", ".join(f"`{name}` {default}" for name, default in rule.options.items())
        over = "over ranks" if rule.over == "ranks" else "on each rank"
        quiet = "; for reports only" if rule.is_quiet else ""
        lines.append(f"{rule.summary} *{rule.kind.capitalize()}, {over}{quiet}.*\n")
        lines.append(f"{rule.why[0].upper()}{rule.why[1:]}\n")
        lines.append(f"Next: {rule.next}\n")
        if options:
            lines.append(f"Options: {options}.\n")
    return "\n".join(lines).rstrip() + "\n"


def config_page() -> str:
    """The page about options."""
    docs = field_docs(Config)
    lines = [MADE, CONFIG_INTRO]
    for item in dataclasses.fields(Config):
        lines.append(f"## {item.name}\n")
        lines.append(f"{docs[item.name]}\n")
        shown = _default(item)
        lines.append(f"Type `{item.type}`, flag `{flag(item.name)}`, default: {shown}.\n")
    return "\n".join(lines).rstrip() + "\n"


def _default(item: dataclasses.Field[object]) -> str:
    if item.name == "every":
        return ", ".join(f"{quantity} {default_every(quantity)}" for quantity in watchable())
    if item.default_factory is not dataclasses.MISSING:
        return "empty"
    if item.default is None:
        return "unset"
    if isinstance(item.default, tuple):
        return ", ".join(map(str, item.default)) or "empty"
    return str(item.default).lower() if isinstance(item.default, bool) else str(item.default)


def cli_page() -> str:
    """The page about commands, independent of how this Python's argparse lays out its help."""
    lines = [MADE, CLI_INTRO]
    for name in command_names():
        command = load(name)
        parser = make_parser(name, command)
        lines.append(f"## vario {name}\n")
        lines.append((command.__doc__ or "").strip() + "\n")
        lines.append("| argument | meaning |\n| --- | --- |")
        lines += [
            f"| `{_shape(action)}` | {_cell((action.help or '').replace('%%', '%'))} |"
            for action in parser._actions
            if not isinstance(action, argparse._HelpAction)
        ]
        lines.append("\n```sh\n" + command.EXAMPLES.strip() + "\n```\n")
    return "\n".join(lines).rstrip() + "\n"


def _shape(action: argparse.Action) -> str:
    metavar = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return _cell(f"[{metavar}]" if action.nargs == "?" else metavar)
    flags = ", ".join(action.option_strings)
    return _cell(flags if action.nargs == 0 else f"{flags} {metavar}")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {
    "docs/config.md": config_page,
    "docs/cli.md": cli_page,
    "docs/rules.md": rules_page,
    "frontend/src/api.ts": api_types,
}


def main() -> int:
    """Write or check every page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        path = ROOT / name
        text = make()
        if not path.exists() or path.read_text(encoding="utf8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf8")
    if stale:
        sys.stderr.write(f"{'stale' if check else 'written'}: {', '.join(stale)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
