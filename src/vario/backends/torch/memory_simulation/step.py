"""Training steps on fake tensors, as a GPU would run them: forward, backward, clipping and the real optimizer."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

from vario.backends.gpus import Gpu
from vario.backends.memory_trace import MemoryTrace
from vario.backends.torch import naming
from vario.backends.torch.memory_simulation.batches import positional
from vario.backends.torch.memory_simulation.cuda_operators import cuda_paths
from vario.backends.torch.memory_simulation.fakes import fake_batch, fake_model, foreign_hooks, unwatched
from vario.backends.torch.memory_simulation.tape import Tape, ValueReadError
from vario.backends.torch.memory_simulation.transformers_paths import real_paths
from vario.backends.torch.parameters import parameter_specs
from vario.core.errors import ConfigError, ModelError, VarioError
from vario.core.text import reason

WEIGHT_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIXED_TYPES = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


@dataclass(frozen=True)
class StepPlan:
    """One way to train a model."""

    make_optimizer: Callable[[list[torch.nn.Parameter]], Any]
    loss_of: Callable[[Any, Any], torch.Tensor]
    precision: str | None = None
    accumulation: int = 1
    checkpoints: bool = False
    """Whether layers drop their activations and recompute them."""
    clips: bool = True
    keeps_outputs: bool = False
    is_padded: bool = False
    num_steps: int = 3
    """The optimizer's state is created in the first, and the allocator settles in the second."""


