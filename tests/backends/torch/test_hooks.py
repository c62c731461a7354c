"""Detaching leaves the model, the optimizer, the scaler and torch itself exactly as they were found."""

import pickle
import threading

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from models import Convolutional, Language, Perceptron, batch, ids, language_loss
from vario.backends.torch.loop import hooks, operators
from vario.backends.torch.loop import module_hooks as our_module_hooks
from watching import watch

MODULE_HOOKS = [
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
]
OPTIMIZER_HOOKS = [
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
]
GLOBAL_HOOKS = [name for name in vars(module_hooks) if name.startswith("_global_") and name.endswith("hooks")]


def everything_attached(model, optimizer=None, scaler=None):
    """All places where a hook can hang, by name."""
    found = {}
    for name, module in model.named_modules():
        found[f"{name}.__dict__"] = sorted(key for key in vars(module))
        found.update({f"{name}.{kind}": dict(getattr(module, kind)) for kind in MODULE_HOOKS})
    for name, parameter in model.named_parameters():
        found[f"{name} tensor hooks"] = dict(parameter._backward_hooks or {})
        found[f"{name} accumulation hooks"] = dict(parameter._post_accumulate_grad_hooks or {})
    if optimizer is not None:
        found["optimizer.__dict__"] = sorted(vars(optimizer))
        found.update({kind: dict(getattr(optimizer, kind)) for kind in OPTIMIZER_HOOKS})
        found["optimizer step"] = optimizer.step.__func__
    if scaler is not None:
        found["scaler"] = sorted(vars(scaler))
        found["scaler methods"] = type(scaler).step, type(scaler).scale
    found.update({kind: dict(getattr(module_hooks, kind)) for kind in GLOBAL_HOOKS})
    found["global pre"] = dict(optimizer_hooks._global_optimizer_pre_hooks)
    found["global post"] = dict(optimizer_hooks._global_optimizer_post_hooks)
    found["dynamo"] = torch._dynamo.config.skip_nnmodule_hook_guards
    found["slots"] = (dict(operators._observers), dict(operators._beginners))
    found["methods"] = dict(hooks._methods)
    found["module calls"] = dict(our_module_hooks._calls)
    found["getstate"] = vars(torch.nn.Module).get("__getstate__")
    return found


def test_the_comparison_sees_what_is_attached():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = everything_attached(model, optimizer, scaler)
    with watch(model, optimizer, scaler=scaler):
        during = everything_attached(model, optimizer, scaler)
    changed = {key for key in during if during[key] != before[key]}
    kinds = {"up._forward_hooks", "up._forward_pre_hooks", "up.weight tensor hooks", "up.weight accumulation hooks"}
    assert changed >= kinds | {"global pre", "global post", "scaler methods", "dynamo", "slots", "methods", "getstate"}
    assert everything_attached(model, optimizer, scaler) == before


STOPS = ["at once", "after forward", "after backward", "after clipping", "after the step", "after evaluation", "twice"]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("make", [Perceptron, Convolutional, Language])
def test_closing_at_any_moment_leaves_nothing_behind(make, stop):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    own = model.register_forward_hook(lambda *_: None)
    x = batch(0).requires_grad_() if make is Perceptron else batch(0, (2, 1, 6, 6))
    before = everything_attached(model, optimizer, scaler)
    monitor = watch(model, optimizer)
    if stop != "at once":
        loss = language_loss(model, ids(0)) if make is Language else model(x).square().mean()
        if stop != "after forward":
            scaler.scale(loss).backward()
        if stop == "after clipping":
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if stop in ("after the step", "after evaluation", "twice"):
            scaler.step(optimizer)
        if stop == "after evaluation":
            with torch.no_grad():
                language_loss(model, ids(0)) if make is Language else model(x)
    monitor.close()
    if stop == "twice":
        monitor.close()
    assert everything_attached(model, optimizer, scaler) == before
    assert not x._backward_hooks
    own.remove()
    if stop == "after forward":
        loss.backward()  # hooks on tensors of that pass still fire, and find nobody
    assert not any(thread.name == "vario-writer" for thread in threading.enumerate())


