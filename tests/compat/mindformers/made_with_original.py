"""Makes `original.json`: what the callbacks of mindformers 2.1.0 write about the training of monitored_mindspore.py.

Run by hand, in MindSpore's own environment, because the package as a whole needs MindSpore 2.11. Only the module with
its callbacks is loaded; the rest of the package is replaced by names that do nothing::

    pip download mindformers==2.1.0 --no-deps -d wheels && python -m zipfile -e wheels/*.whl unpacked
    pip install --no-deps --target packages tensorboardX
    PYTHONPATH=src:packages .mindspore/bin/python tests/compat/mindformers/made_with_original.py unpacked
"""

import ast
import importlib.util
import json
import logging
import sys
import tempfile
import types
from pathlib import Path

import mindspore as ms
from monitored_mindspore import MixtureStep, train_step_cell

from vario.core.event_file import fields, read_records
from vario.logs.event_files import _value

PACKAGE = "mindformers"
TARGET = ["layers.1\\.", "head"]


def blank(name):
    """A module in which every name is a function that does nothing."""
    module = types.ModuleType(name)

    def missing(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return lambda *args, **kwargs: None

    module.__getattr__ = missing
    sys.modules[name] = module
    return module


def load(unpacked, writer):
    """Return the original module of callbacks."""
    path = Path(unpacked) / PACKAGE / "core" / "callback" / "callback.py"
    found = {"mindformers.trainer", "mindformers.trainer.optimizer_grouped_parameters"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            parts = node.module.split(".")
            found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    modules = {name: blank(name) for name in sorted(found)}
    modules["mindformers.trainer.optimizer_grouped_parameters"].GROUPED_PARAMS = []
    register = modules["mindformers.tools.register"]
    register.MindFormerRegister = types.SimpleNamespace(register=lambda *args, **kwargs: lambda kind: kind)
    register.MindFormerModuleType = types.SimpleNamespace(CALLBACK="callback")
    switches = ("log_loss_scale_to_tensorboard", "log_timers_to_tensorboard", "log_expert_load_to_tensorboard")
    board = modules["mindformers.utils.tensorboard"]
    board.get_tensorboard_writer = lambda: writer
    board.get_tensorboard_args = lambda: dict.fromkeys(switches, True)
    modules["mindformers.core.context.build_context"].is_legacy_model = lambda: True
    places = modules["mindformers.tools.utils"]
    places.get_real_rank = places.get_real_local_rank = lambda: 0
    places.get_real_group_size = lambda: 1
    places.is_last_pipeline_stage = lambda *args: True
    modules["mindformers.tools.logger"].logger = logging.getLogger(PACKAGE)
    modules["mindformers.tools"].get_output_root_path = tempfile.gettempdir
    versions = modules["mindformers.version_control"]
    versions.check_arf_status = versions.check_tft_valid = lambda *args, **kwargs: False
    versions.is_version_ge = lambda *args: True
    modules["mindformers.wrapper.wrapper"].get_real_models = bare
    spec = importlib.util.spec_from_file_location("mindformers.core.callback.callback", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def bare(network):
    while hasattr(network, "network"):
        network = network.network
    return network


def scalars(folder):
    """Every scalar of every event file below a folder, by its file's folder and tag."""
    curves = {}
    for path in sorted(folder.rglob("events.*")):
        for record in read_records(path.read_bytes()):
            event = dict(fields(record))
            for number, content in fields(event[5]) if 5 in event else ():
                tag, value = _value(content) if number == 1 else ("", None)
                if value is not None:
                    place = str(path.parent.relative_to(folder))
                    key = tag if place == "." else f"{place}: {tag}"
                    curves.setdefault(key, []).append([int(event.get(2, 0)), value])
    return curves


def main(unpacked):
    from tensorboardX import SummaryWriter

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        writer = SummaryWriter(str(folder / "rank_0"), max_queue=10)
        original = load(unpacked, writer)
        both = ["log", "tensorboard"]

        class Config(dict):
            __getattr__ = dict.get

        config = Config(target=TARGET, invert=False, optimizer_state_format=both, weight_state_format=both)
        config.update(throughput_baseline=10, print_struct=False, dump_path=str(folder / "dump"))
        common = {"origin_epochs": 1, "dataset_size": 6, "global_batch_size": 4}
        ms.set_context(mode=ms.PYNATIVE_MODE)
        train_step_cell(
            [
                original.MFLossMonitor(**common),
                original.TrainingStateMonitor(config=config, step_interval=1, **common),
                original.TopkBiasBalanceCallback(balance_via_topk_bias=True, expert_num=3),
            ],
            MixtureStep,
        )
        writer.close()
        curves = scalars(folder / "rank_0")
        num_files = len(list((folder / "rank_0").rglob("events.*")))
    found = {"release": "mindformers 2.1.0", "mindspore": ms.__version__, "num_event_files": num_files}
    times = ("iteration-time", "throughput", "B-samples", "throughput_linearity")
    # Times are those of one machine: of them, only the tags and steps count.
    for tag, points in curves.items():
        if tag.startswith(times):
            curves[tag] = [[step, None] for step, _ in points]
    Path(__file__).with_name("original.json").write_text(json.dumps({**found, "curves": curves}, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
