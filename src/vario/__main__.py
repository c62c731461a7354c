"""`python -m vario` is `vario`: the form a launcher such as torchrun can start."""

from __future__ import annotations

import sys

from vario.cli import main

if __name__ == "__main__":
    sys.exit(main())
