"""Predictions for models, batches, optimizers and surroundings off the beaten track; and that nothing stays behind."""

import copy
import dataclasses
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from vario.analysis.memory import estimate_model_memory, max_batch_size, predict_memory
from vario.analysis.parameters import count_parameters
from vario.core.errors import ConfigError, ModelError

ROWS = torch.zeros(4, 8, 32)
OPERATORS = (
    "dropout",
    "scaled_dot_product_attention",
    "softmax.int",
    "log_softmax.int",
    "rms_norm",
    "layer_norm",
    "mv",
)


def square():
    return nn.Linear(32, 32)


def two():
    return nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))


LAYER_BYTES = (32 * 32 + 32) * 4


def surroundings():
    """What a process would notice if a prediction left something behind."""
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.autocast_increment_nesting() - torch.autocast_decrement_nesting(),
        torch._C._len_torch_dispatch_stack(),
        list(warnings.filters),
        [torch._C._dispatch_dump(f"aten::{name}") for name in OPERATORS],
    )


class Noisy(nn.Module):
    """Draws random numbers of every kind, then fails if told to."""

    def __init__(self, fails=False):
        super().__init__()
        self.inner = square()
        self.fails = fails

    def forward(self, x):
        x = nn.functional.dropout(x * random.random() * np.random.rand(), 0.5)
        if self.fails:
            raise RuntimeError("as it must")
        return self.inner(x)


@pytest.mark.parametrize("fails", [False, True], ids=["predicted", "failed"])
def test_nothing_of_a_prediction_stays_behind(fails):
    model = Noisy(fails)
    Noisy()(ROWS).sum().backward()
    predict_memory(Noisy(), ROWS)  # whatever is imported is imported now
    model.inner.weight.grad = torch.ones(32, 32)
    before = surroundings()
    if fails:
        with pytest.raises(ModelError, match="Noisy cannot be simulated: its forward pass raised RuntimeError: as it"):
            predict_memory(model, ROWS, precision="bf16-mixed")
    else:
        predict_memory(model, ROWS, precision="bf16-mixed")
    assert surroundings() == before
    assert model.inner.weight.grad.sum() == 32 * 32


@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.device("meta"),
    ],
    ids=["no_grad", "inference_mode", "autocast", "meta"],
)
def test_it_does_not_matter_what_the_caller_is_in_the_middle_of(around):
    model, plain = two(), predict_memory(two(), ROWS, precision="bf16-mixed")
    with around:
        assert predict_memory(model, ROWS, precision="bf16-mixed") == plain


def test_hooks_of_a_user_see_nothing_and_are_noted():
    seen, model = [], square()
    model.register_forward_hook(lambda *given: seen.append(given))
    found = predict_memory(model, ROWS)
    assert not seen
    assert found.notes == ["The model's hooks are ignored (1 of them)."]
    assert found.peak_bytes == predict_memory(square(), ROWS).peak_bytes


def test_hooks_that_are_part_of_the_model_do_their_work():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.utils.weight_norm(square())  # the kind that computes its weight in a hook
    model(ROWS)
    found = predict_memory(model, ROWS, optimizer="sgd_plain")
    assert found.kind_peaks["gradients"] == LAYER_BYTES + 32 * 4
    assert found.notes == []


def test_what_a_model_remembers_of_its_last_pass_is_in_nobodys_way():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = square()

        def forward(self, x):
            self.last = self.inner(x)
            return self.last

    model = Remembers()
    kept = model(ROWS)
    predict_memory(model, ROWS)
    assert model.last is kept


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["DataParallel", "compiled"])
def test_wrappers_are_taken_off(wrap):
    model = two()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = wrap(model)
    found = predict_memory(wrapped, ROWS)
    assert found.peak_bytes == predict_memory(model, ROWS).peak_bytes
    assert found.notes == (
        [] if wrap is nn.DataParallel else ["The model is compiled; the figures are for the uncompiled model."]
    )


def test_recurrent_layers_are_simulated_with_a_note_on_where_cudnns_sizes_are_from():
    found = predict_memory(nn.LSTM(32, 16, batch_first=True), ROWS)
    assert found.kind_peaks["gradients"] == 4 * count_parameters(nn.LSTM(32, 16))
    assert "recurrent layers was measured on an H200" in found.notes[0]


# Optimizers


def test_an_optimizer_keeps_its_groups():
    model = two()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "momentum": 0.9}, {"params": model[1].parameters(), "lr": 0.1}], lr=1.0
    )
    assert predict_memory(model, ROWS, optimizer=optimizer).kind_peaks["optimizer"] == LAYER_BYTES


