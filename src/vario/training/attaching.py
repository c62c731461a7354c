"""Attaches the probes of a Monitor, as far as the backend offers what they need."""

from __future__ import annotations

from collections.abc import Sequence

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.observing import Observer
from vario.config import Config
from vario.core.run_header import NotOffered
from vario.probes import PROBES, Probe, Recorder
from vario.training.not_offered import not_offered, warn_of_chosen


def attach_probes(
    monitor: Recorder, backend: Backend, config: Config, more: Sequence[Probe], observers: Sequence[Observer]
) -> tuple[NotOffered, bool]:
    """Return what the backend lacks, and whether light steps tell all probes enough; `observers` grows meanwhile."""
    asked = (*config.quantities, *config.idle_quantities)
    wanted = {quantity: PROBES.get(quantity, "quantities") for quantity in asked}
    always = {found.name: found.part for found in PROBES if found.part.quantity in ("scalar", "checksum")}
    lacking = not_offered({**wanted, **always}, backend, config)
    warn_of_chosen(lacking, config)
    names = {entry["quantity"] for entry in lacking}
    sees_light_steps = True
    for probe in [*(made() for name, made in {**wanted, **always}.items() if name not in names), *more]:
        watched = len(observers)
        probe.attach(backend, monitor)
        sees_light_steps &= getattr(probe, "sees_light_steps", len(observers) > watched)
    return lacking, sees_light_steps
