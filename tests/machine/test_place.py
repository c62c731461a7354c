"""Which rank reads a host, and which GPUs belong to a job."""

import pytest

from vario.machine.gpus import visible_gpus
from vario.machine.place import local_ranks, reads_host


def torchrun(rank, local_size):
    return {"LOCAL_RANK": str(rank % local_size), "LOCAL_WORLD_SIZE": str(local_size)}


@pytest.mark.parametrize(("world_size", "local_size"), [(8, 8), (16, 8), (2, 1)])
def test_one_rank_of_each_host_reads_it(world_size, local_size):
    readers = [rank for rank in range(world_size) if reads_host(rank, world_size, (), torchrun(rank, local_size))]
    assert readers == list(range(0, world_size, local_size))


def test_it_is_the_lowest_one_that_records():
    readers = [rank for rank in (2, 3, 9) if reads_host(rank, 16, (2, 3, 9), torchrun(rank, 8))]
    assert readers == [2, 9]


def test_without_a_launcher_the_first_rank_reads_its_host():
    assert [rank for rank in range(4) if reads_host(rank, 4, (), {})] == [0]
    assert [rank for rank in (1, 3) if reads_host(rank, 4, (1, 3), {})] == [1]


def test_runs_that_are_no_ranks_of_each_other_read_for_themselves():
    assert reads_host(0, 1, (), {"SLURM_LOCALID": "3"})
    assert local_ranks(1, {"SLURM_NTASKS_PER_NODE": "8"}) == 1


def test_the_ranks_of_a_host_are_counted():
    assert local_ranks(16, torchrun(0, 8)) == 8
    assert local_ranks(16, {}) == 1


@pytest.mark.parametrize(
    ("visible", "ranks", "expected"),
    [
        (None, 1, [0, 1, 2, 3]),
        ("2,3", 1, [2, 3]),
        ("2, 3", 2, [2, 3]),
        ("", 1, []),
        ("-1", 1, []),
        ("1,-1,2", 1, [1]),
        ("1,7,2", 1, [1]),
        ("GPU-4f3a,MIG-77", 1, ["GPU-4f3a", "MIG-77"]),
        ("3", 4, [0, 1, 2, 3]),  # each rank has its own
        ("1,1", 1, [1]),
        ("NoDevFiles", 1, []),
    ],
)
def test_gpus_are_those_that_cuda_shows(visible, ranks, expected):
    assert visible_gpus(visible, 4, ranks) == expected
