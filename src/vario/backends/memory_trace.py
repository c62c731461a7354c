"""Allocations and frees of all memory blocks in some training steps, in order."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Block:
    """One block of memory, with the size requested."""

    num_bytes: int
    kind: str
    """weights, gradients, optimizer, activations, inputs, temporary or workspace."""

    maker: str
    """The operator that made it."""

    module: str
    dtype: str
    shape: tuple[int, ...]


@dataclass
class MemoryTrace:
    """Allocations and frees of numbered blocks, with marks where a phase begins."""

    blocks: list[Block] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    """`n` allocates block n, `~n` frees it."""

    phases: list[tuple[int, str]] = field(default_factory=list)
    """(number of the event, name) where a phase begins."""

    notes: list[str] = field(default_factory=list)
    """Remarks for the reader."""

    bounds: dict[str, None] = field(default_factory=dict)
    """Where sizes depend on values and the largest possible size was assumed: `nonzero in layers.1`."""

    _moved: dict[int, int] = field(default_factory=dict)

    def allocate(self, block: Block) -> int:
        """Add an allocated block and return its number."""
        self.blocks.append(block)
        self.events.append(len(self.blocks) - 1)
        return len(self.blocks) - 1

    def free(self, number: int) -> None:
        """Free a block."""
        self.events.append(~self._moved.get(number, number))

    def take_over(self, newer: int, older: int) -> None:
        """Undo the latest allocation: it reuses the block of an older one, which was given up for it."""
        self._moved[newer] = self._moved.get(older, older)
        if self.events.pop() != newer:
            raise AssertionError("only the latest block can reuse the memory of another one")

    def block(self, number: int) -> Block:
        """Return the memory that a block uses."""
        return self.blocks[self._moved.get(number, number)]

    def begin(self, phase: str) -> None:
        """Start a phase here."""
        self.phases.append((len(self.events), phase))
