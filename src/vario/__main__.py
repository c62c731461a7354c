"""`python -m vario` runs `vario`; launchers such as torchrun can start it this way."""

from __future__ import annotations

import sys

from vario.cli import main

if __name__ == "__main__":
    sys.exit(main())
