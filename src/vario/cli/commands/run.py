"""Watch an unchanged training script.

The model and its optimizer are found when the script first uses them. Options of vario stand before the script;
everything after it belongs to the script.
"""

from __future__ import annotations

import argparse

from vario.core.errors import ConfigError

EXAMPLES = """
vario run train.py --learning-rate 3e-4
vario run --quantities gradient,weight --every 5 train.py
vario run --every activation=50,weight=10 --targets 'layers.*' train.py
vario run --config vario.toml -m package.train --epochs 3
torchrun --nproc-per-node 8 -m vario run train.py
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the script and one flag for each option of Config."""
    # Config brings numpy along, so it is only imported when this command was chosen.
    from vario.cli.options import add_options

    parser.usage = "vario run [options] SCRIPT [argument ...]\n       vario run [options] -m MODULE [argument ...]"
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as with python -m")
    parser.add_argument("script", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the script and its arguments")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the script under a Monitor; the answer is the script's exit code."""
    from vario.cli.options import config_from

    if not arguments.script:
        raise ConfigError("run: which script? For example: vario run train.py")
    config = config_from(arguments)
    from vario.training.launch import run_script

    target, *rest = arguments.script
    return run_script(target, rest, config, arguments.is_module)
