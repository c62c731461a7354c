import logging
import os
import subprocess
import sys

import pytest
from made_csv import NAMES, OPS, TAG, expected, folder, interrupted, scalars, write

from vario.compat.msprobe import csv2tensorboard_by_step
from vario.compat.msprobe.csv_folders import TENSOR_KINDS, find_folders
from vario.compat.msprobe.to_tensorboard import Task, convert_to_tensorboard, plan, write_events
from vario.core.errors import ConfigError, RunError


def test_every_number_is_there_under_the_tag_msprobe_gives_it(tmp_path):
    for rank in (0, 7):
        path = folder(tmp_path / "in", rank)
        write(path, "grad_reduced", range(12), rank=rank)
        write(path, "actv", range(3), rank=rank, micros=[0, 1])
    csv2tensorboard_by_step(tmp_path / "in", TAG, TAG, output_dirpath=tmp_path / "out")
    for rank in (0, 7):
        assert scalars(tmp_path / f"out/rank{rank}/grad_reduced") == expected("grad_reduced", range(12), rank=rank)
        assert scalars(tmp_path / f"out/rank{rank}/actv") == expected("actv", range(3), rank=rank, micros=[0, 1])


def test_the_output_goes_beside_the_input_unless_said_otherwise(tmp_path):
    write(folder(tmp_path), "grad_reduced", [0])
    done = convert_to_tensorboard(tmp_path)
    assert done.output.parent == tmp_path
    assert done.output.name.endswith("-csv2tensorboard_by_step")
    assert (done.ranks, done.num_rows, done.remarks) == ([0], len(NAMES), [])
    assert scalars(done.output / "rank0" / "grad_reduced")


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(folder(tmp_path / "in"), "grad_reduced", [0])
    csv2tensorboard_by_step("~/in", output_dirpath="~/out")
    assert scalars(tmp_path / "out/rank0/grad_reduced") == expected("grad_reduced", [0])


def test_several_processes_write_what_one_writes(tmp_path):
    for rank in range(3):
        for kind in ("grad_reduced", "param_origin"):
            write(folder(tmp_path / "in", rank), kind, range(5), rank=rank)
    done = convert_to_tensorboard(tmp_path / "in", process_num=2, output_dirpath=tmp_path / "out")
    assert done.num_rows == 3 * 2 * 5 * len(NAMES)
    for rank in range(3):
        for kind in ("grad_reduced", "param_origin"):
            assert scalars(tmp_path / f"out/rank{rank}/{kind}") == expected(kind, range(5), rank=rank)


def test_a_script_without_a_main_guard_can_use_processes(tmp_path):
    for rank in range(2):
        write(folder(tmp_path / "in", rank), "grad_reduced", [0], rank=rank)
    script = tmp_path / "convert.py"
    script.write_text(
        "from vario.compat.msprobe import csv2tensorboard_by_step\n"
        f"csv2tensorboard_by_step({str(tmp_path / 'in')!r}, process_num=2, output_dirpath={str(tmp_path / 'out')!r})\n"
        "print('once')\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{tmp_path / 'out'}  8 rows, 2 ranks\nonce\n", "")
    assert scalars(tmp_path / "out/rank1/grad_reduced") == expected("grad_reduced", [0], rank=1)


@pytest.mark.parametrize("per_file", [1, 7, 100])
def test_a_run_longer_than_memory_comes_in_order(tmp_path, per_file):
    """Chunks of a few hundred bytes go through the same sorting on disk as gigabytes would."""
    write(folder(tmp_path / "in"), "grad_reduced", [*range(40, 60), *range(40)], per_file=per_file)
    (task,) = plan(find_folders(tmp_path / "in"), TENSOR_KINDS, tmp_path / "out")
    list(write_events(Task(task.files, task.folder, task.num_bytes, chunk_bytes=700)))
    assert scalars(task.folder) == expected("grad_reduced", range(60))


