"""Write docs/gallery.md and its pictures: small real trainings, each with one fault, and what vario says about them.

python tools/make_gallery.py [FOLDER]

Trains for about a minute on a CPU, unless FOLDER already contains the runs. The training code is in gallery_runs.py.
"""

from __future__ import annotations

import functools
import inspect
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gallery_runs as runs
import numpy as np
import torch

import vario
from vario.reports.plot_style import GREY, RED, line_look, name_ticks, save_picture

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
SIZE_INCHES = (9.0, 2.9)


@dataclass(frozen=True)
class Curve:
    """One line of a picture."""

    target: str
    label: str
    quantity: str = "scalar"
    statistic: str = "value"


@dataclass(frozen=True)
class Panel:
    """One of the two plots of a picture."""

    title: str
    curves: Sequence[Curve]
    is_log: bool = False


@dataclass(frozen=True)
class Fault:
    """One section of the page."""

    title: str
    train: Callable[[runs.Watch], None]
    rule: str
    """Which rule leads the diagnosis."""
    step: int
    text: str
    panel: Panel
    after: str
    """What to do about it."""
    loss_is_log: bool = False

    @property
    def name(self) -> str:
        """Name of the run and of the picture."""
        return self.train.__name__.replace("_", "-")


def _activations(*targets: str, statistic: str = "absmax") -> tuple[Curve, ...]:
    return tuple(Curve(target, target, "activation", statistic) for target in targets)


def _gradients(*targets: str) -> tuple[Curve, ...]:
    return tuple(Curve(target, target, "gradient", "norm") for target in targets)


FAULTS = (
    Fault(
        "Learning rate too high",
        runs.learning_rate_too_high,
        "lr_change",
        100,
        "The learning rate jumps from 0.001 to 0.1 at step 100. The loss jumps one step later and never recovers. "
        "Gradients, updates and weights of most layers change together, which points at the optimizer and not at "
        "one layer.",
        Panel(
            "update norm / weight norm",
            [Curve(f"{n}.weight:ratio", f"{n}.weight", "update", "max") for n in (0, 4)],
            True,
        ),
        "Restart from a checkpoint before the jump. If a scheduler sets the rate, log it and check its units: steps or "
        "epochs.",
        loss_is_log=True,
    ),
    Fault(
        "NaN in attention",
        runs.nan_in_attention,
        "non_finite",
        100,
        "One sequence of the batch at step 100 is all padding. Every key of it is masked with -Inf, so softmax divides "
        "0 by 0. The loss is NaN in the same step, and the weights of all layers are NaN after it. The report names "
        "the first tensor that went bad.",
        Panel(
            "NaN elements of activations",
            [
                Curve(f"blocks.{n}.attention.out:input", f"blocks.{n}.attention.out", "activation", "nans")
                for n in range(3)
            ],
        ),
        "Drop empty sequences in the loader, or let a fully masked row attend to itself. "
        "[Find a NaN in five minutes](find-a-nan.md) goes through such a case step by step.",
    ),
    Fault(
        "Dead ReLUs",
        runs.dead_relus,
        "activation_jump",
        100,
        "One batch at step 100 was not normalised. Its gradient pushes the biases so far that most ReLU units never "
        "fire again. They get no gradient, so later batches cannot bring them back. The loss stays near that of "
        "guessing.",
        Panel("share of silent units", [Curve(f"{n}:dead", f"layer {n}", "unit", "mean") for n in (1, 3, 5)]),
        "Clip gradients, so that one batch cannot do this. Check the range of inputs in the loader.",
        loss_is_log=True,
    ),
    Fault(
        "Layers without a gradient",
        runs.layers_without_gradient,
        "zero_grad",
        0,
        "The first two layers run under a `no_grad` that was left in the code. The loss falls, only more slowly than "
        "it should: nothing crashes, and the loss alone looks fine. The norms of the two weights stay exactly where "
        "they began.",
        Panel(
            "weight norm, relative to step 0",
            [Curve(f"{n}.weight", f"{n}.weight", "weight", "norm") for n in (0, 2, 4, 6)],
        ),
        "Remove the `no_grad`. If layers are meant to be frozen, call `requires_grad_(False)` on them: vario then "
        "expects no gradient.",
    ),
    Fault(
        "Exploding gradients",
        runs.exploding_gradients,
        "level_shift",
        100,
        "A recurrent network was trained on 20 time steps and gets 120 of them from step 100 on. Its recurrent weights "
        "amplify a little at each time step, which was harmless before. Now gradients are a million times as large. "
        "The outputs of the recurrent layer grew first, so the diagnosis starts there.",
        Panel("gradient norm", _gradients("rnn.weight_hh_l0", "rnn.weight_ih_l0", "head.weight"), True),
        "Clip the gradient norm (`torch.nn.utils.clip_grad_norm_`), or lengthen sequences step by step.",
        loss_is_log=True,
    ),
    Fault(
        "Repeated data",
        runs.repeated_data,
        "data_repeat",
        100,
        "From step 100 on the loader returns the same batch. The loss falls faster than before, so its curve looks "
        "like good news. vario compares rows of each batch with those it saw before.",
        Panel("share of rows seen a moment ago", [Curve("batch_repeated", "repeated rows")]),
        "Check the sampler, the seeds of the loader's workers, and where the loader continues after a resume.",
    ),
    Fault(
        "float16 overflow",
        runs.float16_overflow,
        "level_shift",
        100,
        "One input column is a counter that nobody normalised. From step 100 on it grows, and the first layer's output "
        "grows with it until it passes 65,504, the largest float16. The rule `near_overflow` warns while all numbers "
        "are still finite.",
        Panel("largest activation (float16 ends at 65,504)", _activations("0:output", "2:output", "4:output"), True),
        "Normalise the inputs, or use bfloat16, whose range is that of float32.",
        loss_is_log=True,
    ),
    Fault(
        "Loss scale too high",
        runs.loss_scale_too_high,
        "skipped_updates",
        100,
        "The loss scale becomes 2^40 at step 100, as after loading another job's scaler. The scaled gradients "
        "overflow, so the `GradScaler` skips each update and halves its scale. The model stands still for as long as "
        "that takes. The loss curve shows a flat piece and nothing else.",
        Panel("loss scale", [Curve("loss_scale", "loss scale")], True),
        "Save and load the scaler's state together with the model. If skipping never ends, some gradient overflows at "
        "any scale: look for infinite gradients instead.",
    ),
)

