"""TrainerMon on MindSpore, where there is nothing of msprobe's to compare with: beside NumPy and the manual."""

import json
from pathlib import Path

import numpy as np
import pytest
import reading

HERE = Path(__file__).parent
PLAIN = {"ops": ["min", "max", "mean", "zeros", "nans"], "ndigits": 16}
EVERYTHING = {"targets": {}, "wg_distribution": True, "param_distribution": True, "xy_distribution": True, **PLAIN}
JOBS = {
    "everything": {"config": EVERYTHING},
    "gradients": {"config": {"targets": {}, "wg_distribution": True, **PLAIN}, "asks": True},
    "api": {"config": {**EVERYTHING, "format": "api"}, "asks": True},
    "continued": {"config": {**EVERYTHING, "step_count_per_record": 4}, "continues": 2},
    "features": {
        "config": {
            "recording_l2_features": True,
            "l2_targets": {
                "linear_hook": [],
                "attention_hook": ["0:layers.0.core_attention"],
                "moe_router_weight_hook": ["0:layers.0.proj"],
                "moe_router_logit_hook": ["0:layers.0.proj"],
            },
            "squash_name": True,
            "ndigits": 16,
        },
        "model": "gpt",
        "steps": 1,
    },
    "left out": {"config": {"wg_distribution": True, "mg_direction": True, "cc_distribution": {"enable": True}}},
    "full names": {"config": {**EVERYTHING, "squash_name": False}, "model": "gpt", "steps": 1},
    "short names": {"config": {**EVERYTHING, "squash_name": True}, "model": "gpt", "steps": 1},
    "norm": {"config": {"targets": {}, "param_distribution": True, **PLAIN, "ops": ["norm"]}},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def trained(mindspore, tmp_path_factory):
    """The folder of each job."""
    base = tmp_path_factory.mktemp("mindspore")
    folders = {name: base / str(number) for number, name in enumerate(JOBS)}
    jobs = [{**job, "monitor": "vario", "out": str(folders[name])} for name, job in JOBS.items()]
    (base / "jobs.json").write_text(json.dumps(jobs))
    done = mindspore(HERE / "mindspore_training.py", base / "jobs.json", cwd=base)
    (base / "log.txt").write_text(done.stderr)
    assert list(base.glob("*.error")) == [], [path.read_text() for path in base.glob("*.error")]
    return folders


def test_the_api_gives_the_gradients_before_the_update(trained):
    out = trained["gradients"]
    asked = json.loads(Path(f"{out}.asked.json").read_text())
    rows = {(row["name"], int(row["step"])): row for row in reading.rows(out, "grad_reduced")}
    for step, (reduced, unreduced, *_) in enumerate(asked):
        assert len(reduced) == len(unreduced) == 4
        for tag, found in reduced.items():
            name = tag.partition("/")[0].partition(":")[2]
            assert tag.endswith("/rank0/post_grad")
            assert found["max"] == pytest.approx(float(rows[name, step]["max"]), rel=1e-6)


def test_with_the_api_nothing_is_written_and_everything_answered(trained):
    out = trained["api"]
    assert list(out.iterdir()) == []
    asked = json.loads(Path(f"{out}.asked.json").read_text())
    for answers in asked:
        assert [len(found) for found in answers] == [4, 4, 8, 6]
    written = {(row["name"], int(row["step"])): row for row in reading.rows(trained["everything"], "actv")}
    for step, (_, _, values, _) in enumerate(asked):
        for tag, found in values.items():
            name = tag.partition("/")[0].split(":")[1]
            assert found["max"] == pytest.approx(float(written[name, step]["max"]), rel=1e-6)


def test_a_continued_training_appends_and_replaces_the_steps_it_repeats(trained):
    out = trained["continued"]
    for prefix in ("param_origin", "grad_reduced", "actv"):
        assert reading.steps(out, prefix) == [0, 1, 2, 3, 4]
        rows = [(row["name"], row["step"]) for row in reading.rows(out, prefix)]
        assert len(rows) == len(set(rows))


def test_names_are_whole_unless_they_are_to_be_short(trained):
    names = {row["name"] for row in reading.rows(trained["full names"], "param_origin")}
    assert "decoder.layers.1.mlp.2.weight" in names
    names = {row["name"] for row in reading.rows(trained["short names"], "param_origin")}
    assert "layers.1.mlp.2.weight" in names


def test_features_of_layers_are_those_of_numpy(trained):
    files = reading.files(trained["features"])
    generator = np.random.default_rng(0)
    width = 8
    shapes = [("embedding", (17, width))]
    for layer in range(2):
        shapes += [(f"norm{layer}", (width,)), (f"norm{layer}", (width,))]
        for name, shape in {"linear_qkv": (24, 8), "proj": (8, 8), "mlp.0": (16, 8), "mlp.2": (8, 16)}.items():
            shapes += [(f"layers.{layer}.{name}", shape), ("bias", shape[:1])]
    shapes += [("final_norm", (width,)), ("final_norm", (width,)), ("output_layer", (17, width))]
    filled = [(name, (generator.normal(size=shape) / 2).astype(np.float32)) for name, shape in shapes]
    matrices = {name: array.astype(np.float64) for name, array in filled if array.ndim == 2 and name != "embedding"}
    header, rows = files["linear_hook_0-0.csv"]
    assert header == ["vpp_stage", "name", "step", "sr", "kernel_norm"]
    found = {row[1].removesuffix(".linear"): list(map(float, row[3:])) for row in rows}
    assert set(found) == set(matrices)
    for name, matrix in matrices.items():
        largest = np.linalg.svd(matrix)[1][0]
        assert found[name] == pytest.approx([np.linalg.norm(matrix) / largest, largest], rel=1e-5), name
    ((*_, entropy, largest),) = files["attention_hook_0-0.csv"][1]
    assert 0 < float(entropy) < np.log(5)
    assert 0.2 < float(largest) < 1
    columns = (matrices["layers.0.proj"] / np.linalg.norm(matrices["layers.0.proj"], axis=0)).T
    cosines = (columns @ columns.T)[np.triu_indices(8, 1)]
    ((*_, similarity),) = files["moe_router_weight_hook_0-0.csv"][1]
    assert float(similarity) == pytest.approx(cosines.mean(), rel=1e-4)
    ((*_, choice),) = files["moe_router_logit_hook_0-0.csv"][1]
    assert 0 < float(choice) <= np.log(8)


def test_what_mindspore_does_not_offer_is_left_out_with_a_warning(trained):
    out = trained["left out"]
    assert reading.steps(out, "grad_reduced") == [0, 1, 2]
    assert not [name for name in reading.files(out) if name.startswith("other")]
    text = (out.parent / "log.txt").read_text()
    for field in ("mg_direction", "cc_distribution"):
        assert f"{field}: not offered for models of this framework" in text


def test_norms_are_those_of_numpy(trained):
    generator = np.random.default_rng(0)
    shapes = {"up.weight": (8, 6), "up.bias": (8,), "down.weight": (3, 8), "down.bias": (3,)}
    filled = {name: (generator.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}
    rows = [row for row in reading.rows(trained["norm"], "param_origin") if row["step"] == "0"]
    found = {row["name"]: float(row["norm"]) for row in rows}
    assert found == pytest.approx({name: float(np.linalg.norm(array)) for name, array in filled.items()}, rel=1e-6)


REFUSALS = """
import json, sys
import mindspore
from mindspore import nn
from pathlib import Path
from vario.compat.msprobe import TrainerMon
Path("config.json").write_text(json.dumps({"wg_distribution": True}))
net = nn.Dense(2, 2)
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
def refused(model, optimizer, steps=1):
    try:
        TrainerMon("config.json").set_monitor(model, grad_acc_steps=steps, optimizer=optimizer)
    except Exception as error:
        print(type(error).__name__, error)
refused(net, object())
refused([net, 3], optimizer)
refused(net, nn.Momentum(nn.Dense(2, 2).trainable_params(), 0.1, 0.9))
mindspore.set_context(mode=mindspore.GRAPH_MODE)
refused(net, optimizer)
print([name for name in ("torch",) if name in sys.modules])
"""


def test_what_cannot_be_watched_is_refused(mindspore, tmp_path):
    (tmp_path / "refusals.py").write_text(REFUSALS)
    lines = mindspore("refusals.py", cwd=tmp_path).stdout.splitlines()
    assert lines[0] == "ModelError set_monitor: optimizer: expected a MindSpore optimizer, got object"
    assert lines[1] == "ModelError set_monitor: model: expected a mindspore.nn.Cell, or a list of them, got int"
    assert lines[2].startswith("ModelError watch: Momentum has none of the model's parameters.")
    assert lines[3].startswith("ModelError set_monitor: TrainerMon watches MindSpore in PyNative mode only")
    assert lines[4] == "[]"


def test_importing_it_imports_no_framework(mindspore, tmp_path):
    words = "import sys, vario.compat.msprobe as m; m.TrainerMon; print({'torch', 'mindspore'} & {*sys.modules})"
    assert mindspore("-c", words, cwd=tmp_path).stdout.split("\n")[0] == "set()"
