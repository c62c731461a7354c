"""Attention of transformers' models, found by itself, and what is left of it when a Monitor closes."""

import pytest
import torch
import torch._dynamo
import transformers
from torch._dynamo.utils import counters
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface
from transformers.models.llama import modeling_llama

from attending import WHATS, Calls, Training, check_target, functional, oracle
from models import Attentive, ids, language_loss
from vario.core.records import COUNT, MAX
from watching import check_same, rows

SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
MASK = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def of_transformers(kind="Llama", how="sdpa", masked=False, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **options}, attn_implementation=how)
    model = transformers.AutoModelForCausalLM.from_config(config)
    extra = {"attention_mask": MASK} if masked else {}

    def loss(called, seed):
        tokens = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(seed))
        return called(input_ids=tokens, labels=tokens, use_cache=False, **extra).loss

    return Training(model, loss)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_a_llama_is_recorded_by_its_attention_modules(how, masked, monkeypatch):
    calls = Calls(monkeypatch)
    if how == "sdpa":
        calls.keep(functional, "scaled_dot_product_attention")
    else:
        calls.keep(modeling_llama, "eager_attention_forward")
    training = of_transformers(how=how, masked=masked)
    with training.watch() as monitor:
        training.run(2)
    recorded = rows(monitor)
    assert len(recorded) == 2 * 2 * len(WHATS)
    for step in range(2):
        for layer in range(2):
            args, kwargs = calls.seen[4 * step + layer]
            if how == "sdpa":
                query, key, mask, scale = *args[:2], kwargs["attn_mask"], kwargs["scale"]
            else:
                query, key, mask, scale = *args[1:3], args[4], kwargs["scaling"]
            causal = bool(kwargs.get("is_causal"))
            assert causal or mask is not None
            expected = oracle(query, key, scale=scale, mask=mask, causal=causal)
            check_target(recorded, step, f"model.layers.{layer}.self_attn", expected)
    assert not recorded


@pytest.mark.parametrize("named", [False, True])
def test_on_request_each_head_has_its_largest_logit_and_its_entropy(named, monkeypatch):
    calls = Calls(monkeypatch).keep(functional, "scaled_dot_product_attention")
    if named:  # its core reads the sequence before the heads
        training = Training(Attentive(), lambda called, seed: language_loss(called, ids(seed)))
        options = {"attention": ["*.core"]}
    else:
        training, options = of_transformers(masked=True), {}
    names = [name for name, _ in training.model.named_modules() if name.endswith("core" if named else "self_attn")]
    with training.watch(each=["attention"], **options) as monitor:
        training.run()
    recorded = rows(monitor)
    args, kwargs = calls.seen[0]
    batch, heads, queries, _ = args[0].shape
    mask = kwargs.get("attn_mask")
    expected = oracle(*args[:2], scale=kwargs.get("scale"), mask=mask, causal=bool(kwargs.get("is_causal")))
    largest = expected["max_logit"].reshape(batch, heads, queries).max((0, 2))
    for head in range(heads):
        row = recorded[0, "attention", 0, f"{names[0]}:max_logit.{head}"]
        assert row[COUNT] == 1
        assert row[MAX] == pytest.approx(largest[head], rel=2e-4)
        row = recorded[0, "attention", 0, f"{names[0]}:head_entropy.{head}"]
        assert row[MAX] == pytest.approx(expected["head_entropy"][head], rel=2e-4)
    assert (0, "attention", 0, f"{names[0]}:max_logit.{heads}") not in recorded


def test_eager_and_sdpa_give_the_same_numbers():
    found = []
    for how in ("eager", "sdpa"):
        training = of_transformers(how=how, masked=True)
        with training.watch() as monitor:
            training.run()
        found.append(rows(monitor))
    check_same(*found, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "how", "options", "attention"),
    [
        ("GPT2", "sdpa", {"n_embd": 16, "n_layer": 2, "n_head": 4}, "transformer.h.{}.attn"),
        ("GPT2", "eager", {"n_embd": 16, "n_layer": 2, "n_head": 4}, "transformer.h.{}.attn"),
        ("Gemma2", "eager", {"head_dim": 4, "attn_logit_softcapping": 0.001}, "model.layers.{}.self_attn"),
        ("Mixtral", "sdpa", {"num_local_experts": 4}, "model.layers.{}.self_attn"),
        ("GPTNeoX", "eager", {}, "gpt_neox.layers.{}.attention"),
    ],
)
def test_other_models_of_transformers_are_recorded(kind, how, options, attention):
    training = of_transformers(kind, how, **options)
    with training.watch() as monitor:
        training.run()
    recorded = {target: row for (*_, target), row in rows(monitor).items()}
    assert recorded.keys() == {f"{attention.format(layer)}:{what}" for layer in range(2) for what in WHATS}
    cap = options.get("attn_logit_softcapping")
    if cap is not None:
        largest = recorded["model.layers.0.self_attn:max_logit"][MAX]
        assert 0.5 * cap < largest <= cap


def of_its_own(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """An interface without torch's function inside."""
    return modeling_llama.eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout, **kwargs)


def around_torchs(module, query, key, value, attention_mask, **kwargs):
    return AttentionInterface._global_mapping["sdpa"](module, query, key, value, attention_mask, **kwargs)


