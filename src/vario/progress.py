"""`python -m vario.progress` runs `vario progress`."""

from __future__ import annotations

import sys

from vario.cli import main

if __name__ == "__main__":
    sys.exit(main(["progress", *sys.argv[1:]]))
