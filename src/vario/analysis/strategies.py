"""How training on several GPUs changes one GPU's memory: what each GPU keeps, and what is gathered temporarily.

The trace of a step on one GPU is rewritten by what each strategy keeps, gathers and reduces, without running its code.
docs/memory.md compares the results with measurements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vario.backends.gpus import MIB
from vario.backends.memory_trace import Block, MemoryTrace
from vario.core.errors import ConfigError
from vario.core.text import unknown

HALVES = ("bfloat16", "float16")
ROOT = ""
"""The unit of everything outside the layers: embeddings, the last norm, the head."""

BUCKET_BYTES = 25 * MIB
"""The default bucket size of DistributedDataParallel."""


@dataclass(frozen=True)
class Strategy:
    """What each GPU keeps."""

    name: str
    gpus: int
    sharded: frozenset[str]
    """Kinds of memory that are sharded over the GPUs."""

    has_buckets: bool = False
    """Whether gradients are copied into buckets to be reduced."""

    keeps_float32: bool = False
    """Whether the optimizer has a float32 copy of half-precision weights, and its moments in float32."""

    notes: tuple[str, ...] = ()

    @property
    def gathers_weights(self) -> bool:
        """Whether the weights of a layer are gathered while it runs."""
        return "weights" in self.sharded

    @staticmethod
    def named(name: str, gpus: int) -> Strategy:
        """Return a strategy by name, for that many GPUs."""
        if name not in STRATEGIES:
            raise ConfigError(unknown("strategy", name, STRATEGIES))
        return replace(STRATEGIES[name], gpus=gpus)


_ROUGH = "Sharing between GPUs is computed by rule; reserved memory is only approximate."
_BUCKETS = "In the second step DDP may keep one more copy of the gradients."
_ZERO = "DeepSpeed's buckets (reduce_bucket_size, allgather_bucket_size) are not included."
STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("ddp", 1, frozenset(), has_buckets=True, notes=(_ROUGH, _BUCKETS)),
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
    """Rewrite a trace for one of several GPUs."""
    if strategy.gpus == 1:
        return trace
    return _Sharding(trace, strategy).run()


class _Sharding:
    """Rewrites a trace in one pass."""

    def __init__(self, trace: MemoryTrace, strategy: Strategy) -> None:
        self.old = trace
        self.new = MemoryTrace(notes=trace.notes)
        self.strategy = strategy
        self.unit_bytes = _unit_bytes(trace)
        self.gathered: dict[str, int] = {}
        self.unit = ROOT
        self.whole_gradients: dict[int, int] = {}
        self.in_transit: int | None = None
        self.numbers: dict[int, int] = {}

    def run(self) -> MemoryTrace:
        """Return the rewritten trace."""
        starts = dict(self.old.phases)
        phase = ""
        for event, number in enumerate(self.old.events):
            if event in starts:
                phase = self._begin(starts[event], phase)
            block = self.old.blocks[number if number >= 0 else ~number]
            if number >= 0:
                if phase in ("forward", "backward") and block.kind != "weights":
                    self._enter(_unit_of(block.module))
                self._allocate(number, block, phase)
            else:
                self.new.free(self.numbers.pop(~number))
        return self.new

    def _begin(self, phase: str, before: str) -> str:
        if before == "backward":
            self._reduce_gradients(None)
            self._let_go_of_gradients()
            self._keep_gathered()
        self.new.begin(phase)
        if before == "model":
            self._prepare()
        if phase == "forward":
            # Everything outside the layers stays gathered for the whole forward and backward pass.
            self.unit = ROOT
            self._gather(ROOT)
        return phase

    def _allocate(self, number: int, block: Block, phase: str) -> None:
        if self.strategy.keeps_float32 and block.kind == "optimizer" and block.dtype in HALVES:
            block = replace(block, num_bytes=2 * block.num_bytes, dtype="float32")
        is_sharded = block.kind in self.strategy.sharded
        # An optimizer with sharded state updates a shard of the weights.
        is_sharded |= phase == "optimizer" and "optimizer" in self.strategy.sharded
        if is_sharded and block.kind == "gradients":
            # It is whole until its layer is done, then reduced to its shard.
            self.whole_gradients[number] = self.numbers[number] = self.new.allocate(replace(block, kind="temporary"))
        else:
            self.numbers[number] = self.new.allocate(self._part(block) if is_sharded else replace(block))

    def _part(self, block: Block) -> Block:
        return replace(block, num_bytes=-(-block.num_bytes // self.strategy.gpus))

    def _enter(self, unit: str) -> None:
        if unit == self.unit:
            return
        before, self.unit = self.unit, unit
        if before != ROOT:
            self._reduce_gradients(before)
        # The next layer's weights are fetched while this one runs, so two layers are in memory at a time.
        self._keep_gathered(ROOT, before, unit)
        self._gather(unit)

    def _gather(self, unit: str) -> None:
        size = self.unit_bytes.get(unit)
        if self.strategy.gathers_weights and unit not in self.gathered and size:
            self.gathered[unit] = self.new.allocate(Block(size, "temporary", "gathered weights", unit, "", (size,)))

    def _keep_gathered(self, *units: str) -> None:
        for unit in [name for name in self.gathered if name not in units]:
            self.new.free(self.gathered.pop(unit))

    def _reduce_gradients(self, unit: str | None) -> None:
        """Reduce the gradients of a layer, or all remaining ones, to shards."""
        done = {
            number: whole
            for number, whole in self.whole_gradients.items()
            if unit is None or _unit_of(self.old.blocks[number].module) == unit
        }
        kept = [number for number, whole in done.items() if self.numbers.get(number) == whole]
        for number in done:
            del self.whole_gradients[number]
        if not kept:
            return
        # They are copied into one piece, which is freed when the next layer's are reduced.
        self._let_go_of_gradients()
        together = sum(self.old.blocks[number].num_bytes for number in kept)
        piece = Block(together, "temporary", "gradients to be reduced", unit or "", "", (together,))
        self.in_transit = self.new.allocate(piece)
        for number in kept:
            whole, self.numbers[number] = self.numbers[number], self.new.allocate(self._part(self.old.blocks[number]))
            self.new.free(whole)

    def _let_go_of_gradients(self) -> None:
        if self.in_transit is not None:
            self.new.free(self.in_transit)
            self.in_transit = None

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
    """The gradients of the first backward pass, in order."""
    spans = [start for start, name in trace.phases if name == "optimizer"]
    end = spans[0] if spans else len(trace.events)
    return [trace.blocks[n] for n in trace.events[:end] if n >= 0 and trace.blocks[n].kind == "gradients"]


def _unit_of(module: str) -> str:
    """The repeated layer that a module is part of, such as `model.layers.3`; else the root."""
    found = re.match(r"(.*?\.?\d+)(\.|$)", module)
    return found.group(1) if found else ROOT


def _unit_bytes(trace: MemoryTrace) -> dict[str, int]:
    sums: dict[str, int] = {}
    for block in trace.blocks:
        if block.kind == "weights":
            sums[_unit_of(block.module)] = sums.get(_unit_of(block.module), 0) + block.num_bytes
    return sums
