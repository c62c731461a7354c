"""msprobe's names: `0:layers.1.mlp.weight`, the stage first, shortened when asked; and which of them are chosen."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from vario.backends.protocols.msprobe_wishes import MsprobeSide, NamedPart
from vario.compat.msprobe.config import MonitorConfig, Spec
from vario.core.records import ROOT
from vario.core.selector import ancestors
from vario.core.text import suggestion

log = logging.getLogger("vario")

_SQUASH_AT = (("layer.", "layers."), ("embedding.", "embeddings."), ("final",), ("output",), ("norm",))


def squash(name: str) -> str:
    """The end of a name from its last `layers.` on; failing that from `embedding.`, `final`, `output` or `norm`."""
    for beginnings in _SQUASH_AT:
        at = max(name.rfind(f".{beginning}") for beginning in beginnings)
        if at >= 0:
            return name[at + 1 :]
    return name


class Names:
    """How the modules and parameters of the model's chunks are called here and there."""

    def __init__(self, chunks: Sequence[Any], side: MsprobeSide, with_squash: bool) -> None:
        """Chunks are the stages of a virtual pipeline; a plain model is the only one."""
        self._squashes = with_squash
        self.modules: dict[str, str] = {}
        self.parameters: dict[str, str] = {}
        self.tensors: dict[str, Any] = {}
        self._full: dict[str, str] = {}
        self._bare: dict[str, str] = {}
        """Without what wrappers add: `module.`, `_orig_mod.`."""
        self._given: set[tuple[int, str]] = set()
        self.called: dict[str, Any] = {}
        """The modules themselves."""
        for named in side.modules(chunks):
            self._add(self.modules, named)
            self.called[named.name] = named.part
        for named in side.parameters(chunks):
            self._add(self.parameters, named)
            self.tensors[named.name] = named.part

    def _add(self, names: dict[str, str], named: NamedPart) -> None:
        stage, ours, theirs = named.stage, named.name, named.full
        self._full[ours] = f"{stage}:{theirs}"
        self._bare[ours] = named.bare or ROOT
        short = f"{stage}:{squash(theirs)}" if self._squashes else f"{stage}:{theirs}"
        # Two towers with a `layers.0` each: the second keeps its whole name.
        names[ours] = f"{stage}:{theirs}" if (id(names), short) in self._given else short
        self._given.add((id(names), names[ours]))

    def module_name(self, ours: str, typed: Collection[str]) -> str:
        """How rows call a module: by its whole name where the config has typed that, also if names are squashed."""
        short, full = self.modules[ours], self._full[ours]
        return full if full in typed and short not in typed else short

    def spellings(self, ours: str) -> list[str]:
        """All ways a config may call this target."""
        full = self._full[ours]
        stage, _, name = full.partition(":")
        names = [full, name, f"{stage}:{squash(name)}", squash(name)]
        bare = self._bare[ours]
        if bare not in (name, ROOT):
            names += [f"{stage}:{bare}", bare]
        return [spelling for spelling in names if spelling] or [ROOT]


class TargetChoice:
    """Chooses what the config names: modules by name, parameters by name or by a module above them."""

    def __init__(self, names: Names, config: MonitorConfig) -> None:
        self._names = names
        self._targets = config.targets
        self._all_modules = config.all_xy or config.print_struct

    def modules(self, names: Iterable[str]) -> list[str]:
        """The modules whose activations are watched."""
        return [name for name in names if self._all_modules or self.specs(name) is not None]

    def parameters(self, names: Iterable[str]) -> list[str]:
        """The parameters that are watched."""
        return [name for name in names if not self._targets or self._is_under_a_target(name)]

    def _is_under_a_target(self, name: str) -> bool:
        return any(above in self._targets for spelling in self._names.spellings(name) for above in _above(spelling))

    def specs(self, module: str) -> Mapping[str, Spec] | None:
        """What of a module the config asks for, by side; None for a module it does not name."""
        found = [self._targets[spelling] for spelling in self._names.spellings(module) if spelling in self._targets]
        return found[0] if found else None

    def module_name(self, module: str) -> str:
        """How rows call a module."""
        return self._names.module_name(module, () if self._all_modules else self._targets)

    def check(self, modules: Sequence[str], parameters: Sequence[str]) -> None:
        """Say which targets this model does not have: another pipeline stage may have them, so it is no error."""
        known = [*self._names.modules, *self._names.parameters]
        spellings = {above for name in known for spelling in self._names.spellings(name) for above in _above(spelling)}
        for target in self._targets:
            if target not in spellings:
                near = suggestion(target, list(self._names.modules.values()))
                log.warning("targets: '%s' is neither a module nor a parameter of this model. %s", target, near)


def _above(spelling: str) -> list[str]:
    """A name and the modules above it; the stage stays with each of them."""
    stage, colon, name = spelling.partition(":")
    if not stage.isdigit():
        return ancestors(spelling)
    return [stage + colon + above for above in ancestors(name)]
