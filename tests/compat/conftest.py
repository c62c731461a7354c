import os
import sys
from pathlib import Path

import pytest

# synthetic.py and the other shared modules lie above.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "msprobe"))

PEERS = Path(__file__).parents[2] / ".peers"


@pytest.fixture(scope="session")
def peer():
    """`peer(version)` gives the environment in which `sys.executable` imports that release of mindstudio-probe."""

    def environment(version: str) -> dict[str, str]:
        folders = [PEERS / version, PEERS / "common"]
        if not version.startswith("26."):
            folders.append(PEERS / "older")  # numpy and pandas from before numpy 2
        missing = [str(folder) for folder in folders if not folder.is_dir()]
        if missing:
            pytest.fail(f"mindstudio-probe {version} is not there ({', '.join(missing)}): run `make peers`")
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}

    return environment
