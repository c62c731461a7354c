"""The environment of a process: variables, packages, seeds."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from vario.core.masking import MASK, SECRET, masked

STARTS = (
    *("ACCELERATE_", "ASCEND", "CUBLAS_", "CUDA", "CUDNN_", "DEEPSPEED_", "DS_", "FSDP_", "GLOO_", "HCCL_", "HF_"),
    *("HIP_", "HSA_", "JAX_", "KMP_", "LOCAL_", "MASTER_", "MIOPEN_", "MKL_", "MLFLOW_", "MS_", "NCCL_", "NUMEXPR_"),
    *("NVIDIA_", "NVTE_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "RAY_", "ROCR_", "SLURM_", "TF_CPP_"),
    *("TF_ENABLE_", "TF_GPU_", "TF_XLA_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_", "UCX_", "VARIO"),
    *("WANDB_", "XLA_"),
)
NAMES = ("RANK", "WORLD_SIZE", "VIRTUAL_ENV", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "HOSTNAME")
"""Variables that matter to a training. Others are not stored: they are the owner's."""
MOST_VARIABLES, MOST_CHARACTERS, MOST_PACKAGES = 500, 2000, 5000
_PACKAGE = re.compile(r"(.+?)-([^-]+)\.(dist|egg)-info")


def read_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that matter, without secrets."""
    found = {name: value for name, value in sorted(environment.items()) if name.startswith(STARTS) or name in NAMES}
    return {
        name: MASK if SECRET.search(name) or name.endswith("KEY") else masked(value)[:MOST_CHARACTERS]
        for name, value in list(found.items())[:MOST_VARIABLES]
    }


def read_packages() -> dict[str, str]:
    """Return name and version of all installed packages, from the names of folders: nothing is read or imported."""
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for match in filter(None, map(_PACKAGE.fullmatch, names)):
            found.setdefault(match[1].replace("_", "-").lower(), match[2])  # the first one is imported
    return dict(sorted(found.items())[:MOST_PACKAGES])


def read_seeds() -> dict[str, Any]:
    """Return the seeds that can be known: Python's of hashes, and the one that torch's generator was given last."""
    found: dict[str, Any] = {}
    if (seed := os.environ.get("PYTHONHASHSEED")) is not None:
        found["PYTHONHASHSEED"] = seed[:MOST_CHARACTERS]
    initial_seed = getattr(sys.modules.get("torch"), "initial_seed", None)
    if callable(initial_seed):
        found["torch"] = int(initial_seed())
    return found