def test_two_monitors_closed_in_the_order_they_were_opened_leave_nothing_behind():
    models = [Perceptron(), Perceptron()]
    before = [everything_attached(model) for model in models]
    first, second = (watch(model) for model in models)
    first.close()
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    second.close()
    assert [everything_attached(model) for model in models] == before


def test_a_watch_that_is_refused_leaves_nothing_behind(tmp_path):
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    before = everything_attached(model, optimizer, scaler)
    for wrong in ({"targets": ["upp"]}, {"directory": str(tmp_path), "name": "taken", "sinks": ["store"]}):
        with pytest.raises(Exception, match=r"matches nothing|not part of a run"):
            watch(model, optimizer, scaler=scaler, **wrong)
        assert everything_attached(model, optimizer, scaler) == before
    watch(model, optimizer, scaler=scaler).close()


def test_a_hook_that_comes_while_it_is_watched_is_that_of_one_parameter():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = everything_attached(model, optimizer)
    seen = []
    with watch(model, optimizer, sinks=["in_memory"]) as monitor:
        for _ in range(3):
            handle = model.up.weight.register_post_accumulate_grad_hook(seen.append)
            model(batch(0)).square().mean().backward()
            assert [id(parameter) for parameter in seen] == [id(model.up.weight)]
            handle.remove()
            seen.clear()
            optimizer.step()
            optimizer.zero_grad()
        stays = model.up.weight.register_post_accumulate_grad_hook(seen.append)
        monitor.wait()
        records = monitor.sinks["in_memory"].records
    frames = [frame for record in records for frame in record.frames if frame.quantity == "gradient"]
    assert [sorted(frame.targets) for frame in frames] == [sorted(dict(model.named_parameters()))] * 3
    model(batch(0)).square().mean().backward()
    assert len(seen) == 1
    stays.remove()
    assert everything_attached(model, optimizer) == before


def test_hooks_of_the_user_stay_in_their_order():
    model = nn.Linear(4, 4)
    order = []
    model.register_forward_hook(lambda *_: order.append("first"))
    monitor = watch(model)
    model.register_forward_hook(lambda *_: order.append("second"))
    model(batch(0))
    monitor.close()
    model(batch(0))
    assert order == ["first", "second", "first", "second"]


def test_an_output_a_user_hook_replaced_is_the_one_that_flows_on():
    model = nn.Linear(4, 4)
    model.register_forward_hook(lambda module, args, output: output * 0 + 7)
    with watch(model):
        assert torch.equal(model(batch(0)), torch.full((6, 4), 7.0))


def test_the_state_dict_of_a_watched_model_is_that_of_the_model():
    model = Perceptron()
    keys = list(model.state_dict())
    with watch(model):
        assert list(model.state_dict()) == keys
        pickle.loads(pickle.dumps(model.state_dict()))


def test_a_watched_model_can_be_pickled_whole():
    model = Perceptron(dropout=0.0)
    with watch(model) as monitor:
        copied = pickle.loads(pickle.dumps(model))
        assert torch.equal(copied(batch(0)), model(batch(0)))
        assert monitor.step_number == 0


def test_a_method_that_is_followed_tells_of_its_call_and_of_what_it_returned():
    class Counter:
        def add(self, number):
            told.append("add")
            return number + 1

    counter, told = Counter(), []
    first = hooks.around(
        counter,
        "add",
        before=lambda number: told.append(f"before {number}"),
        returned=lambda result: told.append(f"returned {result}"),
    )
    second = hooks.around(counter, "add", lambda number: told.append(f"after {number}"))
    assert counter.add(1) == 2
    assert told == ["before 1", "add", "returned 2", "after 1"]
    first()
    assert counter.add(2) == 3
    second()
    assert told[4:] == ["add", "after 2"]
    assert not vars(counter)


def test_a_hook_of_ours_has_the_same_key_in_every_module():
    """Compilers guard the keys: with one per module, layers compiled one by one would each need their own graph."""
    torch.manual_seed(0)
    model = Language()
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1)):
        found = {(*layer.up._forward_pre_hooks, *layer.up._forward_hooks) for layer in model.layers}
    assert len(found) == 1
    assert len(found.pop()) == 2
    assert not model.layers[0].up._forward_hooks_with_kwargs
