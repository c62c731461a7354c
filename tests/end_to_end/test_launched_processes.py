"""Processes that a launcher starts together and that never make a process group."""

import os
import subprocess

import pytest

import vario
from starting import Process
from thorough import thorough

TRAIN = """
import torch, vario
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vario.watch(model, optimizer, directory="runs", every=1, quantities=["gradient"]):
    for step in range(3):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_")


def launch(folder, *environments):
    """Start a process with each of these environments, all at once."""
    (folder / "train.py").write_text(TRAIN)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    started = [
        Process(["train.py"], cwd=folder, env={**plain, **more}, stderr=subprocess.PIPE) for more in environments
    ]
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return vario.list_runs(folder / "runs")


def tasks_of_srun(**more):
    step = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    return [{**step, "SLURM_PROCID": str(task), **more} for task in range(2)]


@thorough
@pytest.mark.slow
def test_tasks_of_srun_that_are_to_meet_are_ranks_of_one_run(tmp_path):
    (run,) = launch(tmp_path, *tasks_of_srun(MASTER_ADDR="node-0", MASTER_PORT="29500"))
    assert (run.ranks, run.world_size, run.state) == ([0, 1], 2, "finished")


@thorough
@pytest.mark.slow
def test_tasks_of_a_sweep_have_a_run_each(tmp_path):
    runs = launch(tmp_path, *tasks_of_srun())
    assert [(run.ranks, run.world_size) for run in runs] == [([0], 1), ([0], 1)]


@pytest.mark.slow
def test_processes_that_are_told_their_rank_share_a_run(tmp_path):
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    (run,) = launch(tmp_path, {**shared, "RANK": "0"}, {**shared, "RANK": "1"})
    assert (run.ranks, run.world_size) == ([0, 1], 2)


LATE_GROUP = TRAIN.replace(
    "    for step",
    """    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.FileStore("meeting", 2), rank=TASK, world_size=2)
    for step""",
)


@thorough
@pytest.mark.slow
def test_a_process_group_that_comes_after_the_watching_is_said_to_be_late(tmp_path):
    (tmp_path / "runs").mkdir()
    plain = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    scripts = [LATE_GROUP.replace("TASK", str(task)) for task in range(2)]
    started = [Process(["-c", script], cwd=tmp_path, env=plain, stderr=subprocess.PIPE) for script in scripts]
    for task, process in enumerate(started):
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert errors.count("vario.watch was called before init_process_group") == 1
        assert f"this process is rank {task} of 2" in errors
