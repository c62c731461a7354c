import os
import threading

import numpy as np
import pytest
from made_csv import folder, interrupted, values, write

import vario
from vario.compat.msprobe.importing import import_msprobe
from vario.core.errors import ConfigError, RunError, RunTaken
from vario.core.event_file import EventFile


def imported(base, **options):
    return vario.open_run(import_msprobe(base / "in", base / "runs", "run", **options).path)


def put(path, name, *lines):
    (path / name).write_text("\n".join(lines) + "\n")


def test_statistics_come_out_as_they_went_in(tmp_path):
    path = folder(tmp_path / "in")
    tensor = np.random.default_rng(0).normal(size=(4, 8))
    tensor[0, :3] = 0
    row = (np.linalg.norm(tensor), tensor.min(), tensor.max(), tensor.mean(), np.mean(tensor == 0), 0)
    header = "vpp_stage,name,step,norm,min,max,mean,zeros,nans,shape,dtype"
    put(path, "grad_reduced_0-0.csv", header, f'0,w,0,{",".join(map(repr, map(float, row)))},"[4, 8]",torch.float32')
    run = imported(tmp_path)

    def one(statistic):
        (value,) = run.series("w", "gradient_applied", statistic).values
        return value

    wanted = dict(zip(("norm", "min", "max", "mean", "zeros", "nans"), row, strict=True))
    wanted |= {"count": 32, "rms": np.sqrt(np.mean(tensor**2)), "std": tensor.std(), "infs": 0}
    assert {name: one(name) for name in wanted} == pytest.approx(wanted)


def test_every_kind_of_file_becomes_a_quantity_with_names_of_our_own(tmp_path):
    path = folder(tmp_path / "in")
    write(path, "actv", [0], names=(".input", "layers.0.mlp.input", "layers.0.mlp.output_1"), micros=[0, 1])
    write(path, "actv_grad", [0], names=("layers.0.mlp.output_1", ".output"), micros=[0])
    for kind in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "momentum", "other"):
        write(path, kind, [0], names=("head.weight",))
    head = "vpp_stage,name,step,micro_step,entropy,softmax_max"
    put(path, "attention_hook_0-0.csv", head, "0,layers.0.core.attention,0,0,1.5,0.5")
    put(path, "linear_hook_0-0.csv", "vpp_stage,name,step,sr,kernel_norm", "0,layers.0.mlp.linear,0,3.5,nan")
    run = imported(tmp_path)
    assert {quantity: run.targets(quantity) for quantity in run.quantities()} == {
        "weight_before": ["head.weight"],
        "activation": ["root:input", "layers.0.mlp:input", "layers.0.mlp:output.1"],
        "activation_gradient": ["layers.0.mlp:output.1", "root:output"],
        "gradient_accumulated": ["head.weight"],
        "moment_before": ["head.weight:exp_avg", "head.weight:momentum"],
        "gradient_applied": ["head.weight"],
        "direction": ["head.weight"],
        "weight": ["head.weight"],
        "attention": ["layers.0.core:entropy", "layers.0.core:softmax_max"],
        "spectrum": ["layers.0.mlp:sr", "layers.0.mlp:kernel_norm"],
    }
    assert run.series("layers.0.core:entropy", "attention", "mean").values.tolist() == [1.5]
    assert run.series("layers.0.mlp:kernel_norm", "spectrum", "nans").values.tolist() == [1]
    assert run.series("root:input", "activation", "min", micro_steps=True).micro_steps.tolist() == [0, 1]


def test_rows_are_in_the_order_of_forward_backward_and_update(tmp_path):
    path = folder(tmp_path / "in")
    write(path, "actv", [0], names=("a.input",), micros=[0, 1])
    write(path, "actv_grad", [0], names=("a.input",), micros=[0, 1])
    for kind in ("param_updated", "param_origin", "grad_reduced"):
        write(path, kind, [0], names=("a.weight",))
    rows = imported(tmp_path).frame(0).sort_by("order").to_pylist()
    assert [(row["quantity"], row["micro_step"]) for row in rows] == [
        ("weight_before", 0),
        ("activation", 0),
        ("activation_gradient", 0),
        ("activation", 1),
        ("activation_gradient", 1),
        ("gradient_applied", 0),
        ("weight", 0),
    ]


