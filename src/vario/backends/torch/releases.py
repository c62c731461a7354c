"""Differences between releases of torch, detected by feature where possible; no other module checks releases."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from vario.core.package import refuse_older, release_of

OLDEST = (2, 6)
"""The oldest release that the tests run on; `docs/versions.md` has the table."""

# Before anything else of such a torch is used.
refuse_older("torch", torch.__version__, OLDEST, "vario")

HAS_GROUPED_PRODUCTS = hasattr(torch.ops.aten, "_grouped_mm")
"""One matrix product per expert in one call: since 2.8."""

HAS_FUSED_RMS_NORM = (
    hasattr(torch.ops.aten, "_fused_rms_norm") and len(torch.ops.aten._fused_rms_norm.default._schema.returns) == 2
)
"""CUDA's own kernel for `rms_norm`, which also returns what backward needs. Before 2.9 there was none, or one of that
name for another device."""

CAN_HOOK_IN_GRAPHS = (release_of(torch.__version__) or OLDEST) >= (2, 13)
"""Earlier compilers turn a hook on a tensor inside a graph into code that fails, or break the graph there."""

LOSES_HOOKS = (release_of(torch.__version__) or OLDEST) < (2, 11)
"""Whether a parameter may lose its hooks inside a checkpoint: seen on 2.6 and 2.8, not on 2.11. Detecting it would need
a backward pass in the user's process."""

EXPORTS_HOOKS = (release_of(torch.__version__) or OLDEST) >= (2, 11)
"""Whether torch.export with `strict` accepts a module of torch's own, such as a Sequential, that has hooks of any kind;
2.6 and 2.8 refuse it."""

_KEEPS_EFFECTS = hasattr(torch._library.utils, "is_impure")
"""Whether inductor keeps an operator without results if fx knows its side effect; 2.8 does not."""


def prefers_cudnn_attention() -> bool:
    """Whether this torch prefers cuDNN for attention on Hopper and Blackwell to its own kernels.

    It does since 2.9; since 2.10 only with a cuDNN after 9.15, which the packages of 2.11 include.
    """
    release = release_of(torch.__version__) or OLDEST
    if release < (2, 10):
        return release >= (2, 9)
    version = torch.backends.cudnn.version()  # None: a build without CUDA, treated as if it had it
    return release >= (2, 11) if version is None else version > 91500


def keep_effects(namespace: str) -> None:
    """Make an older inductor keep the operators of a namespace, which it would drop because they return nothing.

    Call it while a graph is traced: by then inductor is imported if it is used at all, and nobody else should pay for
    the import.
    """
    inductor: Any = sys.modules.get("torch._inductor.ir")
    if _KEEPS_EFFECTS or inductor is None or namespace in _kept:
        return
    _kept.add(namespace)
    kernel = inductor.FallbackKernel
    original = kernel.has_side_effects

    def has_side_effects(self: Any) -> bool:
        return getattr(self.op_overload, "namespace", None) == namespace or original(self)

    kernel.has_side_effects = has_side_effects


_kept: set[str] = set()

# The flag, not `torch.compiler.is_exporting()`: compilers from 2.7 to 2.12 take that to be true in every graph.
if hasattr(torch.compiler, "_is_exporting_flag"):

    def is_in_graph() -> bool:
        """Whether a compiler traces this hook into a graph for training; exported models are left alone."""
        return torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag

else:  # 2.6 sets the other flag, and only when it exports without `strict`

    def _exports_strictly() -> bool:
        translator: Any = sys.modules["torch._dynamo.symbolic_convert"]
        return bool(translator.InstructionTranslator.current_tx().export)

    # Like torch._dynamo.assume_constant_result, without importing it: runs during tracing, and its result is constant.
    _exports_strictly._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def is_in_graph() -> bool:
        """Whether a compiler traces this hook into a graph for training; exported models are left alone."""
        return torch.compiler.is_compiling() and not torch.compiler._is_compiling_flag and not _exports_strictly()


try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    def run_eagerly(call: Callable[..., Any]) -> Callable[..., Any]:
        """Keep torch.compile from compiling this hook on its own.

        It would do so around a module whose forward it compiles. A hook inside a compiled graph is still traced.
        `torch.compiler.disable` would break that graph.
        """
        set_code_exec_strategy(call.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
        return call

    def outside_compilers(call: Callable[..., Any]) -> Callable[..., Any]:
        """Keep torch.compile from compiling what a hook calls in eager code; `run_eagerly` already does."""
        return call

except ImportError:  # 2.6
    from torch._C._dynamo.eval_frame import set_eval_frame, skip_code  # type: ignore[attr-defined]

    def run_eagerly(call: Callable[..., Any]) -> Callable[..., Any]:
        """Keep torch.compile from compiling this hook on its own; what it calls is not affected."""
        skip_code(call.__code__)
        return call

    def outside_compilers(call: Callable[..., Any]) -> Callable[..., Any]:
        """Keep torch.compile from compiling what a hook calls in eager code."""

        @functools.wraps(call)
        def run(*args: Any) -> Any:
            compiling = set_eval_frame(None)
            try:
                return call(*args)
            finally:
                set_eval_frame(compiling)

        return run_eagerly(run)


def load_compilers() -> None:
    """Import torch.compile before `torch.device("meta")` is used: models import it there, where 2.6 and 2.8 fail."""
    importlib.import_module("torch._dynamo")
