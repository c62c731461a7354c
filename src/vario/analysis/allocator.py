"""A simulation of torch's caching allocator: what it allocates, splits and reserves for a trace.

The rules are those of torch's CUDA allocator with its default settings: sizes are rounded to 512 bytes; up to 1 MiB
comes out of segments of 2 MiB, up to 10 MiB out of segments of 20 MiB, more in multiples of 2 MiB; the smallest free
piece that fits is used, and split if enough is left; free neighbours are merged.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from vario.backends.memory_trace import MemoryTrace

KIB = 1 << 10
MIB = 1 << 20
SMALLEST = 512
SMALL = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_FROM = 10 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_STEP = 2 * MIB


@dataclass
class Piece:
    """A part of a segment, in use or free."""

    start: int
    num_bytes: int
    is_small: bool
    before: Piece | None = None
    after: Piece | None = None
    is_free: bool = False


@dataclass
class Allocator:
    """Tracks what a GPU process would allocate."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    _free: dict[bool, list[tuple[int, ...]]] = field(default_factory=lambda: {True: [], False: []})
    _at: dict[int, Piece] = field(default_factory=dict)
    _lowest: int = 0

    def allocate(self, num_bytes: int) -> Piece:
        """Allocate a piece of that many bytes."""
        num_bytes = max(SMALLEST, _round_up(num_bytes, SMALLEST))
        is_small = num_bytes <= SMALL
        free = self._free[is_small]
        place = bisect_left(free, (num_bytes,))
        if place < len(free):
            piece = self._at[free.pop(place)[1]]
            piece.is_free = False
        else:
            piece = self._reserve(num_bytes, is_small)
        left = piece.num_bytes - num_bytes
        if left >= SMALLEST if is_small else left > SMALL:
            self._split(piece, num_bytes)
        self.allocated_bytes += piece.num_bytes
        return piece

    def free(self, piece: Piece) -> None:
        """Free a piece and merge it with free neighbours."""
        self.allocated_bytes -= piece.num_bytes
        free = self._free[piece.is_small]
        before, after = piece.before, piece.after
        if before is not None and before.is_free:
            del free[bisect_left(free, (before.num_bytes, before.start))]
            del self._at[piece.start]
            before.num_bytes += piece.num_bytes
            before.after = after
            if after is not None:
                after.before = before
            piece = before
        if after is not None and after.is_free:
            del free[bisect_left(free, (after.num_bytes, after.start))]
            del self._at[after.start]
            piece.num_bytes += after.num_bytes
            piece.after = after.after
            if after.after is not None:
                after.after.before = piece
        piece.is_free = True
        insort(free, (piece.num_bytes, piece.start))

    def _reserve(self, num_bytes: int, is_small: bool) -> Piece:
        if is_small:
            segment = SMALL_SEGMENT
        elif num_bytes < LARGE_FROM:
            segment = LARGE_SEGMENT
        else:
            segment = _round_up(num_bytes, LARGE_STEP)
        # The driver returns decreasing addresses, and among free pieces of one size the lowest is used.
        self._lowest -= segment
        piece = Piece(self._lowest, segment, is_small)
        self._at[piece.start] = piece
        self.reserved_bytes += segment
        return piece

    def _split(self, piece: Piece, num_bytes: int) -> None:
        rest = Piece(piece.start + num_bytes, piece.num_bytes - num_bytes, piece.is_small, piece, piece.after, True)
        if piece.after is not None:
            piece.after.before = rest
        piece.after = rest
        piece.num_bytes = num_bytes
        self._at[rest.start] = rest
        insort(self._free[piece.is_small], (rest.num_bytes, rest.start))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class Replay:
    """The result of a trace in the allocator."""

    peak_bytes: int
    peak_event: int
    """The event at which the peak is reached."""

    reserved_bytes: int
    phase_peaks: list[tuple[str, int]]
    """The peak of each phase of the trace, in order."""


def replay(trace: MemoryTrace) -> Replay:
    """Run a trace through the allocator."""
    allocator = Allocator()
    pieces: dict[int, Piece] = {}
    peak, peak_event = 0, 0
    starts = [start for start, _ in trace.phases] + [len(trace.events) + 1]
    phase_peaks: list[tuple[str, int]] = []
    phase, phase_peak = -1, 0
    for event, number in enumerate(trace.events):
        while event >= starts[phase + 1]:
            if phase >= 0:
                phase_peaks.append((trace.phases[phase][1], phase_peak))
            phase, phase_peak = phase + 1, allocator.allocated_bytes
        if number >= 0:
            pieces[number] = allocator.allocate(trace.blocks[number].num_bytes)
            held = allocator.allocated_bytes
            phase_peak = max(phase_peak, held)
            if held > peak:
                peak, peak_event = held, event
        else:
            allocator.free(pieces.pop(~number))
    if phase >= 0:
        phase_peaks.append((trace.phases[phase][1], phase_peak))
    return Replay(peak, peak_event, allocator.reserved_bytes, phase_peaks)
