"""What a run cannot record because the backend of its model does not offer it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vario.backends.protocols.backend import Backend, in_words
from vario.backends.protocols.capabilities import Snapshots
from vario.config import Config
from vario.core.quantities import SCALAR
from vario.core.run_header import NotOffered

log = logging.getLogger("vario")


def not_offered(probes: Mapping[str, Any], backend: Backend, config: Config) -> NotOffered:
    """Return the quantities (also plain numbers and snapshots) that the backend cannot record, and what each lacks."""
    needs = {name: getattr(probe, "needs", ()) for name, probe in probes.items()}
    if config.takes("snapshot"):
        needs["action snapshot"] = (Snapshots,)
    found = []
    for name, wanted in needs.items():
        missing = [need for need in wanted if backend.offer(need) is None]
        if missing:
            found.append({"quantity": name, "missing": " and ".join(map(in_words, missing))})
    return found


def warn_of_chosen(found: NotOffered, config: Config) -> None:
    """Warn at the start about chosen quantities that will be missing; missing defaults are only listed."""
    if config.quantities in ((), Config().quantities):
        return
    chosen = [entry for entry in found if not entry["quantity"].startswith(f"{SCALAR}:")]
    if chosen:
        names = ", ".join(f"{entry['quantity']} (no {entry['missing']})" for entry in chosen)
        log.warning("not recorded, because this framework's backend does not offer it: %s", names)
