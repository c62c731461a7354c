"""`vario run`: unchanged scripts of every kind, started as users start them."""

import os
import subprocess
import sys
import textwrap

import pytest

import vario

pytestmark = pytest.mark.slow

PLAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(6, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""


def started(folder, *command, launcher=()):
    words = [sys.executable, *launcher, "-m", "vario", "run", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


def write(folder, text):
    (folder / "train.py").write_text(textwrap.dedent(text))


def only_run(folder):
    (found,) = vario.list_runs(folder / "vario_runs")
    return found


def test_a_plain_script_prints_what_it_prints_unwatched(tmp_path):
    write(tmp_path, PLAIN)
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
    watched = started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout == plain.stdout
    run = only_run(tmp_path)
    assert run.state == "finished"
    assert run.steps().tolist() == [0, 1, 2, 3]
    assert run.targets("gradient") != []
    assert run.frame(0, "activation").column("target").to_pylist()[0] == "root:input"
    assert set(run.targets("weight")) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_compiled_script_is_watched(tmp_path):
    compiled = "model = torch.compile(model, backend='aot_eager', fullgraph=True)\nfor step in"
    write(tmp_path, PLAIN.replace("for step in", compiled))
    watched = started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == 0, watched.stderr
    assert "Warning" not in watched.stderr
    run = only_run(tmp_path)
    assert run.steps("activation").tolist() == [0, 1, 2, 3]
    assert {"0:output", "1:output", "2:output"} <= set(run.targets("activation"))
    assert {"0:output", "1:output"} <= set(run.targets("activation_gradient"))


def test_both_models_of_a_gan_are_found(tmp_path):
    write(
        tmp_path,
        """
        import torch
        class Generator(torch.nn.Linear): pass
        class Critic(torch.nn.Linear): pass
        generator, critic = Generator(4, 4), Critic(4, 1)
        g = torch.optim.Adam(generator.parameters())
        c = torch.optim.Adam(critic.parameters())
        for step in range(4):
            c.zero_grad()
            critic(generator(torch.randn(6, 4)).detach()).mean().backward()
            c.step()
            g.zero_grad()
            critic(generator(torch.randn(6, 4))).mean().backward()
            g.step()
        """,
    )
    watched = started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == 0, watched.stderr
    assert set(only_run(tmp_path).targets("weight")) == {
        "generator.weight",
        "generator.bias",
        "critic.weight",
        "critic.bias",
    }


def test_a_script_that_crashes_is_recorded_as_crashed_and_its_traceback_shown(tmp_path):
    write(tmp_path, PLAIN + "raise RuntimeError('loss is gone')\n")
    watched = started(tmp_path, "train.py")
    assert watched.returncode == 1
    assert "RuntimeError: loss is gone" in watched.stderr
    run = only_run(tmp_path)
    assert (run.state, run.error) == ("crashed", "RuntimeError: loss is gone")
    assert run.steps().tolist() == [0, 1, 2, 3]


def test_every_rank_of_torchrun_is_watched(tmp_path):
    write(
        tmp_path,
        """
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    watched = started(tmp_path, "train.py", launcher=torchrun)
    assert watched.returncode == 0, watched.stderr
    run = only_run(tmp_path)
    assert run.ranks == [0, 1]
    assert run.targets("gradient", rank=1) == run.targets("gradient", rank=0) != []
    norms = [run.series("weight", "gradient", "norm", rank=rank).values.tolist() for rank in (0, 1)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_a_module_without_training_says_that_nothing_was_recorded(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "quiet.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    watched = started(tmp_path, "-m", "package.quiet", "--flag")
    assert watched.stdout == "__main__ ['--flag']\n"
    assert "nothing was recorded" in watched.stderr
    assert not (tmp_path / "vario_runs").exists()


def test_a_refusal_is_told_once_and_not_as_a_training_without_steps(tmp_path):
    write(tmp_path, PLAIN)
    watched = started(tmp_path, "--targets", "nothing.here", "train.py")
    assert watched.returncode == 2
    assert watched.stderr.count("vario:") == 1
    assert "'nothing.here' matches nothing" in watched.stderr


def test_a_script_that_watches_by_itself_keeps_its_own_monitor(tmp_path):
    own = "import vario\nmonitor = vario.watch(model, optimizer, name='own')\nfor step in"
    write(tmp_path, PLAIN.replace("for step in", own))
    watched = started(tmp_path, "--name", "launched", "train.py")
    assert watched.returncode == 0, watched.stderr
    assert only_run(tmp_path).name == "own"


def test_models_trained_one_after_the_other_get_a_run_each(tmp_path):
    folds = PLAIN.replace(
        "import torch\n", "import torch\nfor fold in range(3):\n    exec(open('fold.py').read())\n", 1
    )
    (tmp_path / "fold.py").write_text(PLAIN)
    write(tmp_path, folds.partition("torch.manual_seed")[0])
    watched = started(tmp_path, "--every", "1", "--name", "folds", "train.py")
    assert watched.returncode == 0, watched.stderr
    runs = {run.name: run for run in vario.list_runs(tmp_path / "vario_runs")}
    assert set(runs) == {"folds", "folds-2", "folds-3"}
    # The update of a model nobody knew says that it is there; watching begins with the step after it.
    assert [len(run.steps("gradient")) for run in runs.values()] == [4, 3, 3]
    assert all(run.state == "finished" for run in runs.values())


def test_a_module_that_does_not_exist_is_one_line(tmp_path):
    done = started(tmp_path, "-m", "no_such.module")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "vario: run: there is no module 'no_such.module'. A script is run without -m: vario run no_such.module"
    ]
