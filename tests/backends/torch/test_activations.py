"""Inputs and outputs of modules and their gradients in eager code, against hooks of the test's own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from models import Convolutional, Language, Nested, Perceptron, Recurrent, batch, ids, language_loss
from vario.core.records import COUNT, MIN
from watching import check, check_same, records, rows, summary, watch

QUANTITIES = ["activation", "activation_gradient"]


def one_step(model, loss_of, **options):
    """Train one step under watch and hand back the rows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES, **options)
    loss_of(model).backward()
    optimizer.step()
    monitor.close()
    return rows(monitor)


def own_tensors(model, loss_of):
    """Outputs and their gradients by the test's own means: clones and retain_grad in an unwatched twin."""
    twin = copy.deepcopy(model)
    values, kept = {}, {}

    def keep(name):
        def hook(module, args, output):
            if isinstance(output, torch.Tensor):
                values[name] = output.detach().clone()
                output.retain_grad()
                kept[name] = output

        return hook

    for name, module in twin.named_modules():
        module.register_forward_hook(keep(name or "root"))
    loss_of(twin).backward()
    return values, {name: tensor.grad for name, tensor in kept.items() if tensor.grad is not None}


def perceptron_loss(model):
    return model(batch(0)).square().mean()


def test_outputs_and_their_gradients_are_those_that_flow_through_the_model():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    values, gradients = own_tensors(model, perceptron_loss)
    recorded = one_step(model, perceptron_loss)
    assert set(values) == {"root", "up", "act", "dropout", "down"}
    for name, value in values.items():
        check(recorded[0, "activation", 0, f"{name}:output"], value)
        check(recorded[0, "activation_gradient", 0, f"{name}:output"], gradients[name])
    check(recorded[0, "activation", 0, "root:input"], batch(0))
    check(recorded[0, "activation_gradient", 0, "down:input"], gradients["dropout"])
    assert (0, "activation_gradient", 0, "root:input") not in recorded
    assert len(recorded) == 10 + 8


def test_an_in_place_activation_shows_its_input_before_and_its_output_after():
    torch.manual_seed(0)
    model = Convolutional()
    images = batch(0, (2, 1, 6, 6))
    twin = copy.deepcopy(model)
    before = twin.norm(twin.conv(images)).detach()
    recorded = one_step(model, lambda network: network(images).square().mean())
    assert before.min() < 0
    check(recorded[0, "activation", 0, "act:input"], before)
    check(recorded[0, "activation", 0, "norm:output"], before)
    check(recorded[0, "activation", 0, "act:output"], before.relu())
    assert recorded[0, "activation", 0, "act:output"][MIN] == 0


def test_gradients_around_an_in_place_activation_are_told_apart():
    torch.manual_seed(0)
    model = Convolutional()
    copied = copy.deepcopy(model)
    copied.act = nn.ReLU()
    images = batch(0, (2, 1, 6, 6))
    _, gradients = own_tensors(copied, lambda network: network(images).square().mean())
    recorded = one_step(model, lambda network: network(images).square().mean())
    check(recorded[0, "activation_gradient", 0, "norm:output"], gradients["norm"])
    check(recorded[0, "activation_gradient", 0, "act:input"], gradients["norm"])
    check(recorded[0, "activation_gradient", 0, "act:output"], gradients["act"])


def test_tensors_are_found_in_tuples_dicts_dataclasses_and_keywords():
    model = Nested()
    left, right, scale = batch(0), batch(1), torch.tensor([2.0])
    before = model.first(left).detach()

    def loss_of(network):
        answer = network((left, right), options={"scale": scale})
        return answer.score.square().mean()

    recorded = one_step(model, loss_of)
    names = {key[3] for key in recorded if key[1] == "activation" and key[3].startswith("root")}
    inputs = {"root:input.0", "root:input.1", "root:input.options.scale"}
    assert names == inputs | {"root:output.score", "root:output.parts.0", "root:output.parts.1.b.0"}
    check(recorded[0, "activation", 0, "root:input.options.scale"], scale)
    check(recorded[0, "activation", 0, "root:output.parts.0"], before)


def test_a_recurrent_layers_nested_outputs_have_names():
    model = Recurrent()
    recorded = one_step(model, lambda network: network(batch(0, (2, 3, 4))).square().mean())
    names = {key[3] for key in recorded if key[1] == "activation" and key[3].startswith("lstm:")}
    assert names == {"lstm:input", "lstm:output.0", "lstm:output.1.0", "lstm:output.1.1"}


