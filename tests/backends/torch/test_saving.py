"""Saving a whole model while it is watched, as scripts do that never heard of vario."""

import copy
import pickle
import pickletools
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import torch

import vario
from watching import rows, watch


def watched_model(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, vario.watch(model, optimizer, every=1, strict=True, sinks=["in_memory"])


def train_step(model, optimizer):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_watched_model_can_be_saved_whole_and_opened_where_vario_is_not_installed(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    train_step(model, optimizer)
    torch.save(model, tmp_path / "model.pt")
    expected = model(torch.ones(1, 4)).tolist()
    monitor.close()

    script = f"""
        import sys
        sys.modules["vario"] = None  # importing it fails
        import torch
        model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
        assert model(torch.ones(1, 4)).tolist() == {expected!r}
        print("opened")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "opened\n", done.stderr


def test_a_model_saved_while_watched_can_be_watched_again_when_loaded(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    with vario.watch(loaded, optimizer, every=1, strict=True, sinks=["in_memory"]) as second:
        train_step(loaded, optimizer)
    monitor.close()
    (record,) = second.sinks["in_memory"].records
    assert {frame.quantity for frame in record.frames} == {
        "gradient",
        "weight",
        "activation",
        "activation_gradient",
        "update",
    }
    assert monitor.sinks["in_memory"].records == []


class Custom(torch.nn.Module):
    """A class with a way of its own to be pickled, as DistributedDataParallel has one."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 2)
        self.lock = threading.Lock()

    def __getstate__(self):
        state = dict(vars(self))
        del state["lock"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.lock = threading.Lock()

    def forward(self, x):
        return self.inner(x)


MODELS = {
    "sequential": lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
    "with a pickling of its own": Custom,
    "recurrent": lambda: torch.nn.Sequential(torch.nn.LSTM(4, 8)),
    "attention": lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
}


@pytest.fixture(params=MODELS)
def watched(request):
    """A model under watch with everything that hooks modules, and its twin that nobody watches."""
    torch.manual_seed(0)
    model = MODELS[request.param]()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    everything = ["activation", "activation_gradient", "attention", "unit", "gradient_local", "weight"]
    with vario.watch(model, optimizer, every=1, quantities=everything, strict=True, sinks=["in_memory"]):
        yield model, twin


def words(model):
    """All that a pickle names: classes, functions, attributes and keys. Tensors are named by their place in memory."""
    found = (argument for _, argument, _ in pickletools.genops(pickle.dumps(model)))
    return [argument for argument in found if isinstance(argument, str) and not argument.isdigit()]


def test_a_watched_model_is_pickled_as_if_nobody_watched(watched):
    model, twin = watched
    assert words(model) == words(twin)


def test_a_copy_of_a_watched_model_holds_nothing_of_the_monitor(watched):
    model, twin = watched
    copied = copy.deepcopy(model)
    assert [sorted(vars(module)) for module in copied.modules()] == [sorted(vars(module)) for module in twin.modules()]
    for module in copied.modules():
        tables = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
        assert [len(getattr(module, table)) for table in tables] == [0, 0, 0, 0]
    assert all(parameter._backward_hooks is None for parameter in copied.parameters())


def test_users_hooks_stay_in_pickles_of_watched_models():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    handle = model[0].register_forward_hook(print_nothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with vario.watch(model, optimizer, every=1, strict=True, sinks=["in_memory"]):
        copied = pickle.loads(pickle.dumps(model))
        assert list(copied[0]._forward_hooks.values()) == [print_nothing]
        handle.remove()
        assert print_nothing not in model[0]._forward_hooks.values()
    assert len(model[0]._forward_hooks) == 0


def print_nothing(module, args, output):
    """A hook of a user."""


def test_a_script_reads_its_own_model_safely(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    train_step(model, optimizer)
    torch.save(model, tmp_path / "model.pt")
    monitor.close()
    kinds = [torch.nn.Sequential, torch.nn.Linear, torch.nn.ReLU]
    with torch.serialization.safe_globals(kinds):
        loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(loaded[0].weight, model[0].weight)


def test_pickling_is_as_it_was_once_nobody_watches(tmp_path):
    before = torch.nn.Module.__dict__.get("__getstate__"), Custom.__dict__["__getstate__"]
    model = Custom()
    with vario.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), sinks=["in_memory"]):
        assert Custom.__dict__["__getstate__"] is not before[1]
    assert (torch.nn.Module.__dict__.get("__getstate__"), Custom.__dict__["__getstate__"]) == before


def test_torchscript_and_exported_models_hold_nothing_of_the_monitor(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    train_step(model, optimizer)
    batch = torch.ones(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that TorchScript is deprecated
        scripted, traced = torch.jit.script(model), torch.jit.trace(model, batch)
        torch.jit.save(scripted, tmp_path / "scripted.pt")
        exported = [torch.export.export(args=(batch,), mod=model, strict=strict) for strict in (False, True)]
    monitor.close()
    assert b"vario" not in (tmp_path / "scripted.pt").read_bytes()
    assert torch.equal(scripted(batch), model(batch))
    operators = {node.kind() for node in traced.inlined_graph.nodes()}
    assert operators <= {"aten::linear", "aten::relu", "prim::GetAttr", "prim::Constant", "prim::CallMethod"}
    calls = [[str(node.target) for node in program.graph.nodes if node.op == "call_function"] for program in exported]
    assert calls == [["aten.linear.default", "aten.relu.default", "aten.linear.default"]] * 2


def test_hooks_hold_nothing_that_a_compiler_would_guard(watched):
    model, _ = watched
    hooks = {hook for module in model.modules() for hook in module._forward_hooks.values()}
    hooks |= {hook for module in model.modules() for hook in module._forward_pre_hooks.values()}
    assert hooks
    assert [hook for hook in hooks if hook.__closure__ is not None or hook.__defaults__ not in (None, (None,))] == []


def test_a_scaler_that_is_followed_can_be_copied_and_pickled(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(2):
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    copied = copy.deepcopy(scaler)
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 8.0
    assert "step" not in vars(copied)
    monitor.close()
    assert "step" not in vars(type(scaler)) or type(scaler).step.__qualname__ == "GradScaler.step"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_with_scripted_and_traced_parts_is_watched_around_them():
    torch.manual_seed(0)
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh()))
    model = torch.nn.Sequential(scripted, torch.jit.trace(torch.nn.Linear(8, 1), torch.randn(2, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
    assert {key[3] for key in rows(monitor, "gradient")} == {"0.0.weight", "0.0.bias", "1.weight", "1.bias"}
    assert {key[3] for key in rows(monitor, "activation")} >= {"root:input", "root:output"}
