"""Expert load of watched models, counted again by numpy from what their routers chose."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo
import transformers
from torch import nn
from torch._dynamo.utils import counters

import vario
from models import batch
from vario.core.errors import ConfigError
from vario.core.records import COUNT, MAX, MIN, SUM
from watching import check, check_same, rows, watch

SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}


class Training:
    """A few steps of a model; keeps, by hand, what its routers returned."""

    def __init__(self, model, loss):
        self.model = self.called = model
        self.loss = loss
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses = []
        self.returned = []

    def keep(self, *routers):
        for router in routers:
            self.model.get_submodule(router).register_forward_hook(
                lambda module, args, output: self.returned.append(output)
            )
        return self

    def watch(self, **options):
        return watch(self.called, self.optimizer, ["expert"], **options)

    def run(self, steps=1, micro_steps=1):
        for _ in range(steps):
            for micro_step in range(micro_steps):
                loss = self.loss(self.called, 10 * len(self.losses) + micro_step)
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
            with torch.no_grad():
                self.loss(self.called, 99)
        return self


def of_transformers(kind, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **options})
    model = transformers.AutoModelForCausalLM.from_config(config)

    def loss(called, seed):
        tokens = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(seed))
        return called(input_ids=tokens, labels=tokens, use_cache=False).loss

    return Training(model, loss)


def router_name(model, layer, name):
    """Mixtral's mixture has another name in transformers 4 than all others."""
    name = f"model.layers.{layer}.{name}"
    older = name.replace(".mlp.", ".block_sparse_moe.")
    return older if older in dict(model.named_modules()) else name


def chosen(returned, top_k):
    """The experts in what a router of transformers returned: choices among other things, or logits alone."""
    items = _items(returned)
    choices = [item for item in items if not item.is_floating_point()]
    return choices[0] if choices else items[0].detach().topk(top_k).indices


def load(choices, num_experts):
    counts = np.bincount(np.asarray(choices).reshape(-1), minlength=num_experts)
    return torch.from_numpy(counts / counts.mean())


DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}
DEEPSEEK |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
DEEPSEEK |= {"moe_intermediate_size": 8, "num_key_value_heads": 4}


@pytest.mark.parametrize(
    ("kind", "options", "router", "num_experts"),
    [
        ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, "mlp.gate", 4),
        ("Qwen2Moe", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8}, "mlp.gate", 6),
        ("Qwen3Moe", {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 8, "head_dim": 4},
         "mlp.gate", 6),
        ("Olmoe", {"num_experts": 5, "num_experts_per_tok": 2}, "mlp.gate", 5),
        ("DeepseekV3", DEEPSEEK, "mlp.gate", 8),
        ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4}, "mlp.router", 4),
        ("Jamba", {"num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 1, "expert_layer_offset": 0,
                   "attn_layer_period": 1, "attn_layer_offset": 0, "use_mamba_kernels": False},
         "feed_forward.router", 4),
    ],
)  # fmt: skip
def test_routers_of_transformers_are_found_and_their_choices_counted(kind, options, router, num_experts):
    training = of_transformers(kind, **options)
    names = [router_name(training.model, layer, router) for layer in range(2)]
    training.keep(*names)
    with training.watch() as monitor:
        training.run(2)
    recorded = rows(monitor)
    for step in range(2):
        for layer, name in enumerate(names):
            choices = chosen(training.returned[4 * step + layer], options["num_experts_per_tok"])
            row = recorded.pop((step, "expert", 0, f"{name}:load"))
            assert row[COUNT] == num_experts
            assert row[SUM] == pytest.approx(num_experts)
            check(row, load(choices, num_experts))
            # They compute every choice; logits alone do not say so.
            dropped = recorded.pop((step, "expert", 0, f"{name}:dropped"), None)
            assert dropped is None or dropped[SUM] == 0
    assert not recorded


def test_the_run_is_read_back_by_name(tmp_path):
    training = of_transformers("Mixtral", num_local_experts=4)
    options = {"directory": str(tmp_path), "name": "run", "sinks": ["store"], "every": {}}
    with training.watch(**options) as monitor:
        training.run(3)
    run = vario.open_run(monitor.path)
    target = f"{router_name(training.model, 1, 'mlp.gate')}:load"
    assert run.series(target, "expert", "mean").values.tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert np.all(run.series(target, "expert", "max").values >= 1.0)
    assert np.all(run.series(target, "expert", "min").values <= 1.0)