def test_steps_come_in_order_whatever_files_and_folders_they_are_in(tmp_path):
    write(folder(tmp_path / "in", tag="Dec04_00-00-00"), "grad_reduced", range(6, 12), shift=100.0)
    write(folder(tmp_path / "in", tag="Dec03_00-00-00"), "grad_reduced", range(8), per_file=5)
    write(folder(tmp_path / "in", tag="Dec03_00-00-00"), "param_updated", [3])
    run = imported(tmp_path)
    series = run.series("head.weight", "gradient_applied", "min")
    assert series.steps.tolist() == list(range(12))
    mins = [values("grad_reduced", "head.weight", step)[1] + (100 if step >= 6 else 0) for step in range(12)]
    assert series.values.tolist() == mins
    assert run.steps("weight").tolist() == [3]


def test_all_ranks_are_imported_and_can_be_told_apart(tmp_path):
    for rank in (1, 4):
        write(folder(tmp_path / "in", rank), "grad_reduced", [0, 1], rank=rank)
    done = import_msprobe(tmp_path / "in", tmp_path / "runs", "run")
    run = vario.open_run(done.path)
    assert (run.ranks, run.world_size, run.state, done.num_steps, done.num_rows) == ([1, 4], 5, "finished", 2, 16)
    for rank in (1, 4):
        found = run.series("head.weight", "gradient_applied", "max", rank=rank).values.tolist()
        assert found == [values("grad_reduced", "head.weight", step, rank)[2] for step in (0, 1)]


def test_stages_are_part_of_names_only_where_there_are_several(tmp_path):
    path = folder(tmp_path / "in")
    for stage in (0, 1):
        write(path, "grad_reduced", [0], names=("a.weight",), stage=stage)
        write(path, "actv", [0], names=(".input",), stage=stage, micros=[0])
    run = imported(tmp_path)
    assert run.targets("gradient_applied") == ["0.a.weight", "1.a.weight"]
    assert run.targets("activation") == ["0.root:input", "1.root:input"]


def test_without_shapes_what_needs_a_size_is_not_made_up(tmp_path, caplog):
    write(folder(tmp_path / "in"), "param", [0, 1], forms=False)
    run = imported(tmp_path)
    norms = run.series("head.weight", "weight_before", "norm").values
    assert norms == pytest.approx([abs(values("param", "head.weight", step)[0]) for step in (0, 1)])
    for statistic in ("rms", "std", "count", "mean"):
        assert np.isnan(run.series("head.weight", "weight_before", statistic).values).all(), statistic
    with pytest.raises(ConfigError, match="'zeros' needs zeros, which this run did not record"):
        run.series("head.weight", "weight_before", "zeros")
    assert run.config["statistics"] == ["norm", "min", "max", "absmax", "nans", "infs"]
    assert "the files have no column `shape`" in caplog.text


