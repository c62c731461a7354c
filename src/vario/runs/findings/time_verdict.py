"""What limits the speed of a run: one line, its evidence, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vario.core.text import duration
from vario.runs.reader import RunReader
from vario.runs.views.time_split import TimeSplit, read_time_split

Kind = Literal[
    "input", "between", "optimizer", "evaluation", "checkpoint", "monitor", "communication", "rest", "host", "compute"
]

MUCH: Mapping[Kind, float] = {
    "input": 0.25,
    "between": 0.25,
    "evaluation": 0.25,
    "checkpoint": 0.2,
    "monitor": 0.2,
    "rest": 0.4,
    "optimizer": 0.4,
}
"""The share of the time from which on a part is what to look at first."""
BUSY_HOST = 0.8
"""A device waits for the host if the host takes at least this share of the device's time to start its work."""
NAMES = {
    "input": "waiting for input",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "between": "between steps",
    "rest": "rest of the step",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "monitor": "vario",
}
LEAST_SHOWN = 0.005


@dataclass(frozen=True)
class TimeVerdict:
    """What most of the time goes to beyond what has to be computed, or that this is not much."""

    kind: Kind
    text: str
    """One line."""
    evidence: str
    """The shares, and the steps they are based on."""
    advice: str
    """What to try next."""
    split: TimeSplit


def time_verdict(run: RunReader, rank: int | None = None) -> TimeVerdict | None:
    """Say what limits the speed of a rank (default: the first); None if too little was recorded."""
    split = read_time_split(run, rank)
    if split is None:
        return None
    kind = _kind(split, run.world_size)
    return TimeVerdict(kind, _text(kind, split), evidence_text(split), _advice(kind, split), split)


def _kind(split: TimeSplit, world_size: int) -> Kind:
    much = {kind: split.shares[kind] for kind, least in MUCH.items() if split.shares[kind] >= least}
    if not _knows_passes(split):
        much.pop("rest", None)  # they are in it
    if much:
        found = max(much, key=lambda kind: much[kind] - MUCH[kind])
        return "communication" if found == "rest" and world_size > 1 else found
    return "host" if split.host_share is not None and split.host_share >= BUSY_HOST else "compute"


def _knows_passes(split: TimeSplit) -> bool:
    return split.shares["forward"] + split.shares["backward"] > 0


def _text(kind: Kind, split: TimeSplit) -> str:
    share = {name: f"{100 * found:.0f} %" for name, found in split.shares.items()}
    passes = f"forward and backward take {100 * (split.shares['forward'] + split.shares['backward']):.0f} %"
    if not _knows_passes(split):
        passes = f"the step, whose passes were not measured, takes {share['rest']}"
    return {
        "input": f"Waiting for input: the loader takes {share['input']} of the time.",
        "between": f"Work between steps: {share['between']} of the time goes to neither loader, model nor optimizer.",
        "evaluation": f"Evaluation takes {share['evaluation']} of the time.",
        "checkpoint": f"Writing checkpoints takes {share['checkpoint']} of the time.",
        "monitor": f"vario itself takes {share['monitor']} of the time.",
        "rest": f"{share['rest']} of the time is inside the step, but in neither passes nor updates.",
        "communication": f"Exposed communication, most likely: {share['rest']} of the time is in no part of this rank.",
        "optimizer": f"The optimizer takes {share['optimizer']} of the time.",
        "host": "Host-bound: the device finishes its work about as fast as the host starts it.",
        "compute": f"Compute: {passes} of the time.",
    }[kind]


def evidence_text(split: TimeSplit) -> str:
    """Return the shares, largest first, and the steps they are based on."""
    shown = sorted(split.shares.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{NAMES[name]} {100 * share:.0f} %" for name, share in shown if share >= LEAST_SHOWN)
    text = f"{shares} of {duration(split.step_seconds)} a step (steps {split.first_step} to {split.last_step}"
    if split.num_whole_steps < split.num_steps:
        text += f"; passes measured in {split.num_whole_steps} of them"
    return f"{text})."


def _advice(kind: Kind, split: TimeSplit) -> str:
    return {
        "input": _input_advice(split.loader_workers),
        "between": (
            "Look at what your loop does from the update to the next forward pass: batches made without a DataLoader, "
            "logging, saving with other functions than torch.save. py-spy dump --pid PID shows the line it is in."
        ),
        "evaluation": (
            f"There were {split.num_evaluations} in these steps: evaluate less often, on fewer batches, or in larger "
            "ones."
        ),
        "checkpoint": (
            f"There were {split.num_checkpoints} in these steps: save less often, to a faster disk, or in the "
            "background (torch.distributed.checkpoint.async_save)."
        ),
        "monitor": 'Record less: vario.watch(..., overhead="1%"), longer intervals (`every`) or fewer `targets`.',
        "rest": (
            "Look at what runs between forward, backward and update: the loss, clipping, copies to the host (.item(), "
            ".cpu()), hooks."
        ),
        "communication": (
            "Record the quantity `communication` to see which collectives. Larger batches or gradient accumulation "
            "need fewer of them; check the links between hosts."
        ),
        "optimizer": "Use a fused optimizer (fused=True), or larger batches with fewer updates.",
        "host": "Start fewer, larger kernels: torch.compile, CUDA graphs, larger batches; no .item() in every step.",
        "compute": _compute_advice(split),
    }[kind]


def _input_advice(workers: int | None) -> str:
    if workers == 0:
        return "The loader has no workers: set num_workers, and persistent_workers=True."
    if workers is None:
        return "Prepare batches in worker processes, ahead of the step that needs them."
    many = f"{workers} workers are" if workers > 1 else "One worker is"
    return f"{many} too few for this: set num_workers higher, or make the dataset and collate_fn cheaper."


def _compute_advice(split: TimeSplit) -> str:
    if split.shares["forward"] > 2 * split.shares["backward"] and split.shares["forward"] > 0.5:
        return "Forward takes much longer than backward: look in it for copies, Python and waiting."
    return "To go faster: lower precision (autocast to bfloat16), torch.compile, or a faster device."