def test_parameters_an_optimizer_does_not_have_get_no_state():
    model = two()
    optimizer = torch.optim.AdamW(model[0].parameters(), lr=torch.tensor(0.1), foreach=False)
    found = predict_memory(model, ROWS, optimizer=optimizer)
    assert found.kind_peaks["gradients"] == 2 * LAYER_BYTES
    assert found.kind_peaks["optimizer"] == 2 * LAYER_BYTES + 2 * 4


class Signs(torch.optim.Optimizer):
    """As Lion: one moment, written in Python."""

    def __init__(self, parameters, lr=1e-4):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["moment"] = torch.zeros_like(parameter)
                parameter.add_(state["moment"].mul(0.9).add(parameter.grad).sign_(), alpha=-group["lr"])


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [(Signs, 1), (torch.optim.NAdam, 2), (torch.optim.RAdam, 2), (torch.optim.Adadelta, 2), (torch.optim.ASGD, 1)],
)
def test_optimizers_without_a_name_here_are_simulated_too(optimizer, moments):
    found = predict_memory(square(), ROWS, optimizer=optimizer)
    assert found.kind_peaks["optimizer"] == pytest.approx(moments * LAYER_BYTES, rel=0.01)


# Sparse gradients


def test_a_sparse_gradient_has_the_size_of_what_was_looked_up():
    table, words = nn.Embedding(1000, 8, sparse=True), torch.zeros(4, 5, dtype=torch.int64)
    found = predict_memory(table, words, optimizer="sgd_plain", clip=False)
    assert found.kind_peaks["gradients"] == 20 * (8 + 8 * 4)
    assert found.kind_peaks["weights"] == 1000 * 8 * 4
    with pytest.raises(ModelError, match=r"clipping the gradients raised .* Switch it off with clip=False"):
        predict_memory(table, words, optimizer="sgd_plain")


# Batches and losses


class Free(nn.Module):
    """Takes more than tensors, gives what it is told to."""

    def __init__(self, give=lambda made: made):
        super().__init__()
        self.inner = square()
        self.give = give

    def forward(self, x, mask=None, scale=1.0, flags=()):
        return self.give(self.inner(x) * scale)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


def test_batches_may_hold_more_than_tensors():
    plain = predict_memory(Free(), ROWS)
    assert predict_memory(Free(), (ROWS, None, 1.0)) == plain
    assert predict_memory(Free(), [ROWS]) == plain
    assert predict_memory(Free(), {"x": ROWS, "mask": None, "flags": (True, "text")}) == plain


@pytest.mark.parametrize(
    "give",
    [
        lambda made: (made.logsumexp(-1).sum(), made),
        lambda made: (made, made.logsumexp(-1).sum()),
        lambda made: {"logits": made, "loss": made.logsumexp(-1).sum()},
        lambda made: Output(made, made.logsumexp(-1).sum()),
        lambda made: {"boxes": torch.zeros(3, dtype=torch.int64), "loss_of_classes": made.logsumexp(-1).sum()},
    ],
    ids=["first", "last", "dict", "dataclass", "by another name"],
)
def test_the_loss_is_found_wherever_it_is(give):
    bare = predict_memory(Free(lambda made: made.logsumexp(-1).sum()), ROWS)
    assert predict_memory(Free(give), ROWS).kind_peaks["gradients"] == bare.kind_peaks["gradients"]
    made = [large.maker for large in predict_memory(Free(give), ROWS).largest]
    assert any("exp" in maker or "sub" in maker for maker in made), "the loss was not what went backward"


def test_a_dataclass_without_a_loss_is_summed():
    assert predict_memory(Free(Output), ROWS).kind_peaks["gradients"] == LAYER_BYTES


def test_a_search_leaves_alone_what_is_no_example():
    class Masked(Free):
        def forward(self, x, mask):
            return super().forward(x) * mask

    batch = (torch.zeros(1, 8, 32), torch.zeros(8, 1))
    assert max_batch_size(Masked(), "80GiB", batch, limit=4) == 4


# What is refused