def test_a_transformers_model_output_is_opened():
    import transformers  # takes seconds, so only here

    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(0, 32, (2, 6))

    def loss_of(network):
        return network(input_ids=tokens, labels=tokens, use_cache=False).loss

    twin = copy.deepcopy(model)
    output = twin(input_ids=tokens, labels=tokens, use_cache=False)
    output.logits.retain_grad()
    output.loss.backward()
    recorded = one_step(model, loss_of)
    check(recorded[0, "activation", 0, "root:output.logits"], output.logits)
    check(recorded[0, "activation", 0, "root:output.loss"], output.loss)
    check(recorded[0, "activation", 0, "root:input.input_ids"], tokens)
    check(recorded[0, "activation_gradient", 0, "lm_head:output"], output.logits.grad, rtol=1e-4)
    check(recorded[0, "activation_gradient", 0, "root:output.loss"], torch.tensor(1.0))


def test_a_module_called_several_times_has_all_its_calls_in_one_row():
    layer = nn.Linear(4, 4)
    model = nn.ModuleDict({"layer": layer})
    x, seen = batch(0), []

    class Looped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            for _ in range(3):
                x = self.inner["layer"](x).tanh()
                seen.append(x.detach().atanh())
            return x

    recorded = one_step(Looped(), lambda network: network(x).square().mean())
    row = recorded[0, "activation", 0, "inner.layer:output"]
    assert row[COUNT] == 3 * 24
    check(row, *seen, rtol=1e-4)
    assert recorded[0, "activation_gradient", 0, "inner.layer:output"][COUNT] == 3 * 24


def test_a_tensor_seen_under_several_names_is_reduced_once(monkeypatch):
    from vario.backends.torch.reduce import cpu

    model = Perceptron(dropout=0.0)
    calls = []
    original = cpu.summarise
    monkeypatch.setattr(cpu, "summarise", lambda *args: calls.append(args) or original(*args))
    recorded = one_step(model, perceptron_loss)
    # Five outputs, one of them also the root's, and the root's input, which is also the first layer's; with dropout
    # off its output is a tensor of its own. Of the six values all but the batch have a gradient.
    tensors = {key[3] for key in recorded if key[1] == "activation"}
    assert len(tensors) == 10
    assert len(calls) <= 5 + 4


def test_evaluation_between_steps_leaves_no_rows():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    for step in range(2):
        loss = perceptron_loss(model)
        with torch.no_grad():
            model(batch(5, (50, 4)))
            model.up(batch(5, (50, 4)))
        with torch.inference_mode():
            model(batch(5, (50, 4)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.eval()(batch(step, (50, 4)))
            model.train()
    monitor.close()
    recorded = rows(monitor)
    assert len(records(monitor)) == 2
    assert len(recorded) == 2 * (10 + 8)
    assert recorded[1, "activation", 0, "up:output"][COUNT] == 6 * 8
    assert recorded[1, "activation_gradient", 0, "up:output"][COUNT] == 6 * 8


def test_a_forward_that_raises_does_not_turn_evaluation_into_training():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, 9))
    with torch.no_grad():
        model.down(torch.zeros(100, 8))
    perceptron_loss(model).backward()
    optimizer.step()
    monitor.close()
    assert rows(monitor)[0, "activation", 0, "down:output"][COUNT] == 6 * 3


