"""The cost of watching MindSpore on a CPU: run by `bench/overhead.py --mindspore`, in MindSpore's own environment.

A model of 10M parameters, in PyNative mode and in graph mode. Norms are recorded in every step. Beside each quantity
stands the way of the monitors that vario replaces: one operation and one transfer to the host per tensor. Machines
drift, and others use them: each step is compared with the steps of an unwatched model right before and after it, and
the median of all rounds counts. Further tables are processor time, of all threads and of the main thread: they say more
than the first where other programs run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.graph.api import _no_grad

import vario

WIDTH, LAYERS, ROWS = 640, 6, 512
STATISTICS = ["norm"]
VARIANTS: dict[str, list[str]] = {
    "gradients": ["gradient"],
    "weights": ["weight"],
    "gradients and weights": ["gradient", "weight"],
    "optimizer state": ["moment"],
    "activations": ["activation", "activation_gradient"],
}


class Block(nn.Cell):
    """Two layers and a norm, with a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([WIDTH])
        self.up, self.act, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, inputs):  # noqa: ANN001, ANN201 - compiled
        return inputs + self.down(self.act(self.up(self.norm(inputs))))


class Net(nn.Cell):
    """Residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.SequentialCell([Block() for _ in range(LAYERS)])
        self.head = nn.Dense(WIDTH, WIDTH)

    def construct(self, inputs):  # noqa: ANN001, ANN201 - compiled
        return self.head(self.blocks(inputs))


class Training:
    """One model with its training cell."""

    def __init__(self) -> None:
        self.net = Net()
        self.optimizer = nn.Adam(self.net.trainable_params(), 1e-4)
        self.cell = nn.TrainOneStepCell(nn.WithLossCell(self.net, nn.MSELoss()), self.optimizer)
        self.cell.set_train()
        generator = np.random.default_rng(0)
        self.batch = [Tensor(generator.normal(size=(ROWS, WIDTH)).astype(np.float32)) for _ in range(2)]

    def step(self) -> None:
        """Run a step, until its weights are there."""
        self.cell(*self.batch)
        self.optimizer.parameters[-1].asnumpy()


def norm(tensor: Any) -> float:
    """One tensor: an operation, and a transfer."""
    with _no_grad():
        return float(ops.sqrt(ops.reduce_sum(ops.square(ops.cast(tensor, mindspore.float32)))).asnumpy())


def norms(tensors: Iterable[Any]) -> None:
    """The same for several; a gradient that nothing needs is None."""
    for one in tensors:
        if one is not None:
            norm(one)


def per_tensor(name: str, training: Training) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what is done after each step, and what undoes it, in the way of one transfer per tensor."""
    handles: list[Any] = []
    after: Callable[[], None] = lambda: None  # noqa: E731
    parameters, optimizer = training.optimizer.parameters, training.optimizer
    if "gradients" in name:
        handles += [one.register_hook(lambda gradient: norm(gradient) * 0 or None) for one in parameters]
    if "weights" in name:
        after = lambda: [norm(one) for one in parameters] and None  # noqa: E731
    if name == "optimizer state":
        after = lambda: [norm(one) for one in (*optimizer.moment1, *optimizer.moment2)] and None  # noqa: E731
    if name == "activations":
        # Inputs and outputs with their gradients, as msprobe's monitor and vario record them.
        for _, cell in training.net.cells_and_names():
            handles.append(cell.register_forward_hook(lambda cell, args, output: norms((*args, output))))
            handles.append(cell.register_backward_hook(lambda cell, to, came: norms((*to, *came))))
    return after, lambda: [handle.remove() for handle in handles] and None


MEASURED = ("time", "processor time", "processor time of the main thread")
Pair = tuple[float, float]
"""A step without and one with something, of those that ran right after each other."""


def timed(training: Training, after: Callable[[], None]) -> list[float]:
    """Return the times of one step, as in `MEASURED`."""
    clocks = (time.perf_counter, time.process_time, time.thread_time)
    began = [clock() for clock in clocks]
    training.step()
    after()
    return [clock() - start for clock, start in zip(clocks, began, strict=True)]


