"""The files of examples/deploy: what can be checked of them here, and the training that is stopped."""

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

import vario
from vario.cli import make_parser
from vario.cli.commands import load

FOLDER = Path(__file__).parents[1] / "examples" / "deploy"
TEXTS = {path.name: path.read_text(encoding="utf8") for path in FOLDER.iterdir() if path.is_file()}


def unit():
    # systemd allows a name more than once; this file has each once.
    found = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",))
    found.optionxform = str
    found.read_string(TEXTS["vario.service"])
    return found


def containers():
    for content in yaml.safe_load_all(TEXTS["kubernetes.yaml"]):
        template = content.get("spec", {}).get("template")
        yield from template["spec"]["containers"] if template else ()


def vario_commands():
    yield shlex.split(unit()["Service"]["ExecStart"])[1:]
    yield json.loads(re.search(r"^CMD (\[.*\])$", TEXTS["Containerfile"], re.MULTILINE)[1])[1:]
    yield from (container["args"][1:] for container in containers() if "args" in container)


@pytest.mark.parametrize("words", list(vario_commands()), ids=" ".join)
def test_each_command_of_vario_is_one(words):
    name, *rest = words
    arguments = make_parser(name, load(name)).parse_args(rest)
    assert arguments.port == 8765


def test_a_server_that_other_machines_reach_gets_its_token_from_outside():
    dashboard = next(container for container in containers() if container["name"] == "vario")
    assert [entry["name"] for entry in dashboard["env"]] == ["VARIO_TOKEN"]
    assert "value" not in dashboard["env"][0]
    assert "EnvironmentFile" in unit()["Service"]
    assert dashboard["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 8765}


def test_volumes_that_are_mounted_exist_and_the_dashboard_only_reads():
    for content in yaml.safe_load_all(TEXTS["kubernetes.yaml"]):
        template = content.get("spec", {}).get("template")
        if template is None:
            continue
        known = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= known
    dashboard = next(container for container in containers() if container["name"] == "vario")
    assert dashboard["volumeMounts"][0] == {"name": "runs", "mountPath": "/runs", "readOnly": True}


def test_the_script_for_slurm_is_one_for_bash_and_starts_what_there_is():
    text = TEXTS["train.sbatch"]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    options = re.findall(r"^#SBATCH (--[a-z-]+)", text, re.MULTILINE)
    assert {"--requeue", "--signal", "--open-mode"} <= set(options)
    started = re.search(r"srun python (\S+)", text)[1]
    assert (FOLDER.parents[1] / started).is_file()


SRUN = """#!/bin/sh
# srun and scontrol for one machine: one starts what it is told, the other notes what it was told.
case "$0" in *scontrol) echo "$@" > "$REQUEUED" ;; *) exec "$@" ;; esac
"""


def test_slurm_is_asked_to_queue_it_again_only_if_it_was_stopped(tmp_path):
    for name in ("srun", "scontrol", "python"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\nexit "$CODE"\n' if name == "python" else SRUN)
        path.chmod(0o755)
    note = tmp_path / "requeued"
    for code, words in ((0, ""), (1, ""), (143, "requeue 42\n")):
        environment = {
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "42",
            "CODE": str(code),
            "REQUEUED": str(note),
        }
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", str(FOLDER / "train.sbatch")], env={**os.environ, **environment, "PATH": path})
        assert done.returncode == code
        assert (note.read_text() if note.exists() else "") == words


@pytest.mark.slow
def test_a_training_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    command = [sys.executable, str(FOLDER / "preemptible.py"), "checkpoint.pt"]
    places = [tmp_path / "stopped", tmp_path / "whole"]
    environment = {**os.environ, "STEPS": "600", "OMP_NUM_THREADS": "1"}
    for place in places:
        place.mkdir()
    started = subprocess.Popen(command, cwd=places[0], env=environment)
    rank = places[0] / "vario_runs" / "checkpoint" / "rank0" / "rank.json"
    while started.poll() is None and not rank.exists():
        time.sleep(0.01)
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=120) == 143
    assert vario.open_run(places[0] / "vario_runs" / "checkpoint").state == "interrupted"
    for place in places:
        subprocess.run(command, cwd=place, env=environment, check=True, timeout=240)
    stopped, whole = (vario.open_run(place / "vario_runs" / "checkpoint") for place in places)
    losses = [run.series("loss", "scalar") for run in (stopped, whole)]
    assert losses[0].steps.tolist() == losses[1].steps.tolist() == list(range(600))
    np.testing.assert_array_equal(losses[0].values, losses[1].values)
    assert (stopped.state, len(stopped.sessions), len(whole.sessions)) == ("finished", 2, 1)
