"""What is said where a trainer is not installed."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("blocked", "code", "advice"),
    [
        (["transformers"], "import vario; vario.MonitorCallback", "pip install transformers torch"),
        (["lightning", "pytorch_lightning"], "import vario.integrations.lightning", "pip install lightning"),
        (["accelerate"], "import vario.integrations.accelerate", "pip install accelerate"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_missing_trainer_is_told_with_its_install_line(blocked, code, advice):
    # None in sys.modules is how Python itself marks what cannot be imported.
    block = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    result = subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True)
    assert result.returncode == 1
    assert advice in result.stderr.splitlines()[-1]
