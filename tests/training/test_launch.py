"""`vario run`: unchanged scripts of every kind, started as users start them."""

import textwrap

import pytest

import vario
from starting import run_afresh, run_warm
from thorough import thorough
from vario.backends.torch.releases import CAN_HOOK_IN_GRAPHS

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


def started_afresh(folder, *command):
    """What matters before torch is imported needs a process that has not."""
    return run_afresh(["-m", "vario", "run", *command], cwd=folder)


def started(folder, *command, launcher=()):
    return run_warm([*launcher, "-m", "vario", "run", *command], cwd=folder)


def write(folder, text):
    (folder / "train.py").write_text(textwrap.dedent(text))


def only_run(folder):
    (found,) = vario.list_runs(folder / "vario_runs")
    return found


def test_a_plain_script_prints_what_it_prints_unwatched(tmp_path):
    write(tmp_path, PLAIN)
    plain = run_warm(["train.py"], cwd=tmp_path)
    watched = started_afresh(tmp_path, "--every", "1", "train.py")
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
    if CAN_HOOK_IN_GRAPHS:
        assert {"0:output", "1:output"} <= set(run.targets("activation_gradient"))
    else:
        assert "activation_gradient inside compiled graphs needs torch 2.13" in watched.stderr


def test_a_script_ends_that_leaves_pools_open_and_their_work_is_done(tmp_path):
    pools = """
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    processes, threads = ProcessPoolExecutor(2), ThreadPoolExecutor(2)
    processes.submit(print, "late in a process", flush=True)
    threads.submit(print, "late in a thread", flush=True)
    """
    write(tmp_path, textwrap.dedent(pools) + PLAIN)
    watched = started_afresh(tmp_path, "train.py")
    assert watched.returncode == 0, watched.stderr
    # A thread may print in the middle of another's line.
    assert watched.stdout.count("late in a process") == watched.stdout.count("late in a thread") == 1
    assert only_run(tmp_path).state == "finished"


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
    watched = started_afresh(tmp_path, "-m", "package.quiet", "--flag")
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
    # A new optimizer says that a new model may come: each is watched from its first step on.
    assert [len(run.steps("gradient")) for run in runs.values()] == [4, 4, 4]
    assert [len(run.steps("activation")) for run in runs.values()] == [4, 4, 4]
    assert all(run.state == "finished" for run in runs.values())


def test_a_module_that_does_not_exist_is_one_line(tmp_path):
    done = started_afresh(tmp_path, "-m", "no_such.module")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "vario: run: there is no module 'no_such.module'. To run a script, omit -m: vario run no_such.module"
    ]


SMALL = """
import importlib.util, sys
{before}
import torch
torch.manual_seed(0)
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 1))
    def forward(self, x):
        return x @ self.weight
model = Plain()
{setup}
for step in range(6):
    batch = torch.randn(8, 4)
    {step}
    print(repr(loss.item()))
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
UPDATE = "optimizer.zero_grad(); loss.backward(); optimizer.step()"
BY_HAND = """loss.backward()
    with torch.no_grad():
        model.weight -= 0.1 * model.weight.grad
        model.weight.grad = None"""
UNUSUAL = {
    "torch is looked up before it is imported": (
        "importlib.util.find_spec('torch'); importlib.util.find_spec('torch')",
        OPTIMIZER,
        f"loss = model(batch).square().mean(); {UPDATE}",
        range(6),
    ),
    "only forward is called": ("", OPTIMIZER, f"loss = model.forward(batch).square().mean(); {UPDATE}", range(6)),
    "a function uses the parameters": (
        "",
        OPTIMIZER,
        f"loss = (batch @ model.weight).square().mean(); {UPDATE}",
        range(6),
    ),
    "functional_call": (
        "",
        OPTIMIZER,
        "weights = {'weight': model.weight * 1.0}\n"
        f"    loss = torch.func.functional_call(model, weights, (batch,)).square().mean(); {UPDATE}",
        range(6),
    ),
    "tensors without a module": (
        "",
        "weight = torch.randn(4, 1, requires_grad=True); optimizer = torch.optim.SGD([weight], lr=0.1)",
        f"loss = (batch @ weight).square().mean(); {UPDATE}",
        range(6),
    ),
    "an optimizer made after a first forward": (
        "",
        "model(torch.ones(1, 4)).sum().backward(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        f"loss = model(batch).square().mean(); {UPDATE}",
        range(6),
    ),
    "lazy layers": (
        "",
        "model = torch.nn.Sequential(torch.nn.LazyLinear(1))\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        f"loss = model(batch).square().mean(); {UPDATE}",
        range(6),
    ),
    # Whether weights change shows in the second forward: of the first step only the loss is known.
    "updates by hand": ("", "", f"loss = model(batch).square().mean(); {BY_HAND}", range(1, 6)),
    "updates by hand, past the version counter": (
        "",
        "",
        "model.zero_grad(); loss = model(batch).square().mean(); loss.backward()\n"
        "    model.weight.data.sub_(0.1 * model.weight.grad)",
        range(1, 6),
    ),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_scripts_that_train_in_unusual_ways_are_seen(tmp_path, kind):
    before, setup, step, steps = UNUSUAL[kind]
    write(tmp_path, SMALL.format(before=before, setup=setup, step=step))
    plain = run_warm(["train.py"], cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    printed = plain.stdout
    watched = (started_afresh if before else started)(tmp_path, "--every", "1", "train.py")
    assert (watched.returncode, watched.stdout) == (0, printed), watched.stderr
    run = only_run(tmp_path)
    assert run.steps().tolist() == list(range(6))
    assert run.series("loss_backward", "scalar").values.tolist() == [float(line) for line in printed.split()]
    assert run.steps("gradient").tolist() == list(steps)
    assert run.steps("weight").tolist() == list(steps)
    (target,) = {name for name in run.targets("gradient") if name.endswith("weight")}
    norms = run.series(target, "weight", "norm").values
    assert len(set(norms.tolist())) == len(norms)


WHY = {
    "print('no torch')": "never imported mindspore or torch",
    "import torch; torch.nn.Linear(2, 2)": "no module with parameters was called with gradients enabled",
    "import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))": "no gradient reached their parameters",
    "import torch; model = torch.nn.Linear(2, 2)\nfor _ in range(3): model(torch.ones(1, 2)).sum().backward()": (
        "no weight changed between calls"
    ),
}


@pytest.mark.parametrize("script", WHY)
def test_a_script_in_which_nothing_trained_says_what_was_missing(tmp_path, script):
    write(tmp_path, script)
    watched = (started_afresh if "torch" in WHY[script] else started)(tmp_path, "train.py")
    told = watched.stderr
    assert watched.returncode == 0, told
    assert WHY[script] in told
    assert told.count("nothing was recorded") == 1
    assert not list(tmp_path.rglob("vario_runs"))


CHILDREN = """
import torch, torch.multiprocessing as multiprocessing
def train(nth, model):
    torch.manual_seed(nth)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    if nth == 2:
        raise RuntimeError("the second worker fails")
