"""Names that would steer a terminal are shown escaped, whatever command shows them."""

import json
import shutil

import pytest

import made_runs
from vario.cli import main
from vario.core.text import shown

EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202egnp.weight"


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory):
    """A run whose folder, tensors, plain numbers, error and alerts all hold escapes."""
    place = tmp_path_factory.mktemp("evil") / f"run{EVIL}"
    numbers = {EVIL: 1.0, "loss": 2.0}
    records = [
        made_runs.record(step, made_runs.frame(step, targets=(EVIL, "head.weight")), **numbers) for step in range(12)
    ]
    structure = {"modules": [{"name": EVIL, "class": EVIL, "num_parameters": 1}], "parameters": []}
    store = made_runs.write_run(place, records, close=None, structure=structure, command=EVIL)
    store.close("crashed", f"RuntimeError: {EVIL}")
    alert = {"rule": EVIL, "kind": "exact", "severity": "page", "step": 5, "rank": 0, "quantity": "gradient"}
    alert |= {"target": EVIL, "value": 1.0, "text": EVIL}
    (place / "rank0" / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    return place


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN"),
        ("ls", "DIR"),
        ("show", "RUN", "*"),
        ("show", "RUN", EVIL),
        ("show", "RUN", EVIL, "--quantity", "gradient"),
        ("show", "RUN", "no" + EVIL),
        ("check", "RUN", "--all"),
        ("diagnose", "RUN", "--stored"),
        ("diff", "RUN", "COPY"),
        ("changes", "RUN"),
        ("export", "RUN", "--output", "OUT"),
        ("follow", "RUN", "--once"),
        ("progress", "RUN"),
        ("report", "RUN" + EVIL),
        ("ls", "DIR" + EVIL),
        (EVIL,),
    ],
    ids=lambda words: words[0][:8],
)
def test_no_command_sends_an_escape_that_came_with_a_name(evil_run, tmp_path, capfd, words):
    copy = tmp_path / "copy"
    shutil.copytree(evil_run, copy)
    places = {"RUN": evil_run, "DIR": evil_run.parent, "COPY": copy, "OUT": tmp_path / "out"}
    for key, place in places.items():
        words = [word.replace(key, str(place)) for word in words]
    main(words)
    written = "".join(capfd.readouterr())
    assert shown(written) == written, "no control character but line ends and tabs"


def test_escapes_are_shown_as_what_they_are(evil_run, capfd):
    main(["show", str(evil_run), "*evil*"])
    written = capfd.readouterr().out
    assert r"evil\x1b]0;owned\x1b[2J\x9b31m\u202egnp.weight" in written
