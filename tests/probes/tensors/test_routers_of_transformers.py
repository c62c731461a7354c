"""Experts, routers and attention of the mixtures in transformers, against what numpy makes of their own logits."""

import numpy as np
import pytest
import torch
import transformers

from vario.core.records import MAX, SUM
from watching import check, rows, watch

SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}
DEEPSEEK |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
DEEPSEEK |= {"moe_intermediate_size": 8, "num_key_value_heads": 4}
LLAMA = {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 24, "head_dim": 4}
LLAMA |= {"interleave_moe_layer_step": 1, "attention_chunk_size": 8}
FAMILIES = {
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "Qwen3Moe": {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 8, "head_dim": 4},
    "DeepseekV3": DEEPSEEK,
    "Olmoe": {"num_experts": 5, "num_experts_per_tok": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4},
    "Llama4": LLAMA,
}
LAYERS = range(2)
WRITTEN_OUT = () if transformers.__version__.partition(".")[0] >= "5" else ("Qwen2Moe", "Olmoe")
"""Their eager attention is no function but part of a class there, which is not found."""


def batch_of(seed, shape=(3, 6)):
    return torch.randint(1, 40, shape, generator=torch.Generator().manual_seed(seed))


class Mixture:
    """A few steps of such a model; keeps what its routers got and answered, and its attention's own logits."""

    def __init__(self, kind, how="eager"):
        torch.manual_seed(0)
        options = {**SMALL, **FAMILIES[kind]}
        config = getattr(transformers, f"{kind}TextConfig" if kind == "Llama4" else f"{kind}Config")(**options)
        config._attn_implementation = how
        makers = {"Llama4": transformers.Llama4ForCausalLM}
        self.model = makers[kind](config) if kind in makers else transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "sinks" in name or parameter.ndim == 1:
                    continue
                parameter.normal_(std=0.3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.k = options["num_experts_per_tok"]
        self.num_experts = next(options[key] for key in options if key.endswith("experts"))
        self.routers = [name for name, _ in self.model.named_modules() if name.endswith((".gate", ".router"))]
        self.losses = []
        self.calls = []

    def keep(self):
        """Keep, for each call of a router, its logits by numpy in float64 and the experts that it chose."""
        for name in self.routers:
            self.model.get_submodule(name).register_forward_hook(self._routed)
        return self

    def _routed(self, module, args, output):
        if not torch.is_grad_enabled():
            return
        x, weight = args[0].detach().double().numpy(), module.weight.detach().double().numpy()
        logits = x.reshape(-1, x.shape[-1]) @ weight.T
        if getattr(module, "bias", None) is not None:
            logits = logits + module.bias.detach().double().numpy()
        items = output if isinstance(output, tuple) else (output,)
        choices = [item.numpy() for item in items if not item.is_floating_point()]
        chosen = choices[0] if choices else np.argsort(-logits, axis=1)[:, : self.k]
        self.calls.append((logits, chosen))

    def watch(self, quantities, **options):
        return watch(self.model, self.optimizer, quantities, **options)

    def run(self, steps=2, tokens=(3, 6)):
        for step in range(steps):
            ids = batch_of(step, tokens)
            loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
        return self


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entropy(logits):
    p = softmax(logits)
    return -(p * np.log(p)).sum(-1)


@pytest.mark.parametrize("kind", FAMILIES)
def test_load_entropy_and_logits_are_those_of_the_models_own_routers(kind):
    mixture = Mixture(kind).keep()
    assert len(mixture.routers) == len(LAYERS)
    with mixture.watch(["expert", "router"]) as monitor:
        mixture.run()
    recorded = rows(monitor)
    for step in range(2):
        for layer, name in enumerate(mixture.routers):
            logits, chosen = mixture.calls[len(LAYERS) * step + layer]
            assert logits.shape == (18, mixture.num_experts)
            counts = np.bincount(chosen.reshape(-1), minlength=mixture.num_experts)
            row = recorded.pop((step, "expert", 0, f"{name}:load"))
            check(row, torch.from_numpy(counts / counts.mean()))
            assert row[MAX] - 1 == pytest.approx(counts.max() / counts.mean() - 1)  # MaxVio
            check(recorded.pop((step, "router", 0, f"{name}:entropy")), torch.from_numpy(entropy(logits)), rtol=1e-4)
            check(recorded.pop((step, "router", 0, f"{name}:logit")), torch.from_numpy(logits), rtol=1e-4)
            dropped = recorded.pop((step, "expert", 0, f"{name}:dropped"), None)
            assert dropped is None or dropped[SUM] == 0  # they compute every choice
    assert not recorded


def test_of_many_tokens_every_so_many_are_looked_at():
    mixture = Mixture("Mixtral").keep()
    with mixture.watch(["router"]) as monitor:
        mixture.run(1, tokens=(70, 32))
    logits, _ = mixture.calls[0]
    assert len(logits) == 2240
    check(rows(monitor)[0, "router", 0, f"{mixture.routers[0]}:logit"], torch.from_numpy(logits[::3]), rtol=1e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_expert_has_a_row_on_request(kind):
    mixture = Mixture(kind).keep()
    with mixture.watch(["expert"], each=["expert"]) as monitor:
        mixture.run(1)
    recorded = rows(monitor)
    for layer, name in enumerate(mixture.routers):
        _, chosen = mixture.calls[layer]
        counts = np.bincount(chosen.reshape(-1), minlength=mixture.num_experts)
        found = [recorded[0, "expert", 0, f"{name}:load.{expert}"][SUM] for expert in range(mixture.num_experts)]
        np.testing.assert_allclose(found, counts / counts.mean(), rtol=1e-6)
    assert len(recorded) <= len(LAYERS) * (mixture.num_experts + 2)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_each_head_has_a_row_on_request(kind, how):
    if kind == "GptOss" and how == "sdpa":
        with pytest.raises(ValueError, match="does not support"):
            Mixture(kind, how)
        return
    mixture = Mixture(kind, how)
    weights = probabilities(Mixture(kind, "eager"))
    with mixture.watch(["attention"], each=["attention"]) as monitor:
        mixture.run(1)
    recorded = {target: row for (*_, target), row in rows(monitor).items()}
    if kind in WRITTEN_OUT and how == "eager":
        assert not recorded
        return
    for layer in LAYERS:
        name = f"model.layers.{layer}.self_attn"
        for head in range(4):
            expected = normalised(weights[layer][:, head])
            assert recorded[f"{name}:head_entropy.{head}"][SUM] == pytest.approx(expected, rel=1e-3)
        largest = [recorded[f"{name}:max_logit.{head}"][SUM] for head in range(4)]
        assert max(largest) == recorded[f"{name}:max_logit"][MAX]
        assert len(set(largest)) == 4
    assert len(recorded) == len(LAYERS) * (4 + 2 * 4)


def probabilities(mixture):
    """What the eager attention of each layer says that its probabilities are, for the first batch."""
    found = mixture.model(input_ids=batch_of(0), use_cache=False, output_attentions=True).attentions
    return [layer.detach().double().numpy() for layer in found]


def normalised(p):
    """The mean over queries of entropy / ln(keys seen) of one head: (batch, query, key)."""
    p = p / p.sum(-1, keepdims=True)  # without what goes to a learned sink
    seen = (p > 0).sum(-1)
    terms = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    return (terms[seen > 1] / np.log(seen[seen > 1])).mean()


@pytest.mark.parametrize("kind", FAMILIES)
def test_losses_are_the_same_bits_with_everything_of_experts_and_heads(kind):
    plain = Mixture(kind).run(3)
    watched = Mixture(kind)
    with watched.watch(["attention", "expert", "router"], each=["attention", "expert"]) as monitor:
        watched.run(3)
    assert watched.losses == plain.losses
    assert len(rows(monitor)) > 3 * len(LAYERS)
