"""Batches for models that say what they take: those of transformers. Others are asked for a batch of their own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from vario.errors import ConfigError

PER_TOKEN = ("CausalLM", "LMHeadModel", "MaskedLM", "TokenClassification", "ConditionalGeneration", "Seq2SeqLM")
PER_EXAMPLE = ("SequenceClassification", "ImageClassification", "MultipleChoice", "AudioClassification")


def example_batch(model: Any, batch_size: int, sequence_length: int, is_padded: bool) -> dict[str, torch.Tensor]:
    """A batch without memory of the shapes that a model of transformers is trained with."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    kind = type(model).__name__
    if config is None or main not in ("input_ids", "pixel_values"):
        raise ConfigError(
            f"batch: {kind} does not say what it is trained with. Give a batch (tensors on the device 'meta' do), or "
            "let the function that builds the model return (model, batch)."
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
            shape = (batch_size, sequence_length)
            batch["input_ids"] = torch.empty(shape, dtype=torch.int64)
            if is_padded:
                batch["attention_mask"] = torch.empty(shape, dtype=torch.int64)
        _add_labels(batch, model, kind)
    return batch


def _add_labels(batch: dict[str, torch.Tensor], model: Any, kind: str) -> None:
    taken = inspect.signature(model.forward).parameters
    first = next(iter(batch.values()))
    if "start_positions" in taken:
        batch["start_positions"] = torch.empty(first.size(0), dtype=torch.int64)
        batch["end_positions"] = torch.empty(first.size(0), dtype=torch.int64)
    elif "labels" in taken and (kind.endswith(PER_TOKEN) or "input_ids" in batch) and not kind.endswith(PER_EXAMPLE):
        batch["labels"] = torch.empty(first.shape, dtype=torch.int64)
    elif "labels" in taken:
        batch["labels"] = torch.empty(first.size(0), dtype=torch.int64)


def with_batch_size(batch: Any, batch_size: int) -> Any:
    """The same batch with another number of examples."""
    from torch.utils._pytree import tree_map

    def resized(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or one.dim() == 0:
            return one
        return torch.empty((batch_size, *one.shape[1:]), dtype=one.dtype, device="meta")

    return tree_map(resized, batch)


def called_with(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a model was called with, by name and without memory."""
    from torch.utils._pytree import tree_map

    named = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    extra = named.pop("kwargs", {}) if isinstance(named.get("kwargs"), dict) else {}

    def without_memory(one: Any) -> Any:
        return torch.empty_like(one, device="meta") if isinstance(one, torch.Tensor) else one

    return dict(tree_map(without_memory, {**named, **extra}))


def loss_of(outputs: Any, _: Any) -> torch.Tensor:
    """The loss among a model's outputs, or the sum of the first output where there is none."""
    if isinstance(outputs, torch.Tensor):
        return outputs if outputs.dim() == 0 else outputs.float().sum()
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is not None:
        return found  # type: ignore[no-any-return]
    first = next((one for one in torch.utils._pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor)), None)
    if first is None:
        raise ConfigError("loss: the model returns no tensor. Give loss=lambda outputs, batch: ...")
    return loss_of(first, None)
