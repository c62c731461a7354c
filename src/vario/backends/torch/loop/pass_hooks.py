"""The hooks that report where a forward pass begins and ends, in eager code and in compiled graphs."""

from __future__ import annotations

from typing import Any

import torch

from vario.backends.torch import releases
from vario.backends.torch.loop import module_hooks
from vario.backends.torch.loop.model_outputs import find_loss
from vario.backends.torch.reduce.row_hashes import row_candidates

SLOT = f"{module_hooks.ATTRIBUTE}pass"
"""Attribute of an outermost module: the slot its compiled graph uses to report where passes begin and end."""


@module_hooks.module_hook
def pass_begins(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    """Report the start of a pass, before an outermost module runs."""
    if not torch.compiler.is_compiling():
        module_hooks.tell(pass_begins, module, args, *kwargs)
    elif releases.is_in_graph():
        seen = [tensor for _, tensor in row_candidates((args, *kwargs))]
        torch.ops.vario.begin_forward(seen, module.__dict__[SLOT], torch.is_grad_enabled(), module.training)


@module_hooks.module_hook
def pass_ends(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    """Report the end of a pass, after the module has run or raised."""
    if not torch.compiler.is_compiling():
        module_hooks.tell(pass_ends, module, args, kwargs, output)
    elif releases.is_in_graph():
        loss = find_loss(output)
        torch.ops.vario.end_forward([] if loss is None else [loss], module.__dict__[SLOT])
