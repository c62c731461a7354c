"""Megatron-core on two and four real ranks, in every way it splits a model, against one process that splits nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from oracle import HELD, HERE, check_held, check_target, open_case, torchrun

pytestmark = pytest.mark.slow

MEGATRON = Path(__file__).parents[2] / ".peers" / "engines"
ORACLES = {
    "fp32-1": "fp32:1",
    "fp32-2": "fp32:2",
    "bf16-2": "bf16:2",
    "fp16-2": "fp16:2",
    "moe-2": "fp32-moe:2",
    "tied-1": "fp32-tied:1",
    "spare-2": "fp32-spare:2",
}
TWO_RANKS = {
    "fp32": "fp32-2",
    "fp32-distopt": "fp32-2",
    "fp32-distopt-overlap": "fp32-2",
    "fp32-spare": "spare-2",
    "fp32-recompute": "fp32-2",
    "bf16": "bf16-2",
    "bf16-distopt": "bf16-2",
    "fp16": "fp16-2",
    "fp16-distopt": "fp16-2",
    "fp32-tp": "fp32-1",
    "fp32-pp": "fp32-1",
    "fp32-pp-dealloc": "fp32-1",
    "fp32-vpp": "fp32-1",
    "fp32-vpp-distopt": "fp32-1",
    "fp32-moe-ep": "moe-2",
    "fp32-moe-ep-distopt": "moe-2",
}
FOUR_RANKS = {"fp32-tp-distopt": "fp32-2", "fp32-tp-dp": "fp32-2", "fp32-pp-distopt": "fp32-2", "bf16-pp-distopt": "bf16-2"}
CASES = {**TWO_RANKS, **FOUR_RANKS}
