"""msprobe's names: `0:layers.1.mlp.weight`, the stage first, shortened when asked; and which of them are chosen."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

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


def keyed(chunks: Sequence[Any]) -> dict[str, Any]:
    """The chunks of a virtual pipeline as vario is given them: each by its number, a plain model without."""
    return {f"{stage}." if len(chunks) > 1 else "": chunk for stage, chunk in enumerate(chunks)}


class Names:
    """How the modules and parameters of the model's chunks are called here and there."""

    def __init__(self, chunks: Sequence[Any], with_squash: bool) -> None:
        """Chunks are the stages of a virtual pipeline; a plain model is the only one."""
        from vario.backends.torch import naming

        self._squashes = with_squash
        self.modules: dict[str, str] = {}
        self.parameters: dict[str, str] = {}
        self.tensors: dict[str, Any] = {}
        self._full: dict[str, str] = {}
        self._bare: dict[str, str] = {}
        """Without what wrappers add: `module.`, `_orig_mod.`."""
        self._given: set[tuple[int, str]] = set()
        named = keyed(chunks)
        modules = {id(module): name for name, module in naming.all_modules(named).items()}
        parameters = {id(parameter): name for name, parameter in naming.all_parameters(named).items()}
        for stage, chunk in enumerate(chunks):
            bare = naming.unwrap(chunk)
            full = {id(module): name for name, module in chunk.named_modules()}
            for local, module in bare.named_modules():
                if id(module) in modules:
                    self._add(self.modules, modules[id(module)], stage, full[id(module)], naming.clean(local) or ROOT)
            full = {id(parameter): name for name, parameter in chunk.named_parameters()}
            for local, parameter in bare.named_parameters():
                name = parameters[id(parameter)]
                self._add(self.parameters, name, stage, full[id(parameter)], naming.clean(local))
                self.tensors[name] = parameter

    def _add(self, names: dict[str, str], ours: str, stage: int, theirs: str, bare: str) -> None:
        self._full[ours] = f"{stage}:{theirs}"
        self._bare[ours] = bare
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