if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1).share_memory()
    if {parent_trains}:
        train(0, model)
    context = multiprocessing.get_context({method!r})
    workers = [context.Process(target=train, args=(nth, model)) for nth in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize(
    ("method", "parent_trains"), [("spawn", False), pytest.param("fork", False, marks=thorough), ("fork", True)]
)
def test_processes_that_a_script_starts_are_watched_each(tmp_path, method, parent_trains):
    write(tmp_path, CHILDREN.format(method=method, parent_trains=parent_trains))
    watched = started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout == "[0, 1]\n"
    assert "nothing was recorded" not in watched.stderr
    runs = vario.list_runs(tmp_path / "vario_runs")
    assert sorted(run.state for run in runs) == ["crashed", "finished", *["finished"] * parent_trains]
    assert [run.steps("gradient").tolist() for run in runs] == [[0, 1, 2, 3]] * len(runs)
    (crashed,) = [run for run in runs if run.state == "crashed"]
    assert "the second worker fails" in crashed.error


def test_models_that_turn_out_to_train_in_turns_are_watched_together(tmp_path):
    write(
        tmp_path,
        """
        import torch
        first, second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        def train(model, optimizer):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        one = torch.optim.SGD(first.parameters(), lr=0.1)
        for step in range(3):
            train(first, one)
        two = torch.optim.SGD(second.parameters(), lr=0.1)
        for step in range(5):
            train(second, two)
            train(first, one)
        """,
    )
    watched = started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == 0, watched.stderr
    first, _, together = sorted(vario.list_runs(tmp_path / "vario_runs"), key=lambda run: run.started)
    assert len(first.targets("gradient")) == 2
    assert len(together.targets("gradient")) == 4
    assert len(together.steps()) >= 4


def test_a_second_optimizer_of_the_same_model_goes_on_with_its_run(tmp_path):
    write(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(4, 1)
        batch = torch.randn(8, 4)
        adam = torch.optim.Adam(model.parameters())
        for step in range(3):
            adam.zero_grad()
            model(batch).square().mean().backward()
            adam.step()
        lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
        def closure():
            lbfgs.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss
        for step in range(4):
            lbfgs.step(closure)
        """,
    )
    watched = started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == 0, watched.stderr
    assert only_run(tmp_path).steps("weight").tolist() == list(range(7))


def test_a_model_that_cannot_be_watched_trains_all_the_same(tmp_path):
    write(tmp_path, PLAIN.replace("for step in", "model[0].weight.layout_of_yesterday = 1\nfor step in"))
    # A part of vario that is missing stands for anything that may go wrong while watching begins.
    broken = "import sys\nsys.modules['vario.backends.torch.optimizer.update_rows'] = None\n"
    write(tmp_path, broken + PLAIN)
    plain = run_warm(["train.py"], cwd=tmp_path)
    watched = started_afresh(tmp_path, "train.py")
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout == plain.stdout
    assert "trains without vario" in watched.stderr


@pytest.mark.parametrize("grows", [False, True])
def test_an_optimizer_for_the_next_stage_of_a_model_goes_on_with_its_run(tmp_path, grows):
    layer = "        model.insert(2, torch.nn.Linear(8, 8))\n" if grows else ""
    stage = "    if step == 1:\n" + layer + "        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n"
    write(tmp_path, PLAIN + stage)
    plain, watched = run_warm(["train.py"], cwd=tmp_path), started(tmp_path, "--every", "1", "train.py")
    assert watched.returncode == plain.returncode == 0, watched.stderr
    assert watched.stdout == plain.stdout
    assert only_run(tmp_path).steps().tolist() == [0, 1, 2, 3]
