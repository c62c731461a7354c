"""Runs and options that have the names of earlier versions: `stray` is `unexpected_change` now, and so on.

`old_names_run` was written by the last version that had these names. At its step 20 something else wrote a weight.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rollup_runs
import vario
from made_runs import frame, header, record
from starting import run_warm
from vario.config import Config, read_config
from vario.runs.live.rank_follower import QuantityFollower
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat
from vario.runs.views.status.quantity_size import rows_bytes
from vario.sinks.store import Store

PARTS = ("change", "ratio", "pace", "grad_vs_second_moment", "eps_share")


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(Path(__file__).with_name("old_names_run"), tmp_path / "old"))


def made_live(run, quantity):
    """Turn the part of a quantity into the stream that it was before."""
    folder = run / "rank0" / quantity
    table = pq.read_table(folder / "part-000001.parquet").combine_chunks()
    schema = table.schema.with_metadata({b"vario.format": b"1", b"vario.session": b"0", b"vario.part": b"1"})
    with pa.ipc.new_stream(str(run / "rank0" / f"{quantity}.live.arrow"), schema) as stream:
        stream.write_table(table.cast(schema))
    shutil.rmtree(folder)


@pytest.mark.parametrize("is_live", [False, True])
def test_an_old_run_is_read_under_the_new_names(old, is_live):
    if is_live:
        made_live(old, "stray")
        made_live(old, "update")
    run = vario.open_run(old)
    assert run.quantities() == ["update", "unexpected_change", "scalar"]
    assert run.config["every"] == {"update": 1, "unexpected_change": 1}
    assert run.targets("unexpected_change") == ["weight"]
    assert rows_bytes(run, "unexpected_change") > 0
    series = run.series("weight", "unexpected_change", "absmax")
    assert series.steps.tolist() == [20]
    assert series.values.tolist() == pytest.approx([5.0])
    assert sorted(run.targets("update")) == sorted(f"{name}:{part}" for name in ("weight", "bias") for part in PARTS)
    assert len(run.series("weight:grad_vs_second_moment", "update", "mean")) == 29
    assert "weight:grad_vs_second_moment" in run.frame(20, "update").column("target").to_pylist()
    assert len(read_curve(run, "weight:grad_vs_second_moment", "update", "mean", points=100)) == 29


def test_sql_has_the_new_names(old):
    run = vario.open_run(old)
    assert run.sql("select step, target from unexpected_change").to_pylist() == [{"step": 20, "target": "weight"}]
    targets = run.sql("select distinct target from update order by target").column("target").to_pylist()
    assert targets == sorted(f"{name}:{part}" for name in ("weight", "bias") for part in PARTS)


def test_what_was_found_and_what_rules_find_again_have_the_new_names(old):
    run = vario.open_run(old)
    for rules in (None, ["unexplained_change"]):
        incident = vario.check(run, rules=rules).incidents[-1]
        assert (incident.step, incident.lead.quantity) == (20, "unexpected_change")
        assert incident.chart == "unexpected_change|weight|absmax"


def test_stored_alerts_of_parts_have_the_new_names():
    plain = {"rule": "state_lost", "kind": "exact", "severity": "warn", "step": 3, "rank": None, "quantity": "update"}
    plain |= {"value": 1.0, "text": "gone"}
    for found in (
        vario.Alert.from_json({**plain, "target": "weight", "part": "surprise"}),
        vario.Alert.from_json({**plain, "target": "weight:surprise"}),
    ):
        assert found.chart == "update|weight:grad_vs_second_moment|"
    assert vario.Alert.from_json({**plain, "target": "surprise", "part": "change"}).target == "surprise"


@pytest.mark.parametrize("is_live", [False, True])
def test_an_old_run_is_followed_under_the_new_names(old, is_live):
    if is_live:
        made_live(old, "stray")
        made_live(old, "update")
    sessions = vario.open_run(old).sessions
    (table,) = QuantityFollower(old / "rank0", "unexpected_change").new_rows(sessions)
    assert table.column("step").to_pylist() == [20]
    (table,) = QuantityFollower(old / "rank0", "update").new_rows(sessions)
    assert "bias:grad_vs_second_moment" in table.column("target").to_pylist()


def test_an_old_run_resumes_into_one_series(old):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    options = {"quantities": ["update", "unexpected_change"], "every": 1, "strict": True, "overhead": "off"}
    with vario.watch(model, optimizer, directory=str(old.parent), name="old", resume=True, **options) as monitor:
        for step in range(30, 40):
            if step == 35:
                with torch.no_grad():
                    model.weight[0, 0] += 5.0
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    run = vario.open_run(monitor.path)
    assert run.series("weight", "unexpected_change", "absmax").steps.tolist() == [20, 35]
    steps = run.series("weight:grad_vs_second_moment", "update", "mean").steps.tolist()
    assert steps == [*range(1, 30), *range(31, 40)]
    assert sorted(run.targets("update")) == sorted(f"{name}:{part}" for name in ("weight", "bias") for part in PARTS)
    # It goes on where it was: one quantity never lies in two folders.
    assert not (old / "rank0" / "unexpected_change").exists()


def test_rollups_of_an_old_run_are_read_under_the_new_names(tmp_path):
    names = ("a.weight:change", "a.weight:surprise", "a.weight:zeta")

    def frames(step):
        return [frame(step, quantity="update", targets=names)]

    rollup_runs.write_rolled_up(tmp_path / "run", range(300), frames=frames)
    run = vario.open_run(tmp_path / "run")
    heat = read_heat(run, "update", columns=5)
    assert heat.is_rollup
    assert list(heat.targets) == ["a.weight:change", "a.weight:grad_vs_second_moment", "a.weight:zeta"]
    series = run.series("a.weight:grad_vs_second_moment", "update", "norm")
    curve = read_curve(run, "a.weight:grad_vs_second_moment", "update", "norm", points=10)
    assert len(series) == 300
    assert len(curve) < 100
    assert (curve.low.min(), curve.high.max()) == (series.values.min(), series.values.max())


def test_new_runs_have_the_new_names_on_disk(tmp_path):
    store = Store()
    store.open(header(tmp_path / "run"))
    store.write(record(0, frame(0, quantity="unexpected_change")))
    store.close("finished", None)
    assert (tmp_path / "run" / "rank0" / "unexpected_change" / "part-000001.parquet").exists()


@pytest.mark.parametrize("every", [3, {"stray": 3}])
def test_old_names_in_options_work_and_say_so_once(every, caplog):
    config = Config(quantities=["update", "stray"], every=every)
    assert config.quantities == ("update", "unexpected_change")
    assert config.schedule("unexpected_change").every == 3
    assert [line.getMessage() for line in caplog.records] == [
        "quantities: 'stray' is deprecated: use 'unexpected_change'."
    ]


def test_old_names_in_a_file_work(tmp_path, caplog):
    (tmp_path / "watch.json").write_text(json.dumps({"quantities": ["stray"], "every": {"stray": 4}}))
    config = read_config(tmp_path / "watch.json")
    assert (config.quantities, config.every) == (("unexpected_change",), {"unexpected_change": 4})
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_old_names_in_flags_work_and_say_so_once(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    flags = ["--quantities", "update,stray", "--every", "stray=2", "--name", "one"]
    result = run_warm(["-m", "vario", "run", *flags, "train.py"], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("quantities: 'stray' is deprecated: use 'unexpected_change'.") == 1
    written = json.loads((tmp_path / "vario_runs" / "one" / "run.json").read_text())["config"]
    assert written["quantities"] == ["update", "unexpected_change"]
    assert written["every"]["unexpected_change"] == 2
