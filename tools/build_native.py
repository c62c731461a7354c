"""Builds the C library of `vario.backends.native` beside its source. Without a compiler vario works, but slower.

python tools/build_native.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path("src", "vario", "backends", "native")
SOURCE, BUILT = "reduce.c", "reduce.so"
FLAGS = ["-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
VARIANTS = (["-static-libgcc"], ["-static-libgcc", "-DVARIO_NO_CLONES"], ["-DVARIO_NO_CLONES"])
"""The second for compilers that cannot make one function for several processors, the last for other linkers."""


def build(root: Path) -> str | None:
    """Compile the library if its source is newer; return why it could not be built."""
    source, built = root / FOLDER / SOURCE, root / FOLDER / BUILT
    if built.exists() and built.stat().st_mtime >= source.stat().st_mtime:
        return None
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or ""]
    if not compiler[0]:
        return "there is no C compiler"
    made, said = built.with_suffix(".new"), ""
    for variant in VARIANTS:
        try:
            done = subprocess.run(
                [*compiler, *FLAGS, *variant, "-o", str(made), str(source), "-lm"], capture_output=True, text=True
            )
        except OSError as error:
            return str(error)
        if done.returncode == 0:
            made.replace(built)
            return None
        said = said or done.stderr.strip()[-500:]
    made.unlink(missing_ok=True)
    return said


if __name__ == "__main__":
    problem = build(Path(__file__).parents[1])
    if problem is not None:
        print(f"the native library was not built, vario does without it: {problem}", file=sys.stderr)
