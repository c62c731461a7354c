import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

FRAMEWORKS = ("numpy", "torch", "mindspore")
"""Another backend takes part with its name here, and a `Training` in `<name>_training.py`."""


@pytest.fixture(params=FRAMEWORKS)
def training(request):
    """The same training on each backend whose framework is installed."""
    pytest.importorskip(request.param)
    return importlib.import_module(f"{request.param}_training").Training()
