"""Record what a training step allocates and frees, operator by operator, while it runs on fake tensors."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vario.backends.gpus import MIB, Gpu
from vario.backends.memory_trace import Block, MemoryTrace
from vario.backends.torch.memory_simulation.bounds import BOUNDED
from vario.backends.torch.memory_simulation.recurrent import FLATTENED
from vario.backends.torch.memory_simulation.workspaces import workspaces
from vario.backends.torch.releases import HAS_GROUPED_PRODUCTS

aten = torch.ops.aten


class Tape(TorchDispatchMode):
    """Records every storage that operators create, from allocation to release, with its module."""

    def __init__(self, gpu: Gpu | None, masks_hide_tokens: bool = False) -> None:
        """Without a GPU only what operators return is counted, as on the CPU."""
        super().__init__()
        self.trace = MemoryTrace()
        self.gpu = gpu
        self._masks_hide_tokens = masks_hide_tokens
        self._ids: dict[int, int] = {}
        self._endings: dict[int, weakref.finalize[Any, Any]] = {}
        """What is called when a storage is freed."""
        self._modules: list[str] = [""]
        self._module_starts: list[int] = [0]
        self._module_names: list[str] = [""]
        self._held_once: set[tuple[bool, str]] = set()
        self._sum: tuple[int, int] | None = None
        self._whole_numbers: dict[int, int] = {}
        """Storages of integers with a known meaning: the value to assume."""
        self._last_test: tuple[Any, str] = (None, "")

    # What existed before any operator ran

    def hold(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """Count tensors created elsewhere."""
        for tensor in tensors:
            self._observe(tensor, kind, kind)

    def hold_weights(self, model: torch.nn.Module) -> None:
        """Count a model's parameters and buffers, each with its module."""
        last = {id(weights[-1]): weights for weights in self._laid_flat(model)}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._modules.append(name.rpartition(".")[0])
            self._observe(tensor, "weights", "weights")
            if id(tensor) in last:
                self._lay_flat(last[id(tensor)])
            self._modules.pop()

    def _laid_flat(self, model: torch.nn.Module) -> list[list[Any]]:
        """Return weights that torch flattens, by module: not those that another module computes, or shares."""
        seen: set[int] = set()
        found = []
        for module in model.modules() if self.gpu is not None else ():
            weights: list[Any] = module._flat_weights if isinstance(module, torch.nn.RNNBase) else []
            is_own = all(isinstance(weight, torch.nn.Parameter) and id(weight) not in seen for weight in weights)
            if weights and is_own and weights[0].dtype in FLATTENED:
                found.append(weights)
            seen.update(map(id, weights))
        return found

    def _lay_flat(self, weights: list[Any]) -> None:
        """Move weights to the GPU one by one, then copy them into one buffer for cuDNN."""
        num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
        dtype = str(weights[0].dtype)[6:]
        flat = self.trace.allocate(Block(num_bytes, "weights", "weights", self._modules[-1], dtype, (num_bytes,)))
        for weight in weights:
            key = weight.untyped_storage()._cdata
            self.trace.free(self._ids[key])
            self._endings.pop(key).detach()
            self._ids[key] = flat

    def mark(self, tensors: Iterable[torch.Tensor | None], kind: str) -> None:
        """Set what storages turned out to be for."""
        for tensor in tensors:
            for part in () if tensor is None else _dense_parts(tensor):
                found = self._ids.get(part.untyped_storage()._cdata)
                if found is not None:
                    self.trace.block(found).kind = kind

    def mark_alive(self, made_since: int, kind: str) -> None:
        """Set the kind of everything created since that block and still alive, unless it has one."""
        for found in self._ids.values():
            block = self.trace.block(found)
            if found >= made_since and block.kind == "temporary":
                block.kind = kind

    # Which module is running

    def follow_modules(self, model: torch.nn.Module) -> list[Any]:
        """Track the module of every operator, in forward and, through the order of autograd's nodes, in backward."""
        handles = []
        for name, module in model.named_modules():
            enter, leave = self._make_hooks(name)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
        return handles

    def _make_hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: Any) -> None:
            self._modules.append(name)
            self._note_module()

        def leave(*_: Any) -> None:
            if len(self._modules) > 1:
                self._modules.pop()
            self._note_module()

        return enter, leave

    def _note_module(self) -> None:
        # Autograd numbers its nodes as they are created, so a range of numbers belongs to a module.
        self._module_starts.append(torch._C._autograd._get_sequence_nr())
        self._module_names.append(self._modules[-1])

    def _module_now(self, node: Any) -> str:
        if node is None or torch.is_grad_enabled():
            return self._modules[-1]
        number = node._sequence_nr()
        place = bisect_right(self._module_starts, number) - 1
        return self._module_names[place]

    # What operators do

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS_OF_VALUES:
            return self._guess(args[0])
        bounded = BOUNDED.get(func)
        if bounded is not None and bounded[1](args):
            self._note_bound(func)
            with self:  # its components are on the tape as well
                out = bounded[0](*args, **kwargs)
            # Indices, of which any may be assumed; or how many sequences there are at each step.
            number = args[1].size(0) if func is PACKING else 0
            self._whole_numbers.update(
                (one.untyped_storage()._cdata, number) for one in tree_leaves(out) if _is_whole(one)
            )
            return out
        out = BETTER_THAN_FAKE.get(func, func)(*args, **kwargs)
        if func.namespace == "prim":
            return out
        before = len(self.trace.blocks)
        node = torch._C._current_autograd_node()
        for tensor in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                for part in _dense_parts(tensor):
                    self._observe(part, "temporary", func, node)
        if func is aten.add.Tensor and node is not None and not torch.is_grad_enabled():
            self._expect_in_place(before, args[0])
        if func in TESTS_OF_MASKS and args[0].untyped_storage()._cdata not in self._whole_numbers:
            self._last_test = (weakref.ref(out), func._schema.name)
        if self.gpu is not None:
            self._pass_workspaces(self.gpu, func, args, out, node)
        return out

    def _observe(self, tensor: torch.Tensor, kind: str, maker: Any, node: Any = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._ids:
            return
        num_bytes = storage.nbytes()
        if num_bytes == 0:
            return
        name = maker if isinstance(maker, str) else maker._schema.name.removeprefix("aten::")
        block = Block(num_bytes, kind, name, self._module_now(node), str(tensor.dtype)[6:], tuple(tensor.shape))
        number = self.trace.allocate(block)
        self._sum = None
        self._ids[key] = number
        self._endings[key] = weakref.finalize(storage, self._freed, key, number)

    def _freed(self, key: int, number: int) -> None:
        if self._ids.get(key) == number:
            del self._ids[key]
            self._endings.pop(key, None)
            self._whole_numbers.pop(key, None)
        kept, self._sum = self._sum, None
        if kept is not None and kept[1] == number:
            self.trace.take_over(*kept)
        else:
            self.trace.free(number)

    def _expect_in_place(self, made: int, summand: torch.Tensor) -> None:
        # Where gradients are summed, autograd adds into the first one if nothing else refers to it; a view's base does.
        # With fake tensors it creates a new one and frees the first one at once: that is detected here.
        if len(self.trace.blocks) == made + 1 and not summand._is_view():
            first = self._ids.get(summand.untyped_storage()._cdata)
            if first is not None and self.trace.blocks[first].num_bytes == self.trace.blocks[made].num_bytes:
                self._sum = (made, first)

    def _pass_workspaces(self, gpu: Gpu, func: Any, args: tuple[Any, ...], out: Any, node: Any) -> None:
        if func in MATRIX_PRODUCTS:
            # The thread of the backward pass has its own cuBLAS handle, and so its own workspaces.
            self._hold_once((node is None, "cuBLAS"), gpu.matmul_workspace_bytes)
            if func is aten.addmm.default:
                self._hold_once((node is None, "cuBLASLt"), MIB)
        for together in workspaces(func, args, out, gpu):
            name, module = f"workspace of {func._schema.name.removeprefix('aten::')}", self._module_now(node)
            held = [self.trace.allocate(Block(each, "temporary", name, module, "uint8", (each,))) for each in together]
            for number in held:
                self.trace.free(number)
            self._sum = None

    def _hold_once(self, key: tuple[bool, str], num_bytes: int) -> None:
        if key not in self._held_once:
            self._held_once.add(key)
            self._sum = None
            self.trace.allocate(Block(num_bytes, "workspace", f"{key[1]} workspace", "", "uint8", (num_bytes,)))

    def _note_bound(self, func: Any) -> None:
        name = func._schema.name.removeprefix("aten::").strip("_")
        where = self._module_now(torch._C._current_autograd_node()) or "the model itself"
        self.trace.bounds.setdefault(f"{name} in {where}")

    def _guess(self, tensor: torch.Tensor) -> Any:
        """Return a value for a model that reads one: none is known, so the usual one is assumed."""
        if tensor.is_floating_point():
            # The step of an optimizer, a norm: no size depends on them. Not 1, whose difference to 1 is divided by.
            return 1.5
        known = self._whole_numbers.get(tensor.untyped_storage()._cdata)
        if known is not None:
            return known
        if tensor.dtype is not torch.bool:
            raise ValueReadError(f"{self._modules[-1] or 'it'} reads a value of a {str(tensor.dtype)[6:]} tensor")
        tested, asked = self._last_test
        if tested is None or tested() is not tensor:
            return False
        return self._masks_hide_tokens if asked == "aten::any" else not self._masks_hide_tokens


def _is_whole(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype is torch.int64


def _dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that take memory: a sparse gradient is two."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,)


def _grouped_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    # The fake kernel takes only bfloat16; CUDA's takes the others too.
    made = aten._grouped_mm.default(first.to(torch.bfloat16), second.to(torch.bfloat16), *args, **kwargs)
    return made.to(first.dtype)  # type: ignore[no-any-return]


def _clone(tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    # The fake kernel forgets how many rows a sparse tensor has.
    if tensor.layout is not torch.sparse_coo:
        return aten.clone.default(tensor, **kwargs)  # type: ignore[no-any-return]
    indices, values = (part.clone() for part in _dense_parts(tensor))
    return aten._sparse_coo_tensor_with_dims_and_tensors.default(  # type: ignore[no-any-return]
        tensor.sparse_dim(),
        tensor.dense_dim(),
        tensor.shape,
        indices,
        values,
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=tensor.device,
    )


BETTER_THAN_FAKE: dict[Any, Callable[..., torch.Tensor]] = {aten.clone.default: _clone}
if HAS_GROUPED_PRODUCTS:
    BETTER_THAN_FAKE[aten._grouped_mm.default] = _grouped_product


class ValueReadError(Exception):
    """A model branches on a value that only a real run knows."""


PACKING = aten._pack_padded_sequence.default
READS_OF_VALUES = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default}
TESTS_OF_MASKS = {aten.all.default, aten.any.default, aten.eq.Scalar}
MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
}
