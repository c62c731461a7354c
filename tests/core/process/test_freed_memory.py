"""Memory that was freed goes back to the system, unless the training holds much of it."""

import pytest

from starting import run_afresh
from vario.core.process import freed_memory

pytestmark = pytest.mark.skipif(freed_memory._glibc() is None, reason="needs glibc 2.33 or newer")

SCRIPT = """
import re, sys
from vario.core.process import freed_memory

def resident_mb():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def blocks(megabytes):
    # Small ones, of which every hundredth stays: the rest is free memory between memory in use.
    whole = [b"x" * 16_000 for _ in range(64 * megabytes)]
    return whole[::100]

freed_memory.MOST_FREE_BYTES = int(sys.argv[1]) << 20
kept = blocks(40)
before = resident_mb()
freed_memory.return_freed_memory()
print(before - resident_mb())
"""


@pytest.mark.parametrize(("most_free_mb", "is_returned"), [(64, True), (8, False)])
def test_freed_memory_is_returned_if_little_is_free(most_free_mb, is_returned, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    found = run_afresh([tmp_path / "script.py", str(most_free_mb)])
    returned = float(found.stdout)
    assert returned > 20 if is_returned else returned < 5
