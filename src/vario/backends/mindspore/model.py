"""The backend of MindSpore models: which mode they run in, and what it offers there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vario.backends.host_clock import HostMark, host_mark
from vario.backends.mindspore import taps
from vario.backends.mindspore.followed import FollowedCells
from vario.backends.mindspore.graph_loop import GraphLoop
from vario.backends.mindspore.msprobe_wishes import MindSporeWishes
from vario.backends.mindspore.pynative_loop import PyNativeLoop
from vario.backends.mindspore.spectra import SpectralNorms
from vario.backends.mindspore.targets import optimizer_inside
from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Capability
from vario.backends.protocols.msprobe_wishes import MsprobeFeatures, MsprobeWishes
from vario.backends.protocols.observing import NamedTensors, Observer
from vario.core.errors import ConfigError
from vario.core.selector import Choice
from vario.core.text import unknown

ENGINES = ("pynative", "graph")

_IN_PYNATIVE: frozenset[type] = frozenset(
    {
        offered.LossScale,
        offered.ModuleTensors,
        offered.LocalGradients,
        offered.AppliedGradients,
        offered.OptimizerState,
        offered.TrainingSettings,
        offered.Losses,
        offered.UpdateSamples,
        offered.Replicas,
        offered.Batches,
        offered.Snapshots,
        offered.DeviceClock,
        offered.FoundModels,
        offered.Spectra,
    }
)
_INSIDE: frozenset[type] = frozenset({offered.Attention, offered.Routers})


class PyNativeModel(PyNativeLoop):
    """Cells that run operation by operation: MindSpore's default mode."""

    _spectral_norms: SpectralNorms | None = None

    def offer(self, capability: type[Capability]) -> Capability | None:
        """Return itself for what it implements."""
        found: Any = None
        if capability in _IN_PYNATIVE:
            found = self
        elif capability in _INSIDE:
            found = self.inside
        elif capability in (MsprobeWishes, MsprobeFeatures):
            found = MindSporeWishes(self)
        return found  # type: ignore[no-any-return]

    def spectra(self) -> NamedTensors:
        """Return `<cell>:spectral_norm` and `<cell>:stable_rank` of each matrix; no embeddings."""
        if self._spectral_norms is None:
            self._spectral_norms = SpectralNorms()
        return ([], []) if self.replicas.is_left_to_others else self._spectral_norms.spectra(self.targets.cells)

    def on_module_values(self, observer: Observer) -> None:
        """Pass cell inputs and outputs to this observer."""
        self.cell_tensors.values = observer

    def on_module_gradients(self, observer: Observer) -> None:
        """Pass the gradients of cell inputs and outputs to this observer."""
        self.cell_tensors.gradients = observer

    def time_mark(self) -> HostMark:
        """Return a mark of the current time of the host."""
        return host_mark()

    def is_behind(self) -> bool:
        """Return False: whether the device lags behind is not followed."""
        return False


_IN_GRAPHS = _IN_PYNATIVE - {offered.AppliedGradients, offered.DeviceClock, offered.Spectra}
"""Python does not see what happens between the parts of a compiled step."""


class GraphModel(GraphLoop):
    """Cells that are compiled."""

    def offer(self, capability: type[Capability]) -> Capability | None:
        """Return itself for what it implements."""
        found: Any = self if capability in _IN_GRAPHS else None
        return found  # type: ignore[no-any-return]

    def on_module_values(self, observer: Observer) -> None:
        """Pass cell outputs to this observer."""
        self.values = observer

    def on_module_gradients(self, observer: Observer) -> None:
        """Pass the gradients of cell outputs to this observer."""
        self.cell_gradients = observer


def mindspore_model(models: Any, optimizers: Any, choice: Choice, scaler: Any, engine: str | None) -> FollowedCells:
    """Return the backend for the mode in which MindSpore runs, or for the one that `engine` names."""
    if engine is not None and engine not in ENGINES:
        raise ConfigError(unknown("engine", engine, ENGINES))
    given = optimizers if isinstance(optimizers, Sequence) else [optimizers]
    known = [one for one in given if one is not None]
    if not known and (inside := optimizer_inside(models)) is not None:
        known = [inside]
    is_graph = engine == "graph" or (engine is None and taps.is_graph_mode())
    return (GraphModel if is_graph else PyNativeModel)(models, known, choice, scaler)
