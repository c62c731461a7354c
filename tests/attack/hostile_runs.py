"""Whole runs of each kind, and copies of them that are damaged."""

import json
import shutil
from pathlib import Path

import damage
import pytest

import made_runs
from vario.sinks.store import Store

ALWAYS = {"id": "a1b2c3", "host": "here", "pid": 4711, "started": 1.7e9, "ended": 1.7e9 + 60, "opened": 1.7e9}
KINDS = ("parts", "live", "ranks")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A run of parts and rollups, one of live streams, and one of two ranks."""
    place = tmp_path_factory.mktemp("seeds")
    records = [made_runs.record(step, made_runs.frame(step), made_runs.frame(step, "weight")) for step in range(12)]
    rolled_up = Store(part_steps=4, small_part_bytes=0, rollup_min_rows=8, bucket_steps=4)
    made_runs.write_run(place / "parts", records, rolled_up)
    made_runs.write_run(place / "live", records, close=None)
    names = [{"name": name, "shape": [4, 4], "dtype": "float32", "replicas": 0} for name in made_runs.NAMES]
    structure = {"modules": [{"name": "head", "class": "Linear"}], "parameters": names, "groups": [[0, 1]]}
    for rank in range(2):
        ranked = [made_runs.record(step, made_runs.frame(step, rank=rank), loss=1.0) for step in range(12)]
        store = made_runs.small_parts()
        made_runs.write_run(place / "ranks", ranked, store, rank=rank, world_size=2, structure=structure)
    for name in ("parts", "ranks"):
        lines = [json.dumps(made_runs.ALERT | {"step": step}) for step in (3, 5)]
        (place / name / "rank0/alerts.jsonl").write_text("\n".join(lines) + "\n")
    for path in place.rglob("*.json"):
        path.write_text(json.dumps(_without_chance(json.loads(path.read_text())), indent=1))
    return place


def _without_chance(content):
    """What stands in a JSON file, less the day, the machine and the process: every case has to be the same again."""
    if isinstance(content, dict):
        return {key: ALWAYS.get(key, _without_chance(value)) for key, value in content.items()}
    return [_without_chance(item) for item in content] if isinstance(content, list) else content


def spoiled(seeds: Path, place: Path, chance, story: list[str]) -> Path:
    """A damaged copy of a run at `place`/run; answers which run it is a copy of."""
    shutil.rmtree(place, ignore_errors=True)
    whole = seeds / chance.choice(KINDS)
    shutil.copytree(whole, place / "run", copy_function=shutil.copyfile)
    story.append(whole.name)
    story += [damage.damaged_run(chance, str(place / "run")) for _ in range(chance.choice((1, 1, 1, 2)))]
    return whole
