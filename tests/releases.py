"""What tests need and not every release of torch has, asked of torch itself; a test that cannot run says why."""

import pytest
import torch

FSDP2_ON_CPU = hasattr(torch.cpu.Stream, "record_event")
NO_FSDP2 = "this torch, like all before 2.7, runs fully_shard on GPUs alone"

needs_fsdp2 = pytest.mark.skipif(not FSDP2_ON_CPU, reason=NO_FSDP2)


def runs_here(case):
    """Whether this torch can run a case, by its name."""
    return FSDP2_ON_CPU or "fsdp2" not in case


def skip_unless_it_runs(case):
    """Skip a test of a case that this torch cannot run."""
    if not runs_here(case):
        pytest.skip(NO_FSDP2)
