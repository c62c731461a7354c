"""Makes torch.compile notice hooks that come and go."""

from __future__ import annotations

import logging

from vario.backends.protocols.events import Undo

log = logging.getLogger("vario")

_guards_before: list[bool] = []
"""One per Monitor that needs dynamo's hook guards; the last to leave restores what the first one found."""


def guard_hooks_in_dynamo() -> Undo:
    """Make torch.compile notice our hooks: by default it drops those that one of two equal modules lacks."""
    import torch._dynamo as dynamo
    from torch._dynamo.utils import counters

    _guards_before.append(dynamo.config.skip_nnmodule_hook_guards)
    dynamo.config.skip_nnmodule_hook_guards = False
    if counters["stats"].get("unique_graphs"):
        log.info("graphs that were compiled before vario.watch are compiled again, with hooks")
        dynamo.reset()

    def undo() -> None:
        found = _guards_before.pop()
        if not _guards_before:
            dynamo.config.skip_nnmodule_hook_guards = found

    return undo