INTRO = """<!-- Made by tools/make_gallery.py from real trainings; edit the texts there. -->

# Gallery of faults

What common faults look like, and what vario says about them. Each picture shows a small real training on a CPU with one
fault. The dashed grey line is the step of the fault, the red line is the first alert of the diagnosed incident. The
text in each box is what `vario diagnose` prints.

All runs are recorded at every step (`every=1`, `overhead="off"`), because they are short. `python
tools/make_gallery.py` trains them and writes this page.
"""


def train_all(folder: Path) -> None:
    """Train all runs that do not exist yet."""
    torch.set_num_threads(1)
    for fault in FAULTS:
        if not (folder / fault.name).exists():
            train(fault, folder)


def train(fault: Fault, folder: Path) -> None:
    """One run."""
    torch.manual_seed(0)
    fault.train(functools.partial(vario.watch, directory=str(folder), name=fault.name, every=1, overhead="off"))


def draw(fault: Fault, run: vario.Run, first_step: int) -> None:
    """The loss of a run, and the series that shows its fault."""
    loss = Panel("loss", [Curve("loss", "loss")], fault.loss_is_log)

    def fill(figure: Any, _: object) -> None:
        for axes, panel in zip(figure.subplots(1, 2), (loss, fault.panel), strict=True):
            _fill_panel(axes, panel, run)
            if fault.step:
                axes.axvline(fault.step, color=GREY, linestyle=(0, (4, 3)), linewidth=1)
            axes.axvline(first_step, color=RED, linewidth=1)

    save_picture(fill, IMAGES / f"gallery-{fault.name}.png", SIZE_INCHES, [])


def _fill_panel(axes: Any, panel: Panel, run: vario.Run) -> None:
    for index, curve in enumerate(panel.curves):
        series = run.series(curve.target, curve.quantity, curve.statistic)
        values = series.values / series.values[0] if "relative" in panel.title else series.values
        color, form = line_look(index)
        axes.plot(series.steps, values, color=color, linestyle=form, linewidth=1.4, label=curve.label)
        bad = ~np.isfinite(values)
        if bad.any():
            # Along the lower edge, whatever the scale is: these have no height of their own.
            place = axes.get_xaxis_transform()
            label = "not finite" if index == 0 else None
            axes.plot(
                series.steps[bad], np.zeros(bad.sum()), "|", color=RED, transform=place, label=label, clip_on=False
            )
    if panel.is_log:
        axes.set_yscale("log")
    else:
        name_ticks(axes.yaxis)
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend()


def section(fault: Fault, diagnosis: Any) -> str:
    """Return the section about one fault."""
    source = inspect.getsource(fault.train).rstrip()
    words = textwrap.fill(str(diagnosis), 84)
    texts = (fault.text, f"**Fix.** {fault.after}")
    wrapped = [textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) for text in texts]
    return f"""## {fault.title}

{wrapped[0]}

![The loss, and the series that shows the fault](images/gallery-{fault.name}.png)

```text
{words}
```

{wrapped[1]}

<details markdown="1">
<summary>The training</summary>

```py
{source}
```

</details>
"""


def main() -> int:
    """Train, draw and write; exits with an error if a fault is not found by the expected rule."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        train_all(folder)
        pieces, missed = [INTRO], 0
        for fault in FAULTS:
            run = vario.open_run(folder / fault.name)
            diagnosis = vario.diagnose(run)
            lead = diagnosis.first.lead if diagnosis.first else None
            found = lead.rule if lead else "nothing"
            sys.stdout.write(f"{fault.name}: {found}{'' if found == fault.rule else f', expected {fault.rule}'}\n")
            missed += found != fault.rule
            if diagnosis.first and lead:
                draw(fault, run, diagnosis.first.step)
                pieces.append(section(fault, diagnosis))
        (DOCS / "gallery.md").write_text("\n".join(pieces), encoding="utf8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
