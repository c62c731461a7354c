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
from vario.backends.torch.parameters import parameter_forms
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
    """Whether layers forget their activations and compute them again."""
    clips: bool = True
    keeps_outputs: bool = False
    is_padded: bool = False
    num_steps: int = 3
    """The optimizer's state appears in the first, and the allocator settles in the second."""


def simulate(model: torch.nn.Module, batch: Any, plan: StepPlan, gpu: Gpu | None) -> MemoryTrace:
    """What some training steps allocate and free on that GPU, or on the CPU, without the memory.

    Where shapes depend on values the largest possible ones are taken, and named in `bounds`. Where values decide what
    is computed at all, or nothing bounds a shape: ModelError.
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
                f"{name} cannot be simulated: what it does depends on values, and there are only shapes ({error})."
            ) from error
    if bare is not model and hasattr(model, "_orig_mod"):
        trace.notes.append("The model is compiled; this is what it takes when it is not.")
    if gpu is not None and any(isinstance(module, torch.nn.RNNBase) for module in bare.modules()):
        trace.notes.append("What cuDNN takes for recurrent layers was read off an H200 with cuDNN 9.19.")
    num_hooks = foreign_hooks(bare)
    if num_hooks:
        trace.notes.append(f"Hooks that were put on the model are left out ({num_hooks} of them).")
    return trace


def _refuse_what_cannot_be(model: torch.nn.Module, name: str) -> None:
    forms = parameter_forms(model)
    # Those of bitsandbytes are packed when they are moved to their device.
    waiting = (one for one, tensor in model.named_parameters() if type(tensor).__module__.startswith("bitsandbytes"))
    packed = next((form.name for form in forms if form.is_packed), None) or next(waiting, None)
    if packed is not None:
        raise ModelError(
            f"{name} cannot be simulated: its weights are quantized ('{packed}'). Give it as it is before that, or "
            "take vario.estimate_model_memory, which then answers with a formula."
        )
    if not any(form.is_trainable for form in forms):
        raise ModelError(f"{name} has no parameter to train: none of its {len(forms)} needs a gradient.")


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Whatever the caller's thread is in the middle of, the simulation begins afresh and leaves no trace."""
    numbers, python_numbers, numpy_numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()
    # What fails in it is raised and worded here; torch would log the traceback before.
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
    """As if the caller were in no autocast: only the outermost one lets go of the weights it has converted."""
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
        with self._doing("copying it", "Give a model that copy.deepcopy can copy."):
            self.model = fake_model(model, self.mode, weights_type)
        self.model.train()
        if plan.checkpoints:
            _enable_checkpointing(self.model)
        self.batch = fake_batch(positional(batch), self.mode)
        self.outputs: Any = None

    def run(self) -> MemoryTrace:
        """What they allocate and free."""
        tape = self.tape
        tape.trace.begin("model")
        tape.hold_weights(self.model)
        tape.hold((one for one in tree_leaves(self.batch) if isinstance(one, torch.Tensor)), "inputs")
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        tape.follow_modules(self.model)
        with torch.device("cpu"), self.mode, tape:
            with self._doing("making the optimizer", "Give optimizer= a function of the parameters."):
                optimizer = self.plan.make_optimizer(trained)
            for _ in range(self.plan.num_steps):
                self._step(optimizer, trained)
        return tape.trace

    @contextmanager
    def _doing(self, what: str, way_out: str) -> Iterator[None]:
        """Word whatever goes wrong meanwhile."""
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
            with self._doing("clipping the gradients", "Leave it out with clip=False."):
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
        with self._doing(f"a step of {type(optimizer).__name__}", "Try another optimizer."):
            optimizer.step()
        tape.mark(
            (one for one in tree_leaves(list(optimizer.state.values())) if isinstance(one, torch.Tensor)), "optimizer"
        )
        optimizer.zero_grad(set_to_none=True)
        self.outputs = None  # a loop's step is a function, most often, and lets go of them

    def _pass(self) -> None:
        tape, plan, batch = self.tape, self.plan, self.batch
        half = MIXED_TYPES.get(plan.precision or "")
        tape.trace.begin("forward")
        first = len(tape.trace.blocks)
        with torch.autocast("cpu", dtype=half, enabled=half is not None):
            with self._doing("its forward pass", "Is the batch one that it is trained with?"):
                self.outputs = self.model(**batch) if isinstance(batch, Mapping) else self.model(*batch)
            with self._doing("the loss", "Give loss=lambda outputs, batch: ..."):
                loss = _checked_loss(plan.loss_of(self.outputs, batch))
        if not plan.keeps_outputs:
            self.outputs = None
        tape.mark_alive(first, "activations")
        tape.trace.begin("backward")
        with self._doing("its backward pass", "Does it train on a CPU?"):
            (loss / plan.accumulation).backward()


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise ConfigError(f"loss: expected a tensor of one number, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ConfigError(f"loss: expected a tensor of one number, got one of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ConfigError("loss: it depends on no parameter that is trained. Give loss=lambda outputs, batch: ...")
    return loss


def _enable_checkpointing(model: torch.nn.Module) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise ConfigError(
            f"checkpointing: {type(model).__name__} has no gradient_checkpointing_enable(). Build it with its layers "
            "under torch.utils.checkpoint, and leave this option out."
        )
    enable()
