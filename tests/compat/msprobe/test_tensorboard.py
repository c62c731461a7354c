"""`format: tensorboard`, read with TensorBoard's own reader, beside the last msprobe release that wrote it."""

import io
import json
import math
import subprocess
import sys

import pytest
import reading
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import training
from thorough import thorough

OPS = ["min", "max", "norm", "zeros", "nans", "mean"]
CONFIG = {
    "targets": {},
    "format": "tensorboard",
    "wg_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "mg_direction": True,
    "squash_name": False,
    "ops": OPS,
}
SPECS = {
    "input": "tuple[3]:1",
    "output": "tuple[2]:0",
    "input_grad": "tuple[3]:2",
    "output_grad": "tuple[2]:0",
}
JOBS = {
    "perceptron": {"config": CONFIG, "accumulate": 2, "clip": 0.01},
    "gpt": {"config": CONFIG, "model": "gpt"},
    "chosen sides": {
        "config": {**CONFIG, "targets": {"0:decoder.layers.0.core_attention": SPECS}},
        "model": "gpt",
    },
    "heat maps": {"config": {"format": "tensorboard", "ur_distribution": True, "squash_name": False}, "waits": True},
}


@pytest.fixture(scope="session")
def trained(peer, tmp_path_factory):
    base = tmp_path_factory.mktemp("tensorboard")
    processes = []
    for number, job in enumerate(JOBS.values()):
        # One process each: 1.3.0 replaces the step of the optimizer's class, so an earlier monitor would go on writing.
        jobs = base / f"jobs-{number}.json"
        jobs.write_text(json.dumps([{**job, "monitor": "msprobe", "out": str(base / f"msprobe-{number}")}]))
        command = [sys.executable, training.__file__, str(jobs)]
        processes.append(
            subprocess.Popen(command, env=peer("1.3.0"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    for process in processes:
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said[-4000:]
    errors = [path.read_text() for path in base.glob("*.error")]
    assert not errors, errors[0]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number, job in enumerate(JOBS.values()):
        training.train({**job, "monitor": "vario", "out": str(base / f"vario-{number}")})
    torch.set_num_threads(num_threads)
    return {name: (read(base / f"msprobe-{n}"), read(base / f"vario-{n}")) for n, name in enumerate(JOBS)}


def read(out):
    events = EventAccumulator(str(reading.rank_folder(out)), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def scalars(events):
    """Tag to the list of (step, value)."""
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def documented(theirs):
    """1.3.0 puts the gradients of activations under their own tag's name, as second values of each step."""
    tags = {}
    for tag, values in theirs.items():
        name, _, ending = tag.rpartition("/")
        if not ending.startswith("actv_"):
            tags[tag] = values
            continue
        both = [len([value for value in values if value[0] == step]) == 2 for step in {step for step, _ in values}]
        if not any(both):
            tags[tag] = values
            continue
        assert all(both)
        tags[tag] = values[0::2]
        tags[f"{name}/actv_grad_{ending.removeprefix('actv_')}"] = values[1::2]
    return tags


@thorough
@pytest.mark.parametrize("name", ["perceptron", "gpt"])
def test_the_same_tags_with_the_same_values(trained, name):
    theirs, ours = (scalars(events) for events in trained[name])
    # Of several tensors 1.3.0 keeps the first, without its number.
    ours.update({tag.replace("put_0:", "put:"): values for tag, values in ours.items() if "put_0:" in tag})
    theirs = documented(theirs)
    assert len(ours) > 200
    # A module that gets no gradient for its input has nan there under 1.3.0, and nothing here.
    missing = {tag for tag in set(theirs) - set(ours) if not is_hole(theirs[tag])}
    assert not missing
    # Inputs that are given by keyword are recorded here too.
    extra = {tag for tag in set(ours) - set(theirs) if ".layers." not in tag}
    assert not extra
    for tag in set(theirs) & set(ours):
        for (step, expected), (own_step, found) in zip(theirs[tag], ours[tag], strict=True):
            assert step == own_step, tag
            # 1.3.0 computes in the tensor's own float32.
            same = math.isclose(expected, found, rel_tol=1e-4, abs_tol=1e-7)
            assert same or math.isnan(expected), (tag, step, expected, found)


def is_hole(values):
    return all(math.isnan(value) or value == 0 for _, value in values)


@thorough
def test_chosen_sides_have_the_names_1_3_0_gave_them(trained):
    theirs, ours = (scalars(events) for events in trained["chosen sides"])
    wanted = {tag for tag in documented(theirs) if "/actv" in tag}
    assert wanted
    assert {tag for tag in ours if "/actv" in tag} == wanted
    for tag in wanted:
        expected = [value for _, value in documented(theirs)[tag]]
        assert [value for _, value in ours[tag]] == pytest.approx(expected, rel=1e-4, abs=1e-7), tag


@thorough
def test_heat_maps_of_updates_and_ratios(trained):
    theirs, ours = trained["heat maps"]
    assert set(ours.Tags()["images"]) == set(theirs.Tags()["images"])
    assert len(ours.Tags()["images"]) == 8
    for tag in ours.Tags()["images"]:
        expected, found = theirs.Images(tag), ours.Images(tag)
        assert [image.step for image in found] == [image.step for image in expected], tag
        last = Image.open(io.BytesIO(found[-1].encoded_image_string))
        assert last.size == (found[-1].width, found[-1].height) == (640, 480)
        brightest = (253, 231, 37)
        assert brightest in [colour for _, colour in last.convert("RGB").getcolors(1 << 20)]


def test_the_brightest_place_of_a_heat_map_is_where_most_elements_are():
    import numpy as np

    from vario.compat.msprobe.heat_maps import draw

    table = np.zeros((30, 2))
    table[29, 0] = 100.0  # near 1, in the first step
    table[0, 1] = 10.0  # near -1, in the second
    picture = np.array(Image.open(io.BytesIO(draw(table, [3, 4])))).astype(int)
    yellow, dark = (253, 231, 37), (68, 1, 84)
    assert tuple(picture[50, 60]) == yellow
    assert tuple(picture[425, 60]) == dark
    assert tuple(picture[50, 580]) == dark
    assert tuple(picture[425, 580]) not in (yellow, dark)
