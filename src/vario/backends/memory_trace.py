"""The life of every block of memory in some training steps, in order."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Block:
    """One piece of memory, as asked for."""

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
    """What whoever reads it should know."""

    bounds: dict[str, None] = field(default_factory=dict)
    """Where sizes depend on values, and the largest possible ones were taken: `nonzero in layers.1`."""

    _moved: dict[int, int] = field(default_factory=dict)

    def allocate(self, block: Block) -> int:
        """Add a block and say that it is allocated; its number."""
        self.blocks.append(block)
        self.events.append(len(self.blocks) - 1)
        return len(self.blocks) - 1

    def free(self, number: int) -> None:
        """The block is given back."""
        self.events.append(~self._moved.get(number, number))

    def take_over(self, newer: int, older: int) -> None:
        """The newest allocation was none: it lives on in the block of an older one, which was given up for it."""
        self._moved[newer] = self._moved.get(older, older)
        if self.events.pop() != newer:
            raise AssertionError("only the newest block can take over another one")

    def block(self, number: int) -> Block:
        """The memory that a block lives in."""
        return self.blocks[self._moved.get(number, number)]

    def begin(self, phase: str) -> None:
        """From here on it is this phase."""
        self.phases.append((len(self.events), phase))
