"""Lets Megatron-core train on CPU tensors: it asks torch.cuda where to put things, and is told the CPU here.

Bucketing, reductions, optimizers and pipeline schedules stay Megatron's own code, on gloo. `install` comes before the
first import of megatron, `megatron_on_cpu.py SCRIPT` runs a script so; nothing of vario knows of this.
"""

import contextlib
import runpy
import sys
import types

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class Moment:
    """An event or a stream of a device that has done everything by the time it is asked."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: Moment()


class EverythingOnCpu(TorchFunctionMode):
    """Makes tensors on the CPU where a CUDA device is named."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = CPU
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            # Optimizers tell precisions apart by `torch.cuda.FloatTensor` and its like.
            result = result.replace("torch.", "torch.cuda.", 1)
        return result


class OneGenerator:
    """The generators of all devices: torch's own."""

    def __getitem__(self, at):
        return torch.default_generator


def add_weight_gradient(inputs, gradient_of_output, main_grad):
    """What apex's fused kernel does: a weight's gradient, added where Megatron keeps the sum."""
    main_grad.add_(gradient_of_output.t().to(main_grad.dtype) @ inputs.to(main_grad.dtype))


def install():
    cuda, everything = torch.cuda, Moment()
    nothing = lambda *args, **kwargs: None  # noqa: E731
    cuda.current_device = lambda: CPU
    cuda.synchronize = cuda.set_stream = cuda.empty_cache = cuda.nvtx.range_push = cuda.nvtx.range_pop = nothing
    cuda.Stream = cuda.Event = Moment
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.current_stream = cuda.default_stream = lambda *args: everything
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda._lazy_call = lambda call, **kwargs: call()
    cuda.default_generators = OneGenerator()
    torch.nn.Module.cuda = lambda self, *args: self
    fused = types.ModuleType("fused_weight_gradient_mlp_cuda")
    fused.wgrad_gemm_accum_fp32 = fused.wgrad_gemm_accum_fp16 = add_weight_gradient
    sys.modules["fused_weight_gradient_mlp_cuda"] = fused
    EverythingOnCpu().__enter__()


if __name__ == "__main__":
    install()
    runpy.run_path(sys.argv[1], run_name="__main__")