def nothing() -> None:
    """Do nothing after a step."""


def measure(mode: str, rounds: int) -> dict[str, list[list[Pair]]]:
    """Return, by variant and round, the times of a step beside those of the unwatched steps before and after it."""
    is_graph = mode == "graph"
    mindspore.set_context(mode=mindspore.GRAPH_MODE if is_graph else mindspore.PYNATIVE_MODE)
    found: dict[str, list[list[Pair]]] = {}
    alone = Training()
    with tempfile.TemporaryDirectory() as folder:
        options = {"directory": folder, "every": 1, "rules": False, "overhead": "off", "statistics": STATISTICS}
        for name, quantities in VARIANTS.items():
            watched = Training()
            with vario.watch(watched.cell, quantities=quantities, **options):
                kinds: dict[str, tuple[Training, Callable[[], None]]] = {"vario": (watched, nothing)}
                undo: Callable[[], None] = nothing
                # Inside a graph there is nothing that transfers a number per tensor.
                if not is_graph or name in ("weights", "optimizer state"):
                    other = Training()
                    after, undo = per_tensor(name, other)
                    kinds["per tensor"] = other, after
                for training, after in ((alone, nothing), *kinds.values()):
                    timed(training, after)  # warms up, and compiles
                    timed(training, after)
                before = timed(alone, nothing)
                for _ in range(rounds):
                    for kind, (training, after) in kinds.items():
                        times = timed(training, after)
                        later = timed(alone, nothing)
                        unwatched = [(one + two) / 2 for one, two in zip(before, later, strict=True)]
                        pairs = list(zip(unwatched, times, strict=True))
                        found.setdefault(f"{name}, {kind}", []).append(pairs)
                        before = later
                undo()
    return found


def main() -> None:
    """Print a table, and a JSON line with all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--modes", default="pynative,graph")
    parser.add_argument("--only", default="", help="quantities whose name contains this")
    options = parser.parse_args()
    for name in [name for name in VARIANTS if options.only not in name]:
        del VARIANTS[name]
    mindspore.set_device("CPU")
    num_parameters = sum(one.size for one in Net().trainable_params())
    print(f"MindSpore {mindspore.__version__}, {num_parameters / 1e6:.1f}M parameters, batch {ROWS} x {WIDTH}, Adam")
    for mode in options.modes.split(","):
        found = measure(mode, options.rounds)
        for number, what in enumerate(MEASURED):
            show(mode, what, {label: [pairs[number] for pairs in rounds] for label, rounds in found.items()})


def show(mode: str, what: str, found: dict[str, list[Pair]]) -> None:
    """Print the medians over all rounds: ratios to the unwatched step, and milliseconds added to it."""
    base = statistics.median(pair[0] for pairs in found.values() for pair in pairs)
    figures = {
        label: (
            statistics.median(watched / unwatched for unwatched, watched in pairs),
            statistics.median(watched - unwatched for unwatched, watched in pairs) * 1e3,
        )
        for label, pairs in found.items()
    }
    print(f"\n{mode}, {what}: {base * 1e3:.0f} ms per unwatched step")
    print(f"{'':28}{'vario':>10}{'per tensor':>12}{'added by vario':>16}{'by the other':>14}{'times as much':>15}")
    for name in VARIANTS:
        ratio, added = figures[f"{name}, vario"]
        text = f"{name:28}{ratio:10.3f}"
        if f"{name}, per tensor" in figures:
            other, more = figures[f"{name}, per tensor"]
            times = f"{more / added:.1f}" if added > 0 else "-"
            text += f"{other:12.3f}{added:13.1f} ms{more:11.1f} ms{times:>15}"
        else:
            text += f"{'-':>12}{added:13.1f} ms{'-':>14}"
        print(text)
    rounded = {label: [round(value, 4) for value in pair] for label, pair in figures.items()}
    print(json.dumps({"mode": mode, what: rounded}), flush=True)


if __name__ == "__main__":
    main()
