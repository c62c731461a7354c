"""log_<time>.txt of torchtune: `Step 1 | loss:1.5 lr:2e-05 ...`."""

from __future__ import annotations

import re
from pathlib import Path

from vario.logs import log_format
from vario.logs.history import History, renamed
from vario.logs.names import canonical_names
from vario.logs.rows import Rows
from vario.logs.text_files import make_history, read_text

LINE = re.compile(r"^Step (\d+) \| (.*)$", flags=re.MULTILINE)
PAIR = re.compile(r"(\S+?):(?:tensor\()?([-+.\w]+)(?:,[^)]*)?\)?(?:\s|$)")


@log_format("torchtune", ("log_*.txt",), order=40, looks_right=lambda text: LINE.search(text) is not None)
def torchtune(path: Path) -> History:
    """Text log of torchtune."""
    rows = Rows()
    for step, pairs in LINE.findall(read_text(path)):
        rows.add(int(step), dict(PAIR.findall(pairs)))
    curves, notes = rows.curves()
    return make_history(path, "torchtune", renamed(curves, canonical_names(curves)), notes)
