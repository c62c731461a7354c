"""Rules about the machine: what its readings (vario.machine) say about the rest of the run."""

from __future__ import annotations
