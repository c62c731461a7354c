"""What training on several GPUs makes of one GPU's memory: who keeps what, and what is gathered for a moment.

The trace of a step on one GPU is rewritten. This is arithmetic on what each strategy documents, not a simulation of its
code: good to a few per cent where weights and optimizer dominate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vario.backends.gpus import MIB
from vario.backends.memory_trace import Block, MemoryTrace
from vario.errors import ConfigError
from vario.text import unknown

HALVES = ("bfloat16", "float16")
BUCKET_BYTES = 25 * MIB
"""Of DistributedDataParallel, by default."""


@dataclass(frozen=True)
class Strategy:
    """Who keeps what."""

    name: str
    gpus: int
    sharded: frozenset[str]
    """Kinds of memory of which each GPU keeps one part."""

    has_buckets: bool = False
    """Whether gradients are copied into buckets to be reduced."""

    keeps_float32: bool = False
    """Whether the optimizer has a float32 copy of half-precision weights, and its moments in float32."""

    notes: tuple[str, ...] = ()

    @property
    def gathers_weights(self) -> bool:
        """Whether the weights of a layer are put together while it works."""
        return "weights" in self.sharded

    @staticmethod
    def named(name: str, gpus: int) -> Strategy:
        """A strategy by its name, on that many GPUs."""
        if name not in STRATEGIES:
            raise ConfigError(unknown("strategy", name, STRATEGIES))
        return replace(STRATEGIES[name], gpus=gpus)


_ROUGH = "Sharding is arithmetic on the strategy's rules, not measured."
_ZERO = "DeepSpeed's buckets (reduce_bucket_size, allgather_bucket_size) come on top."
STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("ddp", 1, frozenset(), has_buckets=True, notes=(_ROUGH,)),
        Strategy("fsdp", 1, frozenset({"weights", "gradients", "optimizer"}), notes=(_ROUGH,)),
        Strategy("zero1", 1, frozenset({"optimizer"}), keeps_float32=True, notes=(_ROUGH, _ZERO)),
        Strategy("zero2", 1, frozenset({"optimizer", "gradients"}), keeps_float32=True, notes=(_ROUGH, _ZERO)),
        Strategy(
            "zero3",
            1,
            frozenset({"weights", "gradients", "optimizer"}),
            keeps_float32=True,
            notes=(_ROUGH, _ZERO),
        ),
    )
}


def shard(trace: MemoryTrace, strategy: Strategy) -> MemoryTrace:
    """The trace of one of several GPUs that share the work so."""
    if strategy.gpus == 1:
        return trace
    return _Sharding(trace, strategy).run()


class _Sharding:
    """Goes through a trace once and writes another one."""

    def __init__(self, trace: MemoryTrace, strategy: Strategy) -> None:
        self.old = trace
        self.new = MemoryTrace(notes=trace.notes)
        self.strategy = strategy
        self.unit_bytes = dict(_unit_bytes(trace))
        self.gathered: dict[str, int] = {}
        self.whole_gradients: list[tuple[int, int]] = []
        self.numbers: dict[int, int] = {}
        self.unit = ""
        self.is_prepared = False
        self.in_transit: int | None = None

    def run(self) -> MemoryTrace:
        """The rewritten trace."""
        starts = dict(self.old.phases)
        phase = ""
        for event, number in enumerate(self.old.events):
            if event in starts:
                phase = starts[event]
                self._end_unit()
                self._reduce_gradients()
                self.new.begin(phase)
                if phase == "forward" and not self.is_prepared:
                    self.is_prepared = True
                    self._prepare()
            block = self.old.blocks[number if number >= 0 else ~number]
            if number >= 0:
                if phase in ("forward", "backward") and block.kind != "weights":
                    self._enter_unit(_unit_of(block.module))
                self._allocate(number, block)
            else:
                self.new.free(self.numbers.pop(~number))
        return self.new

    def _allocate(self, number: int, block: Block) -> None:
        if self.strategy.keeps_float32 and block.kind == "optimizer" and block.dtype in HALVES:
            block = replace(block, num_bytes=2 * block.num_bytes, dtype="float32")
        part = -(-block.num_bytes // self.strategy.gpus)
        is_sharded = block.kind in self.strategy.sharded
        if is_sharded and block.kind == "gradients":
            # It is whole until its layer is done, and is then reduced to the part that stays.
            whole = self.new.allocate(replace(block, kind="temporary"))
            self.whole_gradients.append((number, whole))
            self.numbers[number] = whole
        else:
            self.numbers[number] = self.new.allocate(replace(block, num_bytes=part) if is_sharded else replace(block))

    def _enter_unit(self, unit: str) -> None:
        if unit == self.unit or not unit:
            return
        before = self.unit
        self._end_unit(keep=before)
        self.unit = unit
        if self.strategy.gathers_weights and unit not in self.gathered and unit in self.unit_bytes:
            made = Block(self.unit_bytes[unit], "temporary", "gathered weights", unit, "", (self.unit_bytes[unit],))
            self.gathered[unit] = self.new.allocate(made)

    def _end_unit(self, keep: str = "") -> None:
        # The next layer's weights are fetched while this one works, so two are held at a time.
        for unit in [name for name in self.gathered if name != keep]:
            self.new.free(self.gathered.pop(unit))
        self._reduce_gradients()
        self.unit = ""

    def _reduce_gradients(self) -> None:
        if self.in_transit is not None:
            self.new.free(self.in_transit)
            self.in_transit = None
        kept = [(number, whole) for number, whole in self.whole_gradients if self.numbers.get(number) == whole]
        self.whole_gradients.clear()
        if kept:
            # They are copied into one piece, which is gone when the next layer's are on their way.
            together = sum(self.old.blocks[number].num_bytes for number, _ in kept)
            self.in_transit = self.new.allocate(
                Block(together, "temporary", "gradients to be reduced", self.unit, "", (together,))
            )
        for number, whole in kept:
            block = self.old.blocks[number]
            part = -(-block.num_bytes // self.strategy.gpus)
            self.numbers[number] = self.new.allocate(replace(block, num_bytes=part))
            self.new.free(whole)

    def _prepare(self) -> None:
        gradients = _first_gradients(self.old)
        if self.strategy.has_buckets:
            self._make_buckets([block.num_bytes for block in gradients])
        halves = sum(block.num_bytes for block in gradients if block.dtype in HALVES)
        if self.strategy.keeps_float32 and halves:
            part = -(-2 * halves // self.strategy.gpus)
            self.new.allocate(Block(part, "optimizer", "float32 copy of the weights", "", "float32", (part // 4,)))

    def _make_buckets(self, sizes: list[int]) -> None:
        filled = 0
        for position, num_bytes in enumerate(sizes):
            filled += num_bytes
            if filled >= BUCKET_BYTES or position == len(sizes) - 1:
                self.new.allocate(Block(filled, "gradients", "bucket", "", "", (filled,)))
                filled = 0


def _first_gradients(trace: MemoryTrace) -> list[Block]:
    """The gradients of the first backward pass, as they come."""
    spans = [start for start, name in trace.phases if name == "optimizer"]
    end = spans[0] if spans else len(trace.events)
    return [trace.blocks[n] for n in trace.events[:end] if n >= 0 and trace.blocks[n].kind == "gradients"]


def _unit_of(module: str) -> str:
    """The repeated layer a module is part of, `model.layers.3`; the empty name outside of them."""
    found = re.match(r"(.*?\.?\d+)(\.|$)", module)
    return found.group(1) if found else ""


def _unit_bytes(trace: MemoryTrace) -> Iterator[tuple[str, int]]:
    sums: dict[str, int] = {}
    for block in trace.blocks:
        if block.kind == "weights" and _unit_of(block.module):
            sums[_unit_of(block.module)] = sums.get(_unit_of(block.module), 0) + block.num_bytes
    yield from sums.items()
