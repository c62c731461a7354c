"""Damaged run folders, logs and configs: every function and command says which file is wrong, and how, or reads on.

The cases are the same every time. `make test` takes a tenth of them; `make attack` takes all (VARIO_ATTACK=10).
"""

import contextlib
import io
import json
import logging
import os
import random
import shutil
from pathlib import Path

import damage
import pytest

import made_runs
import vario
from vario.cli import main
from vario.config import read_config
from vario.errors import VarioError
from vario.logs.finding import find_history
from vario.runs.brief import read_brief
from vario.runs.curves import read_curve
from vario.runs.heat import read_heat
from vario.runs.vitals import read_vitals
from vario.sinks.store import Store

TIMES = int(os.environ.get("VARIO_ATTACK", "1"))
SAMPLES = Path(__file__).parents[1] / "progress_samples"
ALERT = {
    "rule": "grad_spike",
    "kind": "relative",
    "severity": "page",
    "step": 5,
    "rank": 0,
    "quantity": "gradient",
    "target": "head.weight",
    "value": 1.0,
    "text": "something",
}
CONFIGS = {
    "watch.toml": b'quantities = ["gradient"]\nevery = {gradient = 5}\n[rules]\ngrad_spike = {threshold = 9}\n',
    "watch.yaml": b"quantities: [gradient]\nevery: {gradient: 5}\nrules: {grad_spike: {threshold: 3}}\n",
    "watch.json": json.dumps(
        {
            "quantities": ["gradient"],
            "statistics": ["norm"],
            "every": {"gradient": 5},
            "rules": {"grad_spike": {"threshold": 3}},
            "actions": {"page": ["stop"]},
            "notify": {"least": "warn"},
            "targets": ["a"],
            "ranks": [0],
            "eps": 1e-8,
            "name": "x",
            "directory": "y",
            "sinks": ["store"],
            "engine": "plain",
        }
    ).encode(),
}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A run of parts and outlines, one of live streams, and one of two ranks."""
    place = tmp_path_factory.mktemp("seeds")
    records = [made_runs.record(step, made_runs.frame(step), made_runs.frame(step, "weight")) for step in range(12)]
    outlined = Store(part_steps=4, small_part_bytes=0, outlined_rows=8, stretch_steps=4)
    made_runs.write_run(place / "parts", records, outlined)
    made_runs.write_run(place / "live", records, close=None)
    names = [{"name": name, "shape": [4, 4], "dtype": "float32", "replicas": 0} for name in made_runs.NAMES]
    structure = {"modules": [{"name": "head", "class": "Linear"}], "parameters": names, "groups": [[0, 1]]}
    for rank in range(2):
        ranked = [made_runs.record(step, made_runs.frame(step, rank=rank), loss=1.0) for step in range(12)]
        store = made_runs.small_parts()
        made_runs.write_run(place / "ranks", ranked, store, rank=rank, world_size=2, structure=structure)
    for name in ("parts", "ranks"):
        (place / name / "rank0/alerts.jsonl").write_text(
            "".join(f"{json.dumps(ALERT | {'step': s})}\n" for s in (3, 5))
        )
    return place


@pytest.fixture(autouse=True)
def _silent():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def questions(run):
    """All that can be asked of a run, each by itself."""
    yield from (lambda name=name: getattr(run, name) for name in ("state", "error", "ended", "config", "parts_off"))
    yield from (lambda name=name: getattr(run, name) for name in ("rank_states", "alerts", "incidents", "last_step"))
    yield from (run.structure, run.collectives, run._repr_html_, lambda: read_vitals(run), lambda: read_brief(run))
    yield lambda: run.sql("select count(*) from gradient")
    for quantity in ("gradient", "scalar"):
        target = "loss" if quantity == "scalar" else "head.weight"
        yield from (
            lambda: run.targets(quantity),  # noqa: B023 - asked before the next one
            lambda: run.steps(quantity),  # noqa: B023
            lambda: run.to_arrow(quantity),  # noqa: B023
            lambda: run.frame(5, quantity),  # noqa: B023
            lambda: run.series(target, quantity),  # noqa: B023
            lambda: run.series(target, quantity, rank=0),  # noqa: B023
            lambda: read_heat(run, quantity),  # noqa: B023
            lambda: read_curve(run, target, quantity),  # noqa: B023
            lambda: run.bad_rows(quantity, 0),  # noqa: B023
        )


def refused_or_answered(ask):
    """Asks; what is raised on purpose is an answer too."""
    with contextlib.suppress(VarioError):
        ask()


def command(*words):
    talk = io.StringIO()
    with contextlib.redirect_stdout(talk), contextlib.redirect_stderr(talk):
        main([str(word) for word in words])
    return talk.getvalue()


def spoiled(seeds, place, number):
    chance = random.Random(number)
    shutil.rmtree(place, ignore_errors=True)
    name = chance.choice(("parts", "live", "ranks"))
    shutil.copytree(seeds / name, place / "run")
    return [damage.damaged_run(chance, str(place / "run")) for _ in range(chance.choice((1, 1, 1, 2)))], seeds / name


@pytest.mark.parametrize("batch", range(4))
def test_a_damaged_run_is_read_as_far_as_it_is_whole_or_refused_by_name(seeds, tmp_path, batch):
    for number in range(batch * 10_000, batch * 10_000 + 30 * TIMES):
        done, _ = spoiled(seeds, tmp_path / "runs", number)
        try:
            vario.list_runs(tmp_path / "runs")
            run = vario.open_run(tmp_path / "runs" / "run")
            for ask in questions(run):
                refused_or_answered(ask)
        except VarioError:
            continue  # not even its header can be read
        except Exception as error:
            raise AssertionError(f"case {number}: {done}") from error


def test_commands_on_damaged_runs_end_with_a_sentence(seeds, tmp_path):
    for number in range(50_000, 50_000 + 10 * TIMES):
        done, whole = spoiled(seeds, tmp_path / "runs", number)
        run = tmp_path / "runs" / "run"
        try:
            for words in (
                ("report", run),
                ("show", run, "*"),
                ("check", run, "--all"),
                ("diagnose", run),
                ("rank", run),
            ):
                command(*words)
            command("ls", tmp_path / "runs")
            command("diff", run, whole)
            command("export", run, "--output", tmp_path / "out", "--force")
            command("export", run, "--html", tmp_path / "page.html", "--force")
            command("watch", run, "--once", "--keep")
        except Exception as error:
            raise AssertionError(f"case {number}: {done}") from error


def test_damaged_logs_and_configs_are_refused_by_name(tmp_path):
    samples = sorted(path for path in SAMPLES.rglob("*") if path.is_file() and path.stat().st_size < 1 << 18)
    for number in range(160 * TIMES):
        chance = random.Random(number)
        shutil.rmtree(tmp_path / "place", ignore_errors=True)
        (tmp_path / "place").mkdir()
        if number % 2:
            name = chance.choice(sorted(CONFIGS))
            content = CONFIGS[name]
        else:
            sample = chance.choice(samples)
            name = "trainer_state.json" if sample.suffix == ".json" else sample.name
            content = sample.read_bytes()
        path = tmp_path / "place" / name
        path.write_bytes(content)
        done = damage.damaged_file(chance, str(path))
        try:
            if number % 2:
                refused_or_answered(lambda: read_config(path))  # noqa: B023
            else:
                refused_or_answered(lambda: find_history(path))  # noqa: B023
                command("progress", tmp_path / "place")
        except Exception as error:
            raise AssertionError(f"case {number}: {done} {name}") from error


def test_an_error_names_the_file_what_is_wrong_and_what_is_left(seeds, tmp_path):
    shutil.copytree(seeds / "parts", tmp_path / "run")
    (tmp_path / "run/rank0/gradient/part-000002.parquet").write_bytes(b"PAR1 nothing PAR1")
    run = vario.open_run(tmp_path / "run")
    with pytest.raises(VarioError, match=r"gradient/part-000002\.parquet: not readable as Parquet.*Moved away"):
        run.to_arrow("gradient")
    assert run.to_arrow("weight").num_rows == 48, "what lies beside it is read"
    assert run.frame(1, "gradient").num_rows == 4, "and so are other parts of it"
    (tmp_path / "run/rank0/gradient/part-000002.parquet").unlink()
    assert vario.open_run(tmp_path / "run").to_arrow("gradient").num_rows == 32
