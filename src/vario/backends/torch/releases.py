"""What differs between releases of torch, asked of torch itself wherever it can answer; the only place that does."""

from __future__ import annotations

import re

import torch

from vario.errors import UnsupportedRelease

OLDEST = (2, 6)
"""The oldest release that the tests run on; `docs/versions.md` has the table."""


def release_of(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version such as `2.6.0a0+ecf3bae.nv25.01`; None where it does not begin so."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def refuse_older(version: str) -> None:
    """Raise for a torch that is too old. A version that cannot be read is let through."""
    release = release_of(version)
    if release is not None and release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedRelease(
            f"vario needs torch {oldest} or newer to watch a training, and this is torch {version}. "
            f"Upgrade with: pip install --upgrade 'torch>={oldest}'"
        )


refuse_older(torch.__version__)  # before such a torch is asked for anything else

HAS_GROUPED_PRODUCTS = hasattr(torch.ops.aten, "_grouped_mm")
"""One matrix product per expert in one call: since 2.8."""

HAS_FUSED_RMS_NORM = (
    hasattr(torch.ops.aten, "_fused_rms_norm") and len(torch.ops.aten._fused_rms_norm.default._schema.returns) == 2
)
"""CUDA's own kernel for `rms_norm`, which returns what backward needs beside the result. Before 2.9 there was none, or
one of that name for another device."""
