"""The caching allocator on paper, against what a real one did."""

import gzip
import json
from pathlib import Path

import pytest

from vario.analysis.allocator import Allocator, replay
from vario.backends.memory_trace import Block, MemoryTrace

MIB = 1 << 20
RECORDED = Path(__file__).parent / "h200_allocations.json.gz"


def block(num_bytes, kind="temporary"):
    return Block(num_bytes, kind, "op", "", "uint8", (num_bytes,))


def test_what_an_h200_allocated_makes_it_reserve_what_the_h200_reserved():
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    allocator, pieces = Allocator(), []
    for event in recorded["events"]:
        if event >= 0:
            pieces.append(allocator.allocate(event))
        else:
            allocator.free(pieces[-1 - event])
    assert allocator.reserved_bytes == recorded["reserved_bytes"]


@pytest.mark.parametrize(
    ("num_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what is left of a segment is not split off when it is 1 MiB or less
        (21 * MIB + 512 * 1024, 22 * MIB, 22 * MIB),
    ],
)
def test_sizes_are_rounded_as_torch_rounds_them(num_bytes, allocated, reserved):
    allocator = Allocator()
    allocator.allocate(num_bytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_free_neighbours_are_joined_and_used_again():
    allocator = Allocator()
    first, second = allocator.allocate(8 * MIB), allocator.allocate(8 * MIB)
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(18 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    assert allocator.allocated_bytes == 18 * MIB


def test_the_smallest_free_piece_that_fits_is_taken():
    allocator = Allocator()
    large, small = allocator.allocate(100 * MIB), allocator.allocate(40 * MIB)
    allocator.free(large)
    allocator.free(small)
    allocator.allocate(39 * MIB)
    allocator.allocate(100 * MIB)
    assert allocator.reserved_bytes == 140 * MIB


def test_a_replay_finds_the_peak_of_every_phase():
    trace = MemoryTrace()
    trace.begin("model")
    trace.allocate(block(10 * MIB, "weights"))
    trace.begin("forward")
    first = trace.allocate(block(30 * MIB))
    trace.begin("backward")
    trace.free(first)
    trace.allocate(block(12 * MIB))
    replayed = replay(trace)
    assert replayed.phase_peaks == [("model", 10 * MIB), ("forward", 40 * MIB), ("backward", 40 * MIB)]
    assert (replayed.peak_bytes, replayed.peak_event) == (40 * MIB, 1)
