"""Damaged logs and configs: each is read as far as it goes, or refused with its name."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import damage
from cases import batches, run_batch

from vario.cli import main
from vario.config import read_config
from vario.core.errors import ConfigError, VarioError
from vario.logs.finding import find_history

SAMPLES = Path(__file__).parents[1] / "progress_samples"
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


def spoiled(chance, place, name, content, story):
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / name).write_bytes(content)
    story += [name, *(damage.damaged_file(chance, str(place / name)) for _ in range(1))]
    return place / name


@batches("log")
def test_a_damaged_log_is_read_as_far_as_it_goes_or_refused_by_name(tmp_path, batch, request):
    samples = sorted(path for path in SAMPLES.rglob("*") if path.is_file() and path.stat().st_size < 1 << 18)

    def attempt(chance, story):
        sample = chance.choice(samples)
        name = "trainer_state.json" if sample.suffix == ".json" else sample.name
        path = spoiled(chance, tmp_path / "place", name, sample.read_bytes(), story)
        with contextlib.suppress(VarioError):
            find_history(path)
        if chance.random() < 0.25:
            story.append("progress")
            answer = io.StringIO()
            with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(answer):
                main(["progress", str(tmp_path / "place")])
            assert "Traceback" not in answer.getvalue()

    run_batch("log", batch, request, attempt)


@batches("config")
def test_a_damaged_config_is_refused_by_name(tmp_path, batch, request):
    def attempt(chance, story):
        name = chance.choice(sorted(CONFIGS))
        path = spoiled(chance, tmp_path / "place", name, CONFIGS[name], story)
        with contextlib.suppress(ConfigError):
            read_config(path)

    run_batch("config", batch, request, attempt)