class Mixture(nn.Module):
    """A mixture of experts as people write them: how its router answers is up to the caller."""

    def __init__(self, router, experts=5, **says):
        super().__init__()
        self.router = router
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(experts))
        for name, value in says.items():
            setattr(self, name, value)

    def forward(self, x):
        returned = self.router(x)
        logits = next(item for item in _items(returned) if item.is_floating_point())
        return sum(expert(x) for expert in self.experts) * logits.sum()


def _items(returned):
    return returned if isinstance(returned, tuple) else (returned,)


class Answering(nn.Module):
    """A router that makes its answer of logits."""

    def __init__(self, answer, **says):
        super().__init__()
        self.linear = nn.Linear(4, 5)
        self.answer = answer
        for name, value in says.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.answer(self.linear(x))


def mixture(router, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Mixture(router, **options))
    return Training(model, lambda called, seed: called(batch(seed, (9, 4))).square().mean()).keep("1.router")


def top(logits, k):
    return logits.topk(k).indices


def as_map(logits):
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, top(logits, 2), True)
    return logits.softmax(-1) * chosen, chosen


def one_hot(logits):
    return nn.functional.one_hot(logits.argmax(-1), 5), logits.softmax(-1).amax(-1, keepdim=True), logits


def dispatched(logits):
    mask = nn.functional.one_hot(logits.argmax(-1), 5)
    combine = (mask * logits)[..., None] * torch.ones(3)
    return logits.sum(), combine, combine.bool(), mask.sum(0)


@pytest.mark.parametrize(
    ("router", "says", "num_chosen"),
    [
        (nn.Linear(4, 5), {}, 1),
        (nn.Linear(4, 5), {"top_k": 2}, 2),
        (nn.Linear(4, 5), {"num_experts_per_tok": 3}, 3),
        (Answering(lambda logits: logits, topk=2), {}, 2),
        (Answering(lambda logits: (logits.softmax(-1), logits), top_k=2), {}, 2),
        (Answering(as_map), {}, 2),  # Megatron's
        (Answering(lambda logits: (top(logits, 2), logits.topk(2).values, None), n_routed_experts=5), {}, 2),
        (Answering(lambda logits: (logits.amax(-1), logits.argmax(-1)), num_experts=5), {}, 1),
        (Answering(one_hot, num_experts=5), {}, 1),  # Switch
        (Answering(dispatched, num_experts=5), {}, 1),  # DeepSpeed's
        (Answering(lambda logits: (top(logits, 2).flatten().sort().indices, logits), num_experts=5, top_k=2), {}, 2),
    ],
)
def test_any_router_that_returns_logits_or_a_choice_is_read(router, says, num_chosen):
    training = mixture(router, **says)
    answers = []
    inside = router if isinstance(router, nn.Linear) else router.linear
    inside.register_forward_hook(lambda module, args, output: answers.append(output.detach()))
    with training.watch() as monitor:
        training.run(1, micro_steps=2)
    recorded = rows(monitor)
    for micro_step in range(2):
        expected = load(top(answers[micro_step], num_chosen), 5)
        check(recorded.pop((0, "expert", micro_step, "1.router:load")), expected)
        dropped = recorded.pop((0, "expert", micro_step, "1.router:dropped"), None)
        assert dropped is None or dropped[SUM] == 0
    assert not recorded


def test_how_text_is_generated_does_not_say_how_many_experts_are_chosen():
    training = mixture(nn.Linear(4, 5))
    training.model.config = SimpleNamespace(top_k=50, num_experts_per_tok=2)
    with training.watch() as monitor:
        training.run()
    check(rows(monitor)[0, "expert", 0, "1.router:load"], load(top(training.returned[0].detach(), 2), 5))


def test_a_starved_expert_shows_as_zero_and_a_crowded_one_by_its_share():
    router = nn.Linear(4, 5)
    with torch.no_grad():
        router.weight.zero_()
        router.bias.copy_(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]))
    training = mixture(router, top_k=2)
    with training.watch() as monitor:
        training.run()
    row = rows(monitor)[0, "expert", 0, "1.router:load"]
    assert (row[MIN], row[MAX]) == (0.0, 2.5)


def test_a_choice_beyond_the_last_expert_is_dropped():
    def answer(logits):
        return logits, torch.tensor([[0], [1], [5], [-1], [7]])

    training = mixture(Answering(answer, num_experts=5))
    with training.watch() as monitor:
        training.run()
    check(rows(monitor)[0, "expert", 0, "1.router:load"], load([0, 1], 5))
    assert rows(monitor)[0, "expert", 0, "1.router:dropped"][SUM] == pytest.approx(3 / 5)


