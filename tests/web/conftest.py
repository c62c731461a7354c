import sys
from pathlib import Path

import pytest

# Trainings and models serve the tests of other parts too, so they lie above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from web_client import SCRIPT_NAME, serving, write_ranks

from vario.core.attachments import PNG_START
from vario.store.attachments import AttachmentFolder


@pytest.fixture
def serve():
    """Serve a folder of one's own: `with serve(folder) as client`."""
    return serving


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of runs: one in order, one that broke at step 60, one of two ranks, and one with a nasty name."""
    import little_trainings  # and torch with it, which other tests here do not need

    place = tmp_path_factory.mktemp("served")
    little_trainings.train(place / "healthy", steps=60)
    little_trainings.train(place / "deeper" / "broken", steps=60, nan_step=45)
    little_trainings.train(place / SCRIPT_NAME, steps=4)
    write_ranks(place / "ranks")
    for name in ("ranks", "deeper/broken"):
        kept = AttachmentFolder(place / name / "rank0")
        kept.add("figure", "kept", 2, 0.0, PNG_START)
        kept.add("table", "kept", 2, 0.0, b'{"columns": ["a", "b"], "rows": [[1, "x"], [null, [2]]], "num_rows": 2}')
    return place


@pytest.fixture(scope="session")
def client(folder):
    with serving(folder) as found:
        yield found