def test_only_the_kinds_asked_for_are_converted(tmp_path):
    path = folder(tmp_path / "in")
    for kind in ("actv", "actv_grad", "other"):
        write(path, kind, [0], micros=[0])
    csv2tensorboard_by_step(tmp_path / "in", data_type_list=["actv"], output_dirpath=tmp_path / "one")
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "all")
    assert sorted(found.name for found in (tmp_path / "one/rank0").iterdir()) == ["actv"]
    assert sorted(found.name for found in (tmp_path / "all/rank0").iterdir()) == ["actv", "actv_grad"]


def test_a_torn_last_line_loses_only_itself(tmp_path, caplog):
    path = folder(tmp_path / "in")
    write(path, "grad_reduced", range(3))
    torn = path / "grad_reduced_1-1.csv"
    torn.write_text(torn.read_text()[:-20])
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    found = scalars(tmp_path / "out/rank0/grad_reduced")
    whole = expected("grad_reduced", range(3))
    assert found == {
        tag: [point for point in points if not (tag.startswith("vp0:head") and point[0] == 1)]
        for tag, points in whole.items()
    }
    assert f"{torn}:5: the last line is incomplete and skipped: '0,head.weight,1," in caplog.text


def test_a_number_cut_short_at_the_end_of_a_file_is_not_taken_for_another(tmp_path, caplog):
    path = folder(tmp_path / "in")
    (path / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm\n0,a,0,1.5\n0,b,0,12")
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    assert scalars(tmp_path / "out/rank0/grad_reduced") == {"vp0:a/norm": [(0, 1.5)]}
    assert "grad_reduced_0-0.csv:3" in caplog.text


@pytest.mark.parametrize("damage", ["0,b,0,1.5,2.5", "0,b,zero,1.5", "0,b,0,1.5.2", "vpp_stage,name,step,norm", "0,b"])
def test_a_damaged_line_in_the_middle_loses_only_itself(tmp_path, caplog, damage):
    path = folder(tmp_path / "in")
    text = f"vpp_stage,name,step,norm\n0,a,0,1.5\n{damage}\n0,c,0,nan\n0,d,0,-inf\n0,e,0,1e-7\n"
    (path / "grad_reduced_0-0.csv").write_text(text)
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    found = scalars(tmp_path / "out/rank0/grad_reduced")
    assert list(found) == ["vp0:a/norm", "vp0:c/norm", "vp0:d/norm", "vp0:e/norm"]
    assert found["vp0:d/norm"] == [(0, float("-inf"))]
    assert found["vp0:e/norm"][0][1] == pytest.approx(1e-7)
    assert f"grad_reduced_0-0.csv:3: this line cannot be parsed and is skipped: '{damage}'" in caplog.text


def test_bytes_that_are_no_text_lose_only_their_line(tmp_path, caplog):
    path = folder(tmp_path / "in")
    (path / "grad_reduced_0-0.csv").write_bytes(b"vpp_stage,name,step,norm\n0,a,0,1.5\n0,\xff\xfe,0,1\n0,c,0,2.5\n")
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    assert list(scalars(tmp_path / "out/rank0/grad_reduced")) == ["vp0:a/norm", "vp0:c/norm"]
    assert "grad_reduced_0-0.csv:3: this line cannot be parsed" in caplog.text


def test_a_file_without_a_header_is_named_and_the_others_are_converted(tmp_path, caplog):
    path = folder(tmp_path / "in")
    write(path, "grad_reduced", range(3))
    (path / "grad_reduced_1-1.csv").write_text("")
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    assert scalars(tmp_path / "out/rank0/grad_reduced") == expected("grad_reduced", [0, 2])
    assert "grad_reduced_1-1.csv:1: no header" in caplog.text


def test_a_step_that_is_there_twice_keeps_the_later_rows(tmp_path, caplog):
    path = folder(tmp_path / "in")
    write(path, "grad_reduced", range(4), per_file=10)
    write(path, "grad_reduced", [2, 3], per_file=10, shift=100.0)
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    before, after = expected("grad_reduced", [0, 1]), expected("grad_reduced", [2, 3], shift=100.0)
    assert scalars(tmp_path / "out/rank0/grad_reduced") == {tag: before[tag] + after[tag] for tag in before}
    assert "rank0, grad_reduced: 8 rows of 2 steps (2 to 3) occur twice; the later ones are used" in caplog.text


def test_of_several_folders_of_a_rank_all_are_converted_and_the_later_one_counts(tmp_path, caplog):
    write(folder(tmp_path / "in", tag="Dec04_00-00-00"), "grad_reduced", range(2, 6), shift=100.0)
    write(folder(tmp_path / "in", tag="Dec03_23-59-59"), "grad_reduced", range(4), names=(*NAMES, "old.weight"))
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    before, after = expected("grad_reduced", [0, 1]), expected("grad_reduced", range(2, 6), shift=100.0)
    # What only the earlier one has is kept.
    wanted = {tag: before[tag] + after[tag] for tag in before} | expected("grad_reduced", range(4), ["old.weight"])
    assert scalars(tmp_path / "out/rank0/grad_reduced") == wanted
    assert [record.message for record in caplog.records] == [
        "rank 0 has 2 folders (Dec03_23-59-59-rank0-0a1b2c3d, Dec04_00-00-00-rank0-0a1b2c3d): read as one "
        "continued run; use --time-start and --time-end (time_start, time_end) to choose",
        "rank0, grad_reduced: folders share 2 steps (2 to 3); what later ones have replaces what earlier ones have "
        "(8 rows)",
    ]


def test_names_may_hold_anything(tmp_path):
    names = ("experts:0/weight", 'a "quoted", name', "层.0/x:1")
    write(folder(tmp_path / "in"), "grad_reduced", [0, 1], names=names)
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    assert scalars(tmp_path / "out/rank0/grad_reduced") == expected("grad_reduced", [0, 1], names=names)


def test_files_of_older_releases_have_fewer_columns(tmp_path):
    write(folder(tmp_path / "in", tag="Dec03_00-00-00"), "param", [0], ops=("norm",), forms=False)
    write(folder(tmp_path / "in", tag="Dec04_00-00-00"), "param", [0], ops=OPS, names=("new.weight",))
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    wanted = expected("param", [0], ops=("norm",)) | expected("param", [0], names=("new.weight",))
    assert scalars(tmp_path / "out/rank0/param") == wanted


def test_what_did_not_fit_into_one_file_goes_on_in_its_parts(tmp_path):
    path = folder(tmp_path / "in")
    (path / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm\n")
    (path / "grad_reduced_0-0_part_1.csv").write_text("0,a,0,1.5\n")
    (path / "grad_reduced_0-0_part_2.csv").write_text("0,b,0,2.5\n")
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=tmp_path / "out")
    assert scalars(tmp_path / "out/rank0/grad_reduced") == {"vp0:a/norm": [(0, 1.5)], "vp0:b/norm": [(0, 2.5)]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_type_list": ["grad_reducd"]}, "data_type_list: unknown 'grad_reducd'. Did you mean 'grad_reduced'?"),
        ({"data_type_list": ["other"]}, "Known: actv, actv_grad, exp_avg, exp_avg_sq, grad_reduced"),
        ({"data_type_list": "actv"}, "data_type_list: expected a list"),
        ({"process_num": 0}, "process_num: expected a whole number of at least 1, got 0"),
        ({"process_num": True}, "process_num: expected a whole number"),
        ({"time_start": "yesterday"}, "time_start: expected a time like Dec03_21-34-40"),
        ({"output_dirpath": "taken"}, "output_dirpath: 'taken' exists and is not empty"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    write(folder(tmp_path / "in"), "grad_reduced", [0])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError) as refused:
        csv2tensorboard_by_step(**{"monitor_path": "in", "output_dirpath": "out", **changes})
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert [found.name for found in (tmp_path / "taken").iterdir()] == ["thesis.tex"]


def test_a_failure_in_a_worker_is_raised_here(tmp_path):
    for rank in range(2):
        path = folder(tmp_path / "in", rank)
        write(path, "grad_reduced", [0])
    (tmp_path / "in" / path.name / "grad_reduced_1-1.csv").mkdir()
    with pytest.raises(RunError, match=r"out: not created: .*Is a directory: .*grad_reduced_1-1.csv"):
        csv2tensorboard_by_step(tmp_path / "in", process_num=2, output_dirpath=tmp_path / "out")
    assert [found.name for found in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_interrupted_conversion_leaves_nothing(tmp_path, processes, is_there):
    for rank in range(2):
        write(folder(tmp_path / "in", rank), "grad_reduced", range(5))
    # Nobody ever writes into it: whoever reads it waits.
    os.mkfifo(folder(tmp_path / "in") / "grad_reduced_5-5.csv")
    out = tmp_path / "some" / "out"
    if is_there:
        out.mkdir(parents=True)
    code = f"csv2tensorboard_by_step({str(tmp_path / 'in')!r}, process_num={processes}, output_dirpath={str(out)!r})"
    code = f"from vario.compat.msprobe import csv2tensorboard_by_step; {code}"
    said = interrupted(code, lambda: any(tmp_path.glob("some/**/*tfevents*")))
    # A codec that is interrupted says so behind the name.
    assert said.splitlines()[-1].split(":")[0] == "KeyboardInterrupt"
    assert "serve()" not in said  # workers have nothing to say about it
    assert list((tmp_path / "some").rglob("*")) == ([out] if is_there else [])
    assert (tmp_path / "some").exists() == is_there


def test_a_folder_that_is_there_and_empty_is_filled(tmp_path, monkeypatch):
    write(folder(tmp_path / "in"), "grad_reduced", [0])
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    csv2tensorboard_by_step(tmp_path / "in", output_dirpath=".")
    assert [found.name for found in (tmp_path / "out").iterdir()] == ["rank0"]
    assert scalars(tmp_path / "out/rank0/grad_reduced") == expected("grad_reduced", [0])


def test_kinds_that_are_there_but_not_converted_are_named_once(tmp_path):
    for rank in range(2):
        for kind in ("grad_reduced", "other", "attention_hook"):
            write(folder(tmp_path / "in", rank), kind, [0, 1])
    done = convert_to_tensorboard(tmp_path / "in", output_dirpath=tmp_path / "out")
    assert done.remarks == ["not converted: the files of attention_hook, other; `vario import` reads them"]
    asked = convert_to_tensorboard(tmp_path / "in", data_type_list=["grad_reduced"], output_dirpath=tmp_path / "one")
    assert asked.remarks == []


def test_remarks_of_workers_are_logged_here(tmp_path, caplog):
    for rank in range(2):
        path = folder(tmp_path / "in", rank)
        write(path, "grad_reduced", [0, 1])
        (path / "grad_reduced_1-1.csv").write_text("vpp_stage,name,step,norm\n0,a,1,1")
    with caplog.at_level(logging.WARNING, "vario"):
        done = convert_to_tensorboard(tmp_path / "in", process_num=2, output_dirpath=tmp_path / "out")
    assert len(done.remarks) == 2
    assert [record.message for record in caplog.records] == done.remarks


def test_nothing_is_made_of_nothing(tmp_path):
    path = folder(tmp_path / "in")
    with pytest.raises(ConfigError, match=f"'{path}' has no file .* of these types: actv, .*param$"):
        csv2tensorboard_by_step(tmp_path / "in")
    write(path, "other", [0])
    folder(tmp_path / "in", rank=1)
    with pytest.raises(ConfigError, match=f"'{path}' and 1 further folder have no file .*; there are other$"):
        csv2tensorboard_by_step(tmp_path / "in")
    assert len(list((tmp_path / "in").iterdir())) == 2