@pytest.mark.parametrize("function", [of_its_own, around_torchs])
def test_an_interface_of_ones_own_counts_once(function, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "mine", function)
    training = of_transformers(how="mine")
    with training.watch() as monitor:
        training.run()
    assert {row[COUNT] for (*_, target), row in rows(monitor).items() if "entropy" in target} == {3 * 4 * 6, 4}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_made_for_a_kernel_hides_padding_and_later_keys_by_itself(window, masked, monkeypatch):
    """Stands in for a flash attention kernel, which no CPU has: the same call, computed plainly."""
    seen = []

    def flash(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, **kwargs):
        seen.append((query.detach(), key.detach()))
        mixed = query @ key.repeat_interleave(2, 1).transpose(2, 3) @ value.repeat_interleave(2, 1)
        return mixed.transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "kernel", flash)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "kernel", flash_attention_mask)
    training = of_transformers(
        "Mistral", "kernel", masked=masked, sliding_window=window, num_hidden_layers=1, head_dim=4
    )
    with training.watch() as monitor:
        training.run()
    near = torch.ones(6, 6, dtype=torch.bool).tril()
    near &= near.triu(-(window or 6) + 1)
    mask = (near & MASK.bool()[:, None, None, :]) if masked else near
    recorded = rows(monitor)
    check_target(recorded, 0, "model.layers.0.self_attn", oracle(*seen[0], mask=mask))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the evaluation in between
@pytest.mark.parametrize(("how", "reentrant"), [("sdpa", True), ("eager", False)])
def test_a_recomputation_is_not_counted(how, reentrant):
    plain = of_transformers(how=how)
    with plain.watch() as expected:
        plain.run(2)
    training = of_transformers(how=how)
    training.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    training.model.enable_input_require_grads()
    with training.watch() as monitor:
        training.run(2)
    check_same(rows(monitor), rows(expected))


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_losses_and_random_numbers_are_the_same_bits(how):
    found = []
    for watched in (True, False):
        training = of_transformers(how=how, attention_dropout=0.25)
        monitor = training.watch() if watched else None
        training.run(3)
        found.append((training.losses, torch.get_rng_state().tolist(), training.model.state_dict()))
        if monitor is not None:
            monitor.close()
            assert len(rows(monitor)) == 3 * 2 * len(WHATS)
    assert found[0][:2] == found[1][:2]
    for name, tensor in found[0][2].items():
        assert torch.equal(tensor, found[1][2][name]), name


def held():
    """Everything that watching attention may replace."""
    return [
        functional.scaled_dot_product_attention,
        modeling_llama.eager_attention_forward,
        list(AttentionInterface._global_mapping.items()),
        dict(ALL_ATTENTION_FUNCTIONS._local_mapping),
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_closing_leaves_torch_and_transformers_as_they_were_found(first):
    found = held()
    trainings = [of_transformers(how="eager"), of_transformers(how="sdpa")]
    monitors = [training.watch() for training in trainings]
    assert held()[0] is not found[0]
    assert held()[1] is not found[1]
    for training in trainings:
        training.run()
    monitors[first].close()
    assert held()[0] is not found[0]
    trainings[1 - first].run()
    monitors[1 - first].close()
    assert held() == found
    assert held()[0] is found[0]
    for monitor in monitors:
        assert {step for step, *_ in rows(monitor)} == ({0} if monitor is monitors[first] else {0, 1})
        assert len({target for *_, target in rows(monitor)}) == 2 * len(WHATS)


def test_what_somebody_else_put_on_top_in_between_stays(monkeypatch):
    training = of_transformers()
    original = functional.scaled_dot_product_attention
    monitor = training.watch()
    ours = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *args, **kwargs: ours(*args, **kwargs))
    theirs = functional.scaled_dot_product_attention
    training.run()
    monitor.close()
    assert functional.scaled_dot_product_attention is theirs
    training.run()
    # They put back what they found, which is ours: a next Monitor takes its place and finds the original.
    functional.scaled_dot_product_attention = ours
    with training.watch() as again:
        training.run()
    assert {row[COUNT] for (*_, target), row in rows(again).items() if "max_logit" in target} == {3 * 4 * 6}
    assert functional.scaled_dot_product_attention is original


def test_named_modules_replace_nothing():
    found = held()
    training = Training(Attentive(), lambda called, seed: language_loss(called, ids(seed)))
    with training.watch(attention=["layers.0.core"]):
        assert held() == found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("how", "compiled", "first"),
    [
        ("sdpa", "whole", "watched"),
        ("eager", "by layer", "compiled"),
    ],
)
def test_a_compiled_model_has_no_rows_and_trains_and_compiles_as_without(how, compiled, first):
    found = []
    for watched in (False, True):
        torch._dynamo.reset()
        counters.clear()
        training = of_transformers(how=how)
        monitor = training.watch() if watched and first == "watched" else None
        if compiled == "whole":
            training.called = torch.compile(training.model, fullgraph=True, backend="eager")
        else:
            for layer in training.model.model.layers:
                layer.compile(fullgraph=True, backend="eager")
        training.run()
        monitor = training.watch() if watched and first == "compiled" else monitor
        training.run(2)
        found.append((training.losses, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())))
        if monitor is not None:
            monitor.close()
            assert not rows(monitor)
    assert found[0] == found[1]
    assert found[1][2] == 0
    torch._dynamo.reset()
