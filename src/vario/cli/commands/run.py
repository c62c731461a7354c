"""Run a training script under vario, without changing it.

vario finds the model and its optimizer when the script first uses them. Put vario's options before the script;
everything after it is passed to the script.
"""

from __future__ import annotations

import argparse

from vario.core.errors import ConfigError

EXAMPLES = """
vario run train.py --learning-rate 3e-4
vario run --quantities gradient,weight --every 5 train.py
vario run --every activation=50,weight=10 --targets 'layers.*' train.py
vario run --config vario.toml -m package.train --epochs 3
vario run --mindformers-config finetune.yaml train.py
torchrun --nproc-per-node 8 -m vario run train.py
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the script and a flag for each option of Config."""
    # Config imports numpy, so import it only for this command.
    from vario.cli.options import add_options

    parser.usage = "vario run [options] SCRIPT [argument ...]\n       vario run [options] -m MODULE [argument ...]"
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as with python -m")
    parser.add_argument("script", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the script and its arguments")
    parser.add_argument(
        "--mindformers-config",
        metavar="FILE",
        help="record and report what a MindSpore Transformers YAML file asks for (monitor_config, tensorboard, "
        "callbacks); --config and flags take precedence",
    )
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the script under a Monitor and return the script's exit code."""
    from vario.cli.options import config_from

    if not arguments.script:
        raise ConfigError("run: no script given. For example: vario run train.py")
    base = None
    if arguments.mindformers_config is not None:
        from vario.compat.mindformers.loading import load_yaml

        base = load_yaml(arguments.mindformers_config)
    config = config_from(arguments, base)
    from vario.training.launch import run_script

    target, *rest = arguments.script
    return run_script(target, rest, config, arguments.is_module)