def simulate(model: torch.nn.Module, batch: Any, plan: StepPlan, gpu: Gpu | None) -> MemoryTrace:
    """Return what some training steps allocate and free on that GPU, or on the CPU, without using that memory.

    If shapes depend on values, the largest possible ones are used, and listed in `bounds`. If values decide what is
    computed at all, or a shape has no bound: ModelError.
    """
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    bare = naming.unwrap(model)
    name = type(bare).__name__
    _refuse_what_cannot_be(bare, name)
    with ExitStack() as everything:
        everything.enter_context(_as_it_was())
        if gpu is not None:
            everything.enter_context(cuda_paths(gpu))
        everything.enter_context(real_paths())
        everything.enter_context(unwatched())
        try:
            trace = _Simulation(bare, batch, plan, gpu).run()
        except (ValueReadError, DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ModelError(
                f"{name} cannot be simulated: its code depends on values, and a simulation has only shapes ({error})."
            ) from error
    if bare is not model and hasattr(model, "_orig_mod"):
        trace.notes.append("The model is compiled; the figures are for the uncompiled model.")
    if gpu is not None and any(isinstance(module, torch.nn.RNNBase) for module in bare.modules()):
        trace.notes.append("The memory cuDNN needs for recurrent layers was measured on an H200 with cuDNN 9.19.")
    num_hooks = foreign_hooks(bare)
    if num_hooks:
        trace.notes.append(f"The model's hooks are ignored ({num_hooks} of them).")
    return trace


def _refuse_what_cannot_be(model: torch.nn.Module, name: str) -> None:
    specs = parameter_specs(model)
    # Those of bitsandbytes are packed when they are moved to their device.
    waiting = (one for one, tensor in model.named_parameters() if type(tensor).__module__.startswith("bitsandbytes"))
    packed = next((spec.name for spec in specs if spec.is_packed), None) or next(waiting, None)
    if packed is not None:
        raise ModelError(
            f"{name} cannot be simulated: its weights are quantized ('{packed}'). Pass it before quantization, or "
            "use vario.analysis.memory.estimate_model_memory, which falls back to a formula."
        )
    if not any(spec.is_trainable for spec in specs):
        raise ModelError(f"{name} has no trainable parameter: none of its {len(specs)} requires a gradient.")


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Run the simulation in a clean state, whatever the caller's thread is doing, and leave no trace."""
    numbers, python_numbers, numpy_numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()
    # Errors in it are raised and explained here; otherwise torch would log the traceback first.
    noisy = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, noisy.disabled = noisy.disabled, True
    try:
        with torch.inference_mode(False), torch.enable_grad(), _outside_autocast():
            yield
    finally:
        noisy.disabled = was_disabled
        torch.set_rng_state(numbers)
        random.setstate(python_numbers)
        np.random.set_state(numpy_numbers)


@contextmanager
def _outside_autocast() -> Iterator[None]:
    """Leave the caller's autocast: only the outermost one frees the weights it has converted."""
    was_enabled = torch.is_autocast_enabled("cpu")
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cpu", was_enabled)
        for _ in range(depth):
            torch.autocast_increment_nesting()


class _Simulation:
    """Some training steps of one model."""

    def __init__(self, model: torch.nn.Module, batch: Any, plan: StepPlan, gpu: Gpu | None) -> None:
        self.name = type(model).__name__
        self.plan = plan
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.tape = Tape(gpu, plan.is_padded)
        weights_type = torch.float32 if plan.precision in MIXED_TYPES else WEIGHT_TYPES.get(plan.precision or "")
        with self._doing("copying it", "Pass a model that copy.deepcopy can copy."):
            self.model = fake_model(model, self.mode, weights_type)
        self.model.train()
        if plan.checkpoints:
            _enable_checkpointing(self.model)
        self.batch = fake_batch(positional(batch), self.mode)
        self.outputs: Any = None

    def run(self) -> MemoryTrace:
        """Return what they allocate and free."""
        tape = self.tape
        tape.trace.begin("model")
        tape.hold_weights(self.model)
        tape.hold((one for one in tree_leaves(self.batch) if isinstance(one, torch.Tensor)), "inputs")
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        tape.follow_modules(self.model)
        with torch.device("cpu"), self.mode, tape:
            with self._doing("making the optimizer", "Pass optimizer= a function of the parameters."):
                optimizer = self.plan.make_optimizer(trained)
            for _ in range(self.plan.num_steps):
                self._step(optimizer, trained)
        return tape.trace

    @contextmanager
    def _doing(self, what: str, way_out: str) -> Iterator[None]:
        """Explain any error raised meanwhile."""
        try:
            yield
        except (VarioError, ValueReadError, DataDependentOutputException, DynamicOutputShapeException):
            raise
        except Exception as error:
            raise ModelError(f"{self.name} cannot be simulated: {what} raised {reason(error)}. {way_out}") from error

    def _step(self, optimizer: Any, trained: list[torch.nn.Parameter]) -> None:
        tape, plan = self.tape, self.plan
        for _ in range(plan.accumulation):
            self._pass()
            tape.mark((parameter.grad for parameter in trained), "gradients")
        tape.trace.begin("optimizer")
        if plan.clips:
            with self._doing("clipping the gradients", "Switch it off with clip=False."):
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
        with self._doing(f"a step of {type(optimizer).__name__}", "Try another optimizer."):
            optimizer.step()
        tape.mark(
            (one for one in tree_leaves(list(optimizer.state.values())) if isinstance(one, torch.Tensor)), "optimizer"
        )
        optimizer.zero_grad(set_to_none=True)
        self.outputs = None  # a loop's step is usually a function, and frees them

    def _pass(self) -> None:
        tape, plan, batch = self.tape, self.plan, self.batch
        half = MIXED_TYPES.get(plan.precision or "")
        tape.trace.begin("forward")
        first = len(tape.trace.blocks)
        with torch.autocast("cpu", dtype=half, enabled=half is not None):
            with self._doing("its forward pass", "Does the batch match the model?"):
                self.outputs = self.model(**batch) if isinstance(batch, Mapping) else self.model(*batch)
            with self._doing("the loss", "Pass loss=lambda outputs, batch: ..."):
                loss = _checked_loss(plan.loss_of(self.outputs, batch))
        if not plan.keeps_outputs:
            self.outputs = None
        tape.mark_alive(first, "activations")
        tape.trace.begin("backward")
        with self._doing("its backward pass", "Does it train on a CPU?"):
            (loss / plan.accumulation).backward()


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise ConfigError(f"loss: expected a tensor with one element, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ConfigError(f"loss: expected a tensor with one element, got one of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ConfigError("loss: it depends on no trainable parameter. Pass loss=lambda outputs, batch: ...")
    return loss


def _enable_checkpointing(model: torch.nn.Module) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ConfigError(
            f"checkpointing: {type(model).__name__} has no gradient_checkpointing_enable(). Build it with its layers "
            "under torch.utils.checkpoint, and omit this option."
        )
    enable()
