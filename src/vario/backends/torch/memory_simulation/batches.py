"""Build batches for models that describe their inputs: those of transformers. For others the caller passes a batch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from vario.backends.nested_tensors import leaves
from vario.core.errors import ConfigError

PER_TOKEN = ("CausalLM", "LMHeadModel", "MaskedLM", "TokenClassification", "ConditionalGeneration", "Seq2SeqLM")
PER_EXAMPLE = ("SequenceClassification", "ImageClassification", "MultipleChoice", "NextSentencePrediction")
NUM_CHOICES = 4
"""Answers per multiple-choice question, as in common data sets."""


def example_batch(model: Any, batch_size: int, sequence_length: int, is_padded: bool) -> dict[str, torch.Tensor]:
    """Return a batch without memory, with the shapes a transformers model is trained with."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    kind = type(model).__name__
    if config is None or main not in ("input_ids", "pixel_values"):
        raise ConfigError(
            f"batch: cannot derive a batch for {kind}. Pass one (tensors on the device 'meta' will do), or "
            "have the function that builds the model return (model, batch)."
        )
    batch = {}
    with torch.device("meta"):
        if main == "pixel_values":
            side = getattr(config, "image_size", 224)
            height, width = side if isinstance(side, (list, tuple)) else (side, side)
            channels = getattr(config, "num_channels", 3)
            dtype = next(model.parameters()).dtype
            batch["pixel_values"] = torch.empty(batch_size, channels, height, width, dtype=dtype)
        else:
            _refuse_too_long(model, kind, config, sequence_length)
            shape: tuple[int, ...] = (batch_size, sequence_length)
            if kind.endswith("MultipleChoice"):
                shape = (batch_size, NUM_CHOICES, sequence_length)
            batch["input_ids"] = torch.empty(shape, dtype=torch.int64)
            if is_padded:
                batch["attention_mask"] = torch.empty(shape, dtype=torch.int64)
        _add_labels(batch, model, kind, config)
    return batch


def _refuse_too_long(model: Any, kind: str, config: Any, sequence_length: int) -> None:
    """Raise if the sequence is longer than the model's table of positions; rotary positions have no limit."""
    most = getattr(config, "max_position_embeddings", None)
    has_table = any(
        isinstance(module, torch.nn.Embedding) and (name.endswith("wpe") or "position" in name.rpartition(".")[2])
        for name, module in model.named_modules()
    )
    if isinstance(most, int) and has_table and sequence_length > most:
        raise ConfigError(f"sequence_length: {kind} has {most} positions, got {sequence_length}")


def _add_labels(batch: dict[str, torch.Tensor], model: Any, kind: str, config: Any) -> None:
    taken = inspect.signature(model.forward).parameters
    first = next(iter(batch.values()))
    if "start_positions" in taken:
        batch["start_positions"] = torch.empty(first.size(0), dtype=torch.int64)
        batch["end_positions"] = torch.empty(first.size(0), dtype=torch.int64)
    elif "labels" in taken and kind.endswith("SemanticSegmentation"):
        batch["labels"] = torch.empty((first.size(0), *first.shape[2:]), dtype=torch.int64)
    elif "labels" in taken and getattr(config, "problem_type", None) == "multi_label_classification":
        batch["labels"] = torch.empty(first.size(0), config.num_labels)
    elif "labels" in taken and (kind.endswith(PER_TOKEN) or "input_ids" in batch) and not kind.endswith(PER_EXAMPLE):
        batch["labels"] = torch.empty(first.shape, dtype=torch.int64)
    elif "labels" in taken:
        batch["labels"] = torch.empty(first.size(0), dtype=torch.int64)
    elif "decoder_input_ids" in taken:
        batch["decoder_input_ids"] = torch.empty(first.shape, dtype=torch.int64)


def with_batch_size(batch: Any, batch_size: int) -> Any:
    """Return the same batch with another number of examples."""
    from torch.utils._pytree import tree_leaves, tree_map

    sizes = [one.size(0) for one in tree_leaves(batch) if isinstance(one, torch.Tensor) and one.dim()]

    def resized(one: Any) -> Any:
        # A mask over all pairs of positions has no axis for examples; the first tensor has one.
        if not isinstance(one, torch.Tensor) or one.dim() == 0 or one.size(0) != sizes[0]:
            return one
        return torch.empty((batch_size, *one.shape[1:]), dtype=one.dtype, device="meta")

    return tree_map(resized, batch)


def called_with(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a model was called with, by name and without memory."""
    from torch.utils._pytree import tree_map

    named = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    extra = named.pop("kwargs", {}) if isinstance(named.get("kwargs"), dict) else {}

    def without_memory(one: Any) -> Any:
        return torch.empty_like(one, device="meta") if isinstance(one, torch.Tensor) else one

    return dict(tree_map(without_memory, {**named, **extra}))


def positional(batch: Any) -> Any:
    """Return a batch as arguments: a mapping and a sequence are several, anything else is one."""
    return batch if isinstance(batch, (Mapping, tuple, list)) else (batch,)


def loss_of(outputs: Any, _: Any) -> torch.Tensor:
    """Return the loss among a model's outputs: the one named so, else all single numbers, else the sum of the first."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    learnt = [tensor for _, tensor in leaves(torch.Tensor, outputs, "") if tensor.requires_grad]
    if not learnt:
        raise ConfigError(
            "loss: the model returns nothing that depends on its parameters. Pass loss=lambda outputs, batch: ..."
        )
    losses = [tensor for tensor in learnt if tensor.numel() == 1]
    return (
        torch.stack([one.reshape(()) for one in losses]).sum()
        if len(losses) > 1
        else (losses or learnt)[0].float().sum()
    )