class Locked(Free):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class OnlyMatrices(torch.optim.SGD):
    """As torch's Muon, which releases before 2.9 do not have."""

    def __init__(self, parameters):
        parameters = list(parameters)
        if any(parameter.ndim != 2 for parameter in parameters):
            raise ValueError("only matrices are supported")
        super().__init__(parameters)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (
            square,
            {"loss": lambda outputs, _: outputs},
            ConfigError,
            "loss: expected a tensor with one element, got one of",
        ),
        (square, {"loss": lambda *_: 1.0}, ConfigError, "loss: expected a tensor with one element, got float"),
        (square, {"loss": lambda outputs, _: outputs.detach().sum()}, ConfigError, "loss: it depends on no trainable"),
        (
            square,
            {"loss": lambda *_: 1 / 0},
            ModelError,
            "Linear cannot be simulated: the loss raised ZeroDivisionError",
        ),
        (square, {"accumulation": 0}, ConfigError, "accumulation: expected a whole number above 0, got 0"),
        (square, {"accumulation": 1.5}, ConfigError, "accumulation: expected a whole number above 0, got 1.5"),
        (square, {"optimizer": torch.optim.LBFGS}, ModelError, "Linear cannot be simulated: a step of LBFGS raised"),
        (
            square,
            {"optimizer": OnlyMatrices},
            ModelError,
            "Linear cannot be simulated: making the optimizer raised",
        ),
        (nn.ReLU, {}, ModelError, "ReLU has no trainable parameter"),
        (lambda: square().requires_grad_(False), {}, ModelError, "Linear has no trainable parameter: none of its 2"),
        (lambda: nn.LazyLinear(4), {}, ModelError, "'weight' of LazyLinear has no shape yet"),
        (lambda: nn.Linear(31, 32), {}, ModelError, "Linear cannot be simulated: its forward pass raised RuntimeError"),
        (Locked, {}, ModelError, "Locked cannot be simulated: copying it raised TypeError"),
        (lambda: "model", {}, ModelError, "expected a torch.nn.Module, got str"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_one_sentence(model, options, error, message, capfd):
    with pytest.raises(error) as caught:
        predict_memory(model(), ROWS, **options)
    assert str(caught.value).startswith(message)
    assert "Traceback" not in capfd.readouterr().err


def test_quantized_weights_are_refused_and_get_a_formula():
    import bitsandbytes as bnb

    model = nn.Sequential(bnb.nn.Linear4bit(32, 32), nn.Linear(32, 32)).to("cpu")
    for one in (model, nn.Sequential(bnb.nn.Linear8bitLt(32, 32, has_fp16_weights=False))):
        with pytest.raises(ModelError, match=r"its weights are quantized \('0.weight'\)"):
            predict_memory(one, ROWS)
    assert estimate_model_memory(model)["method"] == "formula"


# Models of transformers


def bert(kind, **changes):
    import transformers

    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.device("meta"):
        config = transformers.BertConfig(vocab_size=100, max_position_embeddings=64, **shape, **changes)
        return getattr(transformers, f"BertFor{kind}")(config)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("NextSentencePrediction", {}),
        ("MultipleChoice", {}),
        ("QuestionAnswering", {}),
        ("TokenClassification", {}),
        ("SequenceClassification", {"problem_type": "multi_label_classification", "num_labels": 3}),
        ("SequenceClassification", {"num_labels": 1}),
    ],
)
def test_each_kind_of_head_gets_labels_of_its_shape(kind, changes):
    found = estimate_model_memory(bert(kind, **changes), batch_size=2, sequence_length=64, precision="fp32")
    assert found["method"] == "simulated", found.get("note")


def test_segmentation_and_decoders_without_a_head_get_what_they_need():
    import transformers

    with torch.device("meta"):
        sizes = {"hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 8, "num_attention_heads": [1, 1, 1, 1]}
        painter = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(**sizes))
        shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 100}
        pair = transformers.T5Model(transformers.T5Config(**shape))
    assert predict_memory(painter).peak_bytes > 0
    assert predict_memory(pair, sequence_length=16).peak_bytes > 0


def test_more_tokens_than_positions_are_refused_where_positions_are_a_table():
    import transformers

    with pytest.raises(ConfigError, match="sequence_length: BertForTokenClassification has 64 positions, got 65"):
        predict_memory(bert("TokenClassification"), sequence_length=65)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.device("meta"):
        rotating = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, max_position_embeddings=64))
    assert predict_memory(rotating, sequence_length=65).peak_bytes > 0


def test_adapters_are_predicted_with_checkpointing_of_both_kinds():
    import peft
    import transformers

    config = transformers.GPT2Config(vocab_size=200, n_positions=256, n_embd=64, n_layer=4, n_head=2, bos_token_id=0)
    base = transformers.GPT2LMHeadModel(config)
    adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    options = {"batch_size": 4, "sequence_length": 256}
    whole, small = predict_memory(base, **options), predict_memory(adapted, **options)
    assert small.kind_peaks["gradients"] == 4 * count_parameters(adapted, trainable_only=True)
    assert small.kind_peaks["gradients"] < whole.kind_peaks["gradients"] / 20
    # transformers 4 checkpoints in the reentrant way, which trains no adapter without this.
    adapted.enable_input_require_grads()
    less = predict_memory(adapted, **options, checkpointing=True)
    assert less.kind_peaks["activations"] < small.kind_peaks["activations"] / 2
    for reentrant in (True, False):
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        found = predict_memory(base, **options)
        assert found.kind_peaks["activations"] < whole.kind_peaks["activations"] / 2
