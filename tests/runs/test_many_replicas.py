"""Series of a tensor that very many ranks have alike: not all of them are read."""

import numpy as np

import made_runs
import vario
from vario.runs.files.layout import MANY_REPLICAS

NAME = "head.weight"


def write(path, steps_of_rank):
    world_size = len(steps_of_rank)
    parameters = [{"name": name, "shape": [4, 4], "dtype": "float32", "replicas": 0} for name in made_runs.NAMES]
    structure = {"modules": [], "parameters": parameters, "groups": [list(range(world_size))]}
    for rank, steps in enumerate(steps_of_rank):
        store = made_runs.small_parts()
        store.open(made_runs.header(path, rank=rank, world_size=world_size, structure=structure))
        for step in steps:
            store.write(made_runs.record(step, made_runs.frame(step)))
        store.close("finished", None)
    return vario.open_run(path)


def expected(steps):
    return [np.linalg.norm(made_runs.tensor(step, NAME)) for step in steps]


def test_all_steps_are_there_whichever_ranks_have_them(tmp_path):
    usual = range(3, 7)
    steps_of_rank = [usual] * (MANY_REPLICAS + 4)
    steps_of_rank[5] = range(9)  # its steps begin earlier, and end later
    steps_of_rank[-1] = range(3, 12)
    run = write(tmp_path / "run", steps_of_rank)
    for rank in ("all", 0, 5):
        found = run.series(NAME, "gradient", "norm", rank)
        assert found.steps.tolist() == list(range(12))
        np.testing.assert_allclose(found.values, expected(range(12)), rtol=1e-12)


def test_ranks_with_the_same_steps_are_not_read_again(tmp_path):
    run = write(tmp_path / "run", [range(4)] * (MANY_REPLICAS + 2))
    # What would be read is damaged behind its footer.
    for rank in range(1, MANY_REPLICAS + 2):
        for part in (run.path / f"rank{rank}" / "gradient").glob("*.parquet"):
            content = bytearray(part.read_bytes())
            content[4:64] = bytes(60)
            part.write_bytes(content)
    assert run.series(NAME, "gradient", "norm").steps.tolist() == list(range(4))