@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
def test_checkpointing_leaves_the_rows_of_no_checkpointing(checkpointing):
    def trained(how):
        torch.manual_seed(0)
        model = Language(checkpointing=how)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = watch(model, optimizer)
        for step in range(2):
            for micro_step in range(2):
                language_loss(model, ids(2 * step + micro_step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.close()
        return rows(monitor)

    check_same(trained(checkpointing), trained(None))


@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
def test_checkpointing_the_whole_model_counts_nothing_twice(checkpointing):
    from torch.utils.checkpoint import checkpoint

    def trained(how):
        torch.manual_seed(0)
        model = Perceptron(dropout=0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = watch(model, optimizer)
        for step in range(2):
            x = batch(step).requires_grad_()
            output = checkpoint(model, x, use_reentrant=how == "reentrant") if how else model(x)
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.close()
        return {key: row for key, row in rows(monitor).items() if key[3] not in ("root:input", "up:input")}

    plain, found = trained(None), trained(checkpointing)
    if checkpointing == "reentrant":
        # The outermost forward itself runs without gradients, so nobody can tell it from evaluation.
        plain = {key: row for key, row in plain.items() if not key[1].startswith("activation")}
        found = {key: row for key, row in found.items() if not key[1].startswith("activation")}
    check_same(found, plain)


def test_two_forwards_before_two_backwards_are_both_there():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = batch(0).requires_grad_(), batch(1).requires_grad_()
    inputs = [first.detach().clone().requires_grad_(), second.detach().clone().requires_grad_()]
    for x in inputs:
        copy.deepcopy(model)(x).square().mean().backward()
    monitor = watch(model, optimizer, QUANTITIES)
    outputs = [model(first), model(second)]
    for output in outputs:
        output.square().mean().backward()
    optimizer.step()
    monitor.close()
    recorded = rows(monitor)
    check(recorded[0, "activation", 0, "root:output"], *outputs)
    check(recorded[0, "activation_gradient", 0, "root:output"], *[2 * output / output.numel() for output in outputs])
    check(recorded[0, "activation_gradient", 0, "root:input"], *[x.grad for x in inputs])


def test_an_input_that_needs_a_gradient_keeps_its_row_when_evaluation_comes_between():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    x = batch(0).requires_grad_()
    loss = model(x).square().mean()
    with torch.no_grad():
        model(batch(1))
    loss.backward()
    optimizer.step()
    monitor.close()
    check(rows(monitor)[0, "activation_gradient", 0, "root:input"], x.grad)
    assert not x._backward_hooks


def test_tensors_made_in_inference_mode_are_seen_like_others():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x + self.shift

    with torch.inference_mode():
        x = batch(0) * 1
    recorded = one_step(Shifted(), lambda network: network(x).square().mean())
    check(recorded[0, "activation", 0, "root:input"], batch(0))


def test_a_copy_of_a_watched_model_is_not_watched():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    twin = copy.deepcopy(model)
    twin(batch(7, (50, 4))).square().mean().backward()
    perceptron_loss(model).backward()
    optimizer.step()
    twin(batch(7, (50, 4))).square().mean().backward()
    monitor.close()
    assert [record.step for record in records(monitor)] == [0]
    check(rows(monitor)[0, "activation", 0, "root:input"], batch(0))


def test_module_calls_inside_a_function_transform_do_not_stop_training(caplog):
    model = Perceptron(dropout=0.0)
    monitor = watch(model, None, QUANTITIES)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    gradients = torch.func.grad(loss)(parameters, batch(0))
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, batch(0, (5, 2, 4)))
    monitor.step()
    monitor.close()
    assert gradients["up.weight"].shape == model.up.weight.shape
    assert per_sample["up.weight"].shape == (5, *model.up.weight.shape)
    assert rows(monitor) == {}
    assert [record.getMessage().split(".")[0] for record in caplog.records] == [
        "activation of 'root:input' is not recorded: it is inside a torch",
        "activation_gradient of 'down:output' is not recorded: it is inside a torch",
    ]


@pytest.mark.parametrize("targets", [["up"], ["re:d.*"]])
def test_only_chosen_modules_have_rows(targets):
    recorded = one_step(Perceptron(), perceptron_loss, targets=targets)
    chosen = {"up"} if targets == ["up"] else {"dropout", "down"}
    assert {key[3].split(":")[0] for key in recorded} == chosen


def test_a_meta_tensor_among_the_inputs_is_passed_over_with_one_warning(caplog):
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x, like):
            return self.inner(x)

    recorded = one_step(Careless(), lambda network: network(batch(0), torch.empty(3, device="meta")).square().mean())
    assert (0, "activation", 0, "root:input.1") not in recorded
    assert (0, "activation", 0, "root:input.0") in recorded
    assert [record.getMessage() for record in caplog.records] == [
        "activation of 'root:input.1' is not recorded: it is a meta tensor. Further cases are not reported."
    ]


def test_a_nan_is_seen_where_it_first_appears():
    model = Perceptron(dropout=0.0)
    with torch.no_grad():
        model.down.bias[1] = float("nan")
    recorded = one_step(model, perceptron_loss)
    assert recorded[0, "activation", 0, "dropout:output"][5] == 0
    assert recorded[0, "activation", 0, "down:output"][5] == 6
    assert summary(torch.tensor([float("nan")]))[5] == 1


class Selective(nn.Module):
    """Keeps sums and magnitudes and recomputes the rest: the very operators a Summary is made of."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        def policy(context, operator, *args, **kwargs):
            kept = operator in (torch.ops.aten.sum.default, torch.ops.aten.abs.default, torch.ops.aten.max.default)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        def run(x):
            return self.inner(x * x.abs().sum())

        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        return self.head(checkpoint(run, x, use_reentrant=False, context_fn=contexts))


def test_selective_checkpointing_keeps_the_models_own_results():
    torch.manual_seed(0)
    model = Selective()
    twin = copy.deepcopy(model)
    perceptron_loss(twin).backward()
    found = one_step(model, perceptron_loss)
    assert any("inner:output" in key[-1] for key in found)
    for parameter, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad)


def test_a_backward_inside_the_call_of_the_model_keeps_its_rows():
    class TrainsItself(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            loss = self.second(self.first(x)).square().mean()
            loss.backward()
            return loss.detach()

    torch.manual_seed(0)
    model = TrainsItself()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["activation", "activation_gradient"]) as monitor:
        for _ in range(8):
            model(torch.randn(8, 4))
            optimizer.step()
            optimizer.zero_grad()
            monitor.wait()
    found = rows(monitor)
    for name in ("first:input", "first:output", "second:input", "second:output"):
        assert [key[0] for key in found if key[1] == "activation" and key[3] == name] == list(range(8)), name
    came = [key[0] for key in found if key[1] == "activation_gradient" and key[3] == "second:output"]
    # In one step the tensors waited for the end of the call, which came after backward; then vario knew.
    assert len(came) >= 7, came
    assert came[-1] == 7
