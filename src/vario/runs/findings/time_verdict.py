"""What limits the speed of a run: one line, its evidence, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vario.core.text import duration
from vario.runs.files.listing_cache import listings_cached
from vario.runs.reader import RunReader
from vario.runs.views.speed.gpu_limits import GpuLimits, read_gpu_limits
from vario.runs.views.speed.time_split import TimeSplit, read_time_split

Kind = Literal[
    "input",
    "transfer",
    "between",
    "optimizer",
    "evaluation",
    "checkpoint",
    "monitor",
    "communication",
    "ranks",
    "rest",
    "throttled",
    "host",
    "compute",
]

MUCH: Mapping[Kind, float] = {
    "input": 0.25,
    "between": 0.25,
    "evaluation": 0.25,
    "communication": 0.25,
    "checkpoint": 0.2,
    "monitor": 0.2,
    "rest": 0.4,
    "optimizer": 0.4,
}
"""The share of the time from which on a part is what to look at first."""
LEAST_REST = 0.25
"""The rest of a step is named from this share on, if it is more than the passes and nothing else stands out."""
BUSY_HOST = 0.8
"""A device waits for the host if the host takes at least this share of the device's time to start its work."""
THROTTLED = 0.25
"""A GPU is slowed down if its clocks were lowered in at least this share of the time."""
MANY_BYTES = 2e9
"""A link that receives so many bytes a second while a device waits between steps is what it waits for: copies from
memory that is not pinned reach a few billion."""
WAITS_LESS, MOST_RANKS = 0.5, 64
"""A rank that waits for its gradients less than this share of what the first rank does is the slower one."""
NAMES = {
    "input": "waiting for input",
    "forward": "forward",
    "backward": "backward",
    "communication": "reducing gradients",
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


@listings_cached()
def time_verdict(run: RunReader, rank: int | None = None) -> TimeVerdict | None:
    """Say what limits the speed of a rank (default: the first); None if too little was recorded."""
    split = read_time_split(run, rank)
    if split is None:
        return None
    rank = run.ranks[0] if rank is None else rank
    limits = read_gpu_limits(run, rank, split.first_step, split.last_step)
    kind = kind_of(split, run.world_size, limits)
    late = _latest_rank(run, rank, split) if kind == "communication" else None
    facts = _Facts(split, limits, late)
    kind = kind if late is None else "ranks"
    return TimeVerdict(kind, _text(kind, facts), evidence_text(split), _advice(kind, facts), split)


@dataclass(frozen=True)
class _Facts:
    """What the words are about."""

    split: TimeSplit
    limits: GpuLimits | None = None
    late: tuple[int, float] | None = None
    """The rank that waits least for its gradients, and its share."""


def kind_of(split: TimeSplit, world_size: int, limits: GpuLimits | None = None) -> Kind:
    """Return what limits the speed: the part that is furthest above its limit, or else what its passes wait for."""
    found = _most(split)
    if found is not None:
        if found == "between" and _transfer_rate(split, limits) >= MANY_BYTES:
            return "transfer"
        return "communication" if found == "rest" and world_size > 1 else found
    if limits is not None and limits.throttled_share >= THROTTLED:
        return "throttled"
    return "host" if split.host_share is not None and split.host_share >= BUSY_HOST else "compute"


def _most(split: TimeSplit) -> Kind | None:
    """Return the part that is furthest above its limit, if any is."""
    much = {kind: split.shares[kind] - least for kind, least in MUCH.items() if split.shares[kind] >= least}
    if not much and split.shares["rest"] >= max(LEAST_REST, split.shares["forward"] + split.shares["backward"]):
        much["rest"] = 0.0
    if not _knows_passes(split):
        much.pop("rest", None)  # they are in it
    return max(much, key=lambda kind: much[kind], default=None)


def _transfer_rate(split: TimeSplit, limits: GpuLimits | None) -> float:
    """Bytes a second that come from the host between steps, if they all come there."""
    received = None if limits is None else limits.received_bytes_per_second
    return (received or 0.0) / split.shares["between"]


def _latest_rank(run: RunReader, rank: int, split: TimeSplit) -> tuple[int, float] | None:
    """The rank that the others wait for: it waits for its gradients much less than this one does."""
    if _most(split) != "communication":
        return None  # the rest of a step says nothing of single ranks
    others = [other for other in run.ranks if other != rank]
    waits = {}
    for other in others[:: -(-len(others) // MOST_RANKS) or 1]:
        found = read_time_split(run, other)
        if found is not None:
            waits[other] = found.shares["communication"]
    least = min(waits, key=lambda other: waits[other], default=None)
    if least is None or waits[least] >= WAITS_LESS * split.shares["communication"]:
        return None
    return least, waits[least]


def _knows_passes(split: TimeSplit) -> bool:
    return split.shares["forward"] + split.shares["backward"] > 0


def _text(kind: Kind, facts: _Facts) -> str:
    split, limits = facts.split, facts.limits
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
        "communication": _communication_text(split, share),
        "ranks": _ranks_text(facts, share),
        "transfer": (
            f"Transfers: {share['between']} of the time is between steps, and the GPU receives "
            f"{_transfer_rate(split, limits) / 1e9 if split.shares['between'] else 0.0:.2g} GB/s from the host in it."
        ),
        "throttled": _throttled_text(limits),
        "optimizer": f"The optimizer takes {share['optimizer']} of the time.",
        "host": "Host-bound: the device finishes its work about as fast as the host starts it.",
        "compute": f"Compute: {passes} of the time.",
    }[kind]


def _communication_text(split: TimeSplit, share: Mapping[str, str]) -> str:
    if _most(split) == "communication":
        return f"Exposed communication: {share['communication']} of the time goes to reducing gradients after backward."
    return f"Exposed communication, most likely: {share['rest']} of the time is in no part of this rank."


def _ranks_text(facts: _Facts, share: Mapping[str, str]) -> str:
    if facts.late is None:
        return ""
    late, least = facts.late
    return (
        f"Waiting for rank {late}: this rank waits {share['communication']} of the time for its gradients, rank {late} "
        f"{100 * least:.0f} %."
    )


def _throttled_text(limits: GpuLimits | None) -> str:
    if limits is None:
        return ""
    why = "because of heat" if limits.is_heat else "by its power supply or the hardware itself"
    return f"Throttled: {limits.throttled_gpu} was slowed down {why} {100 * limits.throttled_share:.0f} % of the time."


def evidence_text(split: TimeSplit) -> str:
    """Return the shares, largest first, and the steps they are based on."""
    shown = sorted(split.shares.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{NAMES[name]} {100 * share:.0f} %" for name, share in shown if share >= LEAST_SHOWN)
    text = f"{shares} of {duration(split.step_seconds)} a step (steps {split.first_step} to {split.last_step}"
    if split.num_whole_steps < split.num_steps:
        text += f"; passes measured in {split.num_whole_steps} of them"
    return f"{text})."


def _advice(kind: Kind, facts: _Facts) -> str:
    split = facts.split
    return {
        "input": _input_advice(split.loader_workers),
        "between": (
            "Look at what your loop does from the update to the next forward pass: batches made without a DataLoader, "
            "logging, saving with other functions than torch.save. py-spy dump --pid PID shows the line it is in."
        ),
        "evaluation": (
            f"There were {split.num_evaluations} in these steps (validation, or samples drawn from the model): do it "
            "less often, on fewer batches, or in larger ones."
        ),
        "checkpoint": (
            f"There were {split.num_checkpoints} in these steps: save less often, to a faster disk, or in the "
            "background (torch.distributed.checkpoint.async_save)."
        ),
        "monitor": (
            "Record fewer `quantities` or `targets`, or record them more rarely: `every`, or a budget, `overhead`. Of "
            "steps that take a few milliseconds, the fixed cost of following them is most."
        ),
        "rest": (
            "Look at what runs between forward, backward and update: the loss, clipping, copies to the host (.item(), "
            ".cpu()), hooks."
        ),
        "communication": (
            "Record the quantity `communication` to see which collectives. Larger batches or gradient accumulation "
            "need fewer of them; check the links between hosts."
        ),
        "ranks": "The report and the ranks screen say what that rank does longer: its data, its device or its share.",
        "transfer": (
            "Pin the memory of batches (pin_memory=True) and copy them with non_blocking=True while the step before "
            "runs; send smaller types, such as uint8 images, and convert on the device."
        ),
        "throttled": (
            "Check the cooling and the power supply of that host: `nvidia-smi -q -d PERFORMANCE` has the reasons."
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