def test_a_statistic_whose_column_is_missing_is_refused(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", [0], ops=("norm", "mean"))
    run = imported(tmp_path)
    with pytest.raises(ConfigError, match="'min' needs min, which this run did not record"):
        run.series("head.weight", "gradient_applied", "min")


def test_a_tensor_that_was_not_there_is_no_finding(tmp_path):
    path = folder(tmp_path / "in")
    header = "vpp_stage,name,step,micro_step,norm,min,nans,shape,dtype"
    lines = ["0,a.input,0,0,nan,nan,nan,nan,nan", '0,a.output,0,0,1.5,0.5,0,"[2, 2]",torch.float32']
    put(path, "actv_grad_0-0.csv", header, *lines)
    run = imported(tmp_path)
    assert run.targets("activation_gradient") == ["a:output"]
    assert vario.first_bad(run) is None


@pytest.mark.parametrize(
    ("columns", "row", "statistic", "number"),
    [
        ("norm,min,max,nans", "nan,nan,nan,3", "nans", 3),
        ("norm", "nan", "nans", 1),
        ("norm", "inf", "infs", 1),
        ("norm,min,max", "inf,-inf,inf", "infs", 2),
        ("min,max", "0.5,inf", "infs", 1),
    ],
)
def test_what_is_not_finite_is_found_by_whatever_tells_of_it(tmp_path, columns, row, statistic, number):
    path = folder(tmp_path / "in")
    put(path, "grad_reduced_0-0.csv", f"vpp_stage,name,step,{columns},shape,dtype", f'0,w,0,{row},"[2, 2]",float32')
    run = imported(tmp_path)
    assert run.series("w", "gradient_applied", statistic).values.tolist() == [number]
    assert vario.first_bad(run).target == "w"


def test_the_structure_is_told_by_names_and_shapes(tmp_path):
    path = folder(tmp_path / "in")
    write(path, "param_origin", [0], names=("head.weight",))
    write(path, "actv", [0], names=("head.input", ".output"), micros=[0])
    structure = imported(tmp_path).structure()
    (parameter,) = structure["parameters"]
    assert (parameter["name"], parameter["shape"], parameter["dtype"]) == ("head.weight", [4, 8], "float32")
    assert {module["name"]: module["num_parameters"] for module in structure["modules"]} == {"head": 32, "root": 0}


def test_the_run_says_where_it_came_from(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", [0])
    assert imported(tmp_path).command == f"vario import --from msprobe {tmp_path / 'in'}"


def test_a_run_that_is_there_is_left_alone(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", [0])
    imported(tmp_path)
    before = sorted((tmp_path / "runs").rglob("*"))
    with pytest.raises(RunTaken, match=r"runs/run: already exists. Choose another --name, or remove"):
        imported(tmp_path)
    assert sorted((tmp_path / "runs").rglob("*")) == before


def test_an_interrupted_import_leaves_nothing(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", range(5))
    slow = folder(tmp_path / "in") / "grad_reduced_5-5.csv"
    os.mkfifo(slow)
    # Its header is read beforehand; nobody ever writes into it again, so whoever reads it then waits.
    header = threading.Thread(target=slow.write_text, args=("vpp_stage,name,step,norm\n",))
    header.start()
    words = ["import", "--from", "msprobe", str(tmp_path / "in"), "--directory", str(tmp_path / "runs")]
    code = f"import sys; from vario.cli import main; sys.exit(main({words!r}))"
    said = interrupted(code, lambda: any(tmp_path.glob("runs/**/*.live.arrow")))
    header.join()
    assert said == "vario: interrupted\n"
    assert [found.name for found in tmp_path.iterdir()] == ["in"]


def test_an_import_that_fails_leaves_nothing_and_names_the_file(tmp_path):
    path = folder(tmp_path / "in")
    write(path, "grad_reduced", range(2))
    (path / "grad_reduced_2-2.csv").mkdir()
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunError, match=r"runs/run: not imported: .*Is a directory: .*grad_reduced_2-2.csv"):
        imported(tmp_path)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_name_is_made_from_when_it_began(tmp_path):
    write(folder(tmp_path / "in", tag="Feb29_10-00-00", changed=(2024, 2, 29, 12)), "grad_reduced", [0])
    folder(tmp_path / "in", tag="Feb29_10-00-00", changed=(2024, 2, 29, 12))
    assert import_msprobe(tmp_path / "in", tmp_path / "runs").path.name == "msprobe-20240229-100000"


def test_nothing_is_made_of_nothing(tmp_path):
    path = folder(tmp_path / "in")
    with pytest.raises(ConfigError, match=f"'{path}' has no file `<type>_<step>-<step>.csv`$"):
        import_msprobe(tmp_path / "in", tmp_path / "in", "run")
    EventFile(path, 0.0).close()
    with pytest.raises(ConfigError, match="contains event files, but import and convert read CSV"):
        import_msprobe(tmp_path / "in", tmp_path / "in", "run")
    assert list((tmp_path / "in").iterdir()) == [path]


def test_a_column_that_a_file_does_not_have_is_no_nan(tmp_path):
    header = "vpp_stage,name,step,norm,nans,shape,dtype"
    put(folder(tmp_path / "in", tag="Dec03_21-34-40"), "grad_reduced_0-0.csv", header, "0,v,0,1.5,0,[4],float32")
    without = "vpp_stage,name,step,norm,shape,dtype"
    put(folder(tmp_path / "in", tag="Dec03_22-34-40"), "grad_reduced_0-0.csv", without, "0,w,0,1.6,[4],float32")
    put(folder(tmp_path / "in", tag="Dec03_23-34-40"), "grad_reduced_0-0.csv", "vpp_stage,name,step,norm", "0,x,0,1.7")
    run = imported(tmp_path)
    assert run.targets("gradient_applied") == ["v", "w", "x"]
    assert [run.series(name, "gradient_applied", "nans").values.tolist() for name in "vwx"] == [[0], [0], [0]]
    assert run.series("x", "gradient_applied", "norm").values == pytest.approx([1.7])
    assert vario.first_bad(run) is None


def test_a_nan_is_found_beside_files_with_other_columns(tmp_path):
    header = "vpp_stage,name,step,norm,nans,shape,dtype"
    put(folder(tmp_path / "in", tag="Dec03_21-34-40"), "grad_reduced_0-0.csv", header, "0,v,0,1.5,0,[4],float32")
    put(folder(tmp_path / "in", tag="Dec03_22-34-40"), "grad_reduced_0-0.csv", "vpp_stage,name,step,norm", "0,w,0,nan")
    assert vario.first_bad(imported(tmp_path)).target == "w"


def test_a_column_that_only_files_in_the_middle_have_is_kept(tmp_path):
    path = folder(tmp_path / "in")
    for step, ops in enumerate([("norm",), ("norm", "max"), ("norm",)]):
        write(path, "grad_reduced", [step], ops=ops)
    found = imported(tmp_path).series("head.weight", "gradient_applied", "max").values
    wanted = values("grad_reduced", "head.weight", 1, ops=("norm", "max"))[1]
    assert found == pytest.approx([np.nan, wanted, np.nan], nan_ok=True)


def test_several_folders_of_a_rank_are_named_as_one_run_continued(tmp_path):
    for rank in range(3):
        for nth in range(2):
            write(folder(tmp_path / "in", rank, f"Dec0{nth + 3}_00-00-00"), "grad_reduced", [nth], rank=rank)
    done = import_msprobe(tmp_path / "in", tmp_path / "runs")
    assert done.remarks == [
        "rank 0 has 2 folders (Dec03_00-00-00-rank0-0a1b2c3d, Dec04_00-00-00-rank0-0a1b2c3d), and 2 other ranks "
        "with several too: read as one continued run; use --time-start and --time-end (time_start, time_end) to choose"
    ]


def test_folders_that_share_steps_are_named_once_for_each_rank(tmp_path):
    for kind in ("grad_reduced", "param_origin"):
        write(folder(tmp_path / "in", tag="Dec03_00-00-00"), kind, range(4), names=("a", "b"), per_file=2)
        write(folder(tmp_path / "in", tag="Dec04_00-00-00"), kind, range(2, 6), names=("b", "c"), per_file=2)
    first, second = import_msprobe(tmp_path / "in", tmp_path / "runs").remarks
    assert first.startswith("rank 0 has 2 folders")
    assert second == (
        "rank 0: folders share 2 steps (2 to 3); what later ones have replaces what earlier ones have (4 rows)"
    )


def test_steps_that_are_shared_without_a_row_replaced_are_named_too(tmp_path):
    for tag, name in (("Dec03_00-00-00", "a"), ("Dec04_00-00-00", "b")):
        write(folder(tmp_path / "in", tag=tag), "grad_reduced", [0], names=(name,))
    assert import_msprobe(tmp_path / "in", tmp_path / "runs").remarks[1].startswith("rank 0: folders share step 0;")


def test_rows_that_one_folder_has_twice_are_named_once(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", [0, 1, 1], names=("a",))
    done = import_msprobe(tmp_path / "in", tmp_path / "runs")
    assert done.remarks == ["rank 0: 1 row of step 1 occur twice; the later ones are used"]


def test_a_folder_of_plain_numbers_needs_no_shapes_and_keeps_its_numbers(tmp_path):
    path = folder(tmp_path / "in")
    put(path, "linear_hook_0-0.csv", "vpp_stage,name,step,sr", "0,layers.0.mlp.linear,0,3.5")
    done = import_msprobe(tmp_path / "in", tmp_path / "runs")
    run = vario.open_run(done.path)
    assert done.remarks == []
    assert run.targets("spectrum") == ["layers.0.mlp:sr"]  # nothing of a column that is not there
    assert run.series("layers.0.mlp:sr", "spectrum", "mean").values.tolist() == [3.5]
    assert vario.first_bad(run) is None


def test_what_was_imported_is_one_line(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", [0], names=("a",))
    done = import_msprobe(tmp_path / "in", tmp_path / "runs", "run")
    assert done.line == f"{tmp_path / 'runs/run'}  1 step, 1 row, 1 rank"