def test_what_a_map_leaves_out_of_the_top_k_is_dropped():
    def answer(logits):
        weights, chosen = as_map(logits)
        return weights, chosen & (torch.arange(len(logits)) % 3 > 0)[:, None]  # a third of the tokens

    training = mixture(Answering(answer, top_k=2))
    with training.watch() as monitor:
        training.run()
    assert rows(monitor)[0, "expert", 0, "1.router:dropped"][SUM] == pytest.approx(1 / 3)


def test_what_deepspeed_does_not_dispatch_is_dropped():
    def answer(logits):
        mask = nn.functional.one_hot(logits.argmax(-1), 5)
        place = (mask.cumsum(0) * mask).sum(-1)
        slots = nn.functional.one_hot(place - 1, 9)[:, None, :2] * mask[..., None]  # two slots an expert
        return logits.sum(), slots * logits[..., None], slots.bool(), mask.sum(0)

    training = mixture(Answering(answer, num_experts=5))
    with training.watch() as monitor:
        training.run()
    counts = training.returned[0][3].numpy()  # of what was asked for
    check(rows(monitor)[0, "expert", 0, "1.router:load"], torch.from_numpy(counts / counts.mean()))
    dropped = 1 - np.minimum(counts, 2).sum() / counts.sum()
    assert dropped > 0
    assert rows(monitor)[0, "expert", 0, "1.router:dropped"][SUM] == pytest.approx(dropped)


def test_a_router_of_ones_own_is_read_by_a_function():
    def answer(logits):
        return {"scores": logits}, logits.topk(2).indices

    def read(scores, chosen):
        kept = torch.where(torch.arange(len(chosen))[:, None] % 3 > 0, chosen, -1)
        return {"logits": scores["scores"], "choices": kept}

    training = Training(
        nn.Sequential(nn.Linear(4, 4), Scored(Answering(answer))),
        lambda called, seed: called(batch(seed, (9, 4))).square().mean(),
    ).keep("1.scorer")
    with watch(training.model, training.optimizer, ["expert", "router"], experts={"*.scorer": read}) as monitor:
        training.run()
    recorded = rows(monitor)
    scores, chosen = training.returned[0]
    kept = chosen.numpy()[np.arange(9) % 3 > 0]
    check(recorded.pop((0, "expert", 0, "1.scorer:load")), load(kept, 5))
    assert recorded.pop((0, "expert", 0, "1.scorer:dropped"))[SUM] == pytest.approx(1 / 3)
    logits = scores["scores"].detach().double()
    check(recorded.pop((0, "router", 0, "1.scorer:logit")), logits)
    check(recorded.pop((0, "router", 0, "1.scorer:entropy")), -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1))
    assert not recorded


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda returned: returned, "expected a dict with 'choices' or 'logits', got Tensor"),
        (lambda returned: {"choice": returned}, "routing: unknown 'choice'. Did you mean 'choices'?"),
        (lambda returned: {"top_k": 2}, "expected 'choices' or 'logits', got neither"),
    ],
)
def test_a_function_that_reads_a_router_wrongly_is_told_what_is_expected(read, message, caplog):
    training = mixture(nn.Linear(4, 5))
    with training.watch(strict=False, experts={"1.router": read}) as monitor:
        training.run(2)
    assert message in caplog.text
    assert "switched off" in caplog.text
    assert not rows(monitor)
    assert len(training.losses) == 2


class Scored(nn.Module):
    """A mixture whose router has a name and an answer of its own."""

    def __init__(self, scorer):
        super().__init__()
        self.scorer = scorer
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x):
        scores, _ = self.scorer(x)
        return sum(expert(x) for expert in self.experts) * scores["scores"].sum()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [(["1.scorer"], {"1.scorer:load"}), ([], set())],
)
def test_a_router_of_another_name_is_named_in_the_options(patterns, expected):
    torch.manual_seed(0)
    inside = Mixture(nn.Linear(4, 5), top_k=2)
    inside.scorer = inside.router
    del inside._modules["router"]
    inside.__dict__["router"] = inside.scorer
    training = Training(
        nn.Sequential(nn.Linear(4, 4), inside), lambda called, seed: called(batch(seed, (9, 4))).square().mean()
    )
    with training.watch(experts=patterns) as monitor:
        training.run()
    assert {target for *_, target in rows(monitor)} == expected


