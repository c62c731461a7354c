"""What tests need and not every release of torch has, asked of torch itself; a test that cannot run says why."""

import pytest
import torch

from vario.core.package import release_of

FSDP2_ON_CPU = (release_of(torch.__version__) or (0, 0)) >= (2, 9)
NO_FSDP2 = "fully_shard on the CPU does not run on torch 2.6, and adds up gradients instead of averaging them on 2.8"

needs_torchao = pytest.mark.skipif(
    (release_of(torch.__version__) or (0, 0)) < (2, 11), reason="torchao 0.18 cannot be imported with torch before 2.11"
)
needs_loss_targets = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"),
    reason="this torch does not say whether hooks packed what a loss saved, so targets are not looked at",
)
needs_fsdp2 = pytest.mark.skipif(not FSDP2_ON_CPU, reason=NO_FSDP2)


def runs_here(case):
    """Whether this torch can run a case, by its name."""
    return FSDP2_ON_CPU or "fsdp2" not in case


def skip_unless_it_runs(case):
    """Skip a test of a case that this torch cannot run."""
    if not runs_here(case):
        pytest.skip(NO_FSDP2)
