"""The most floating-point operations a second that a device can do, by precision, from the makers' data sheets.

Dense matrix products; what sheets give with sparsity is twice that. Nothing here was measured.
"""

from __future__ import annotations

from collections.abc import Mapping

BFLOAT16, FLOAT16, TF32, FLOAT32, FLOAT8 = "bfloat16", "float16", "tf32", "float32", "float8"


def _sheet(half: float, tf32: float | None, single: float, eighth: float | None = None) -> Mapping[str, float]:
    found = {BFLOAT16: half, FLOAT16: half, TF32: tf32, FLOAT32: single, FLOAT8: eighth}
    return {name: tera * 1e12 for name, tera in found.items() if tera is not None}


PEAKS: Mapping[str, Mapping[str, float]] = {
    "B200": _sheet(2250, 1125, 75, 4500),
    "H200": _sheet(989.4, 494.7, 66.9, 1978.9),
    "H100 80GB HBM3": _sheet(989.4, 494.7, 66.9, 1978.9),
    "H100 PCIe": _sheet(756.5, 378, 51.2, 1513),
    "A100": _sheet(312, 156, 19.5),
    "L40S": _sheet(362, 183, 91.6, 733),
    "A10G": _sheet(70, 35, 35),
    "RTX 4090": _sheet(165.2, 82.6, 82.6, 330.3),
    "RTX 3090": _sheet(71, 35.6, 35.6),
    "Tesla T4": {FLOAT16: 65e12, FLOAT32: 8.1e12},
    "V100-SXM2": {FLOAT16: 125e12, FLOAT32: 15.7e12},
    "MI300X": _sheet(1307.4, 653.7, 163.4, 2614.9),
}
"""By what the device's name contains."""
OTHERS = ("NVL", "GH200", "GB200", "Laptop")
"""Devices of the same family with other clocks, which are not in the table."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the peak of a device by its name, as torch gives it; None if it is not known."""
    if any(word in device_name for word in OTHERS):
        return None
    sheet = next((PEAKS[name] for name in PEAKS if name in device_name), None)
    return None if sheet is None else sheet.get(precision)