def test_a_gate_of_something_else_is_no_router():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 4)
            self.up = nn.Linear(4, 4)

        def forward(self, x):
            return self.gate(x).sigmoid() * self.up(x)

    training = Training(Gated(), lambda called, seed: called(batch(seed)).square().mean())
    with training.watch() as monitor:
        training.run()
    assert not rows(monitor)


@pytest.mark.parametrize("named", [True, False])
def test_a_router_that_does_not_say_what_it_chose_is_told_of_once(named, caplog):
    training = mixture(Answering(lambda logits: logits.sum(), num_experts=5))
    options = {"experts": ["1.router"]} if named else {}
    with training.watch(strict=False, **options) as monitor:
        training.run(3)
    assert len([record for record in caplog.records if "1.router" in record.message]) == 1
    assert ("switched off" in caplog.text) is named
    assert not rows(monitor)
    assert len(training.losses) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["1.rooter"], "experts: '1.rooter' matches no module of this model. Did you mean '1.router'?"),
        (["re:("], "experts: 're:(' is not a regular expression"),
        ([1], "experts: expected names or patterns, got 1"),
    ],
)
def test_a_wrong_option_is_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        mixture(nn.Linear(4, 5)).watch(experts=given)
    assert message in str(caught.value)


def test_a_recomputation_is_not_counted():
    plain = of_transformers("Mixtral", num_local_experts=4)
    with plain.watch() as expected:
        plain.run(2)
    training = of_transformers("Mixtral", num_local_experts=4)
    training.model.gradient_checkpointing_enable({"use_reentrant": False})
    training.model.enable_input_require_grads()
    with training.watch() as monitor:
        training.run(2)
    check_same(rows(monitor), rows(expected))


def test_losses_are_the_same_bits_and_nothing_is_left_behind():
    plain = of_transformers("Mixtral", num_local_experts=4).run(3)
    training = of_transformers("Mixtral", num_local_experts=4)
    with training.watch() as monitor:
        training.run(3)
    assert len([target for *_, target in rows(monitor) if target.endswith(":load")]) == 3 * 2
    assert training.losses == plain.losses
    for module in training.model.modules():
        assert not module._forward_hooks
        assert not any("vario" in name for name in vars(module))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", ["whole", "the mixture"])
def test_a_router_inside_a_compiled_graph_is_recorded_and_breaks_nothing(compiled):
    found = []
    for how in ("eager", "plain", "watched"):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(1)
        training = mixture(nn.Linear(4, 5), top_k=2)
        training.model[1].router._forward_hooks.clear()  # what a test keeps would break a graph
        monitor = None if how == "plain" else training.watch()
        if how != "eager":
            (training.model if compiled == "whole" else training.model[1]).compile(fullgraph=True, backend="aot_eager")
        training.run(2)
        graphs = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        if monitor is not None:
            monitor.close()
        found.append((training.losses, graphs, None if monitor is None else rows(monitor)))
    eager, plain, watched = found
    check_same(watched[2], eager[2])
    assert watched[:2] == plain[:2]
    torch._dynamo.reset()


class Weighted(nn.Module):
    """A router with a weight of its own, as those of transformers and Megatron have."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
        self.num_experts = 5

    def forward(self, x):
        return (x @ self.weight.T).softmax(-1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["linear", "weight", "layer inside"])
def test_logits_inside_a_compiled_graph_are_those_of_eager_code(kind):
    found = []
    for how in ("eager", "plain", "watched"):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(1)
        routers = {"linear": lambda: nn.Linear(4, 5), "weight": Weighted}
        router = routers.get(kind, lambda: Answering(lambda logits: logits.softmax(-1), num_experts=5))()
        training = mixture(router)
        training.model[1].router._forward_hooks.clear()  # what a test keeps would break a graph
        options = {"experts": ["1.router"]}
        monitor = None if how == "plain" else watch(training.model, training.optimizer, ["router"], **options)
        if how != "eager":
            training.model.compile(fullgraph=True, backend="aot_eager")
        training.run(2)
        graphs = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        if monitor is not None:
            monitor.close()
        found.append((training.losses, graphs, None if monitor is None else rows(monitor)))
    eager, plain, watched = found
    assert {target for *_, target in eager[2]} == {"1.router:entropy", "1.router:logit"}
    check_same(watched[2], eager[2])
    assert watched[:2] == plain[:2]
    torch._dynamo.reset()
