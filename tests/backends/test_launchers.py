"""Which process is a rank of what, by the environment its launcher gave it."""

import sys

import pytest

from vario.backends.launchers import rank_and_size

MEETING = {"MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
}
BATCH_SCRIPT = {"SLURM_JOB_ID": "71", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
SHELL_OF_SALLOC = {**SRUN, "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        # A process group is what counts in a training; before there is one, the launcher's word.
        ({**SRUN, **MEETING, "RANK": "5", "WORLD_SIZE": "16"}, (5, 16)),
        ({**SRUN, **MEETING}, (3, 8)),
        ({**{key: value for key, value in SRUN.items() if key != "SLURM_STEP_NUM_TASKS"}, **MEETING}, (3, 8)),
        # A step of its own inside a larger allocation.
        ({**SRUN, **MEETING, "SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "4"}, (3, 4)),
        ({**MPIRUN, **MEETING}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", **MEETING}, (1, 4)),
        # A sweep: independent processes, also where srun speaks PMI.
        (SRUN, (0, 1)),
        ({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "8"}, (0, 1)),
        (MPIRUN, (0, 1)),
        # Python called directly, in the script or the shell of an allocation, which export where ranks meet.
        ({**BATCH_SCRIPT, **MEETING}, (0, 1)),
        ({**SHELL_OF_SALLOC, **MEETING}, (0, 1)),
        # `accelerate launch --cpu --num_processes 2` starts one process, whatever it says.
        ({"ACCELERATE_USE_CPU": "True", **MEETING}, (0, 1)),
        ({"RANK": "4", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "first", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "1"}, (0, 1)),
    ],
)
def test_the_environment_tells_ranks_from_processes_that_only_started_together(environment, expected):
    assert rank_and_size(environment) == expected


def test_a_prompt_is_no_rank_of_what_its_variables_are_left_over_from(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert rank_and_size({"RANK": "1", "WORLD_SIZE": "2"}) == (0, 1)
