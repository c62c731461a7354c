import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vario.cli.output import plain, print_json


@dataclass
class Point:
    step: int
    value: float


def test_what_json_lacks_becomes_a_word():
    assert plain([math.nan, math.inf, -math.inf, 1.5, None]) == ["nan", "inf", "-inf", 1.5, None]


def test_arrays_dataclasses_paths_and_tuples_become_plain():
    value = {"points": (Point(1, math.nan),), "path": Path("a/b"), "steps": np.arange(3), "one": np.float32(0.5)}
    assert plain(value) == {"points": [{"step": 1, "value": "nan"}], "path": "a/b", "steps": [0, 1, 2], "one": 0.5}


def test_the_document_is_strict(capsys):
    print_json({"loss": math.nan, "steps": np.array([1, 2])})
    shown = capsys.readouterr().out

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(shown, parse_constant=refuse) == {"loss": "nan", "steps": [1, 2]}
