"""What the sides of modules look like: how their tensors are numbered, `module_struct.json`, and call stacks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vario.backends.base import Undo
from vario.core.errors import TrainingStop
from vario.core.package import is_own_file

Struct = dict[str, dict[str, str]]


class Sides:
    """Follows the calls of modules and numbers their tensors as msprobe does."""

    def __init__(self) -> None:
        self._suffixes: dict[str, Mapping[str, str]] = {}
        self._seen: dict[str, tuple[Any, ...]] = {}
        self.version = 0
        """Changes whenever a module was called in another way than before."""

    def follow(self, modules: Mapping[str, Any]) -> Undo:
        """Hook these modules, by their names."""
        return after_each_call(modules, self._note, in_any_mode=True)

    def _note(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        length = len(output) if isinstance(output, (tuple, list)) else None
        call = (*map(type, args), *kwargs, *map(type, kwargs.values()), length)
        if self._seen.get(name) != call:
            self._seen[name] = call
            self._number(name, args, kwargs, output)
            self.version += 1

    def _number(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        paths = ["input"] if len(args) == 1 else [f"input.{index}" for index in range(len(args))]
        paths += [f"input.{key}" for key in kwargs]
        tensors = [path for path, value in zip(paths, [*args, *kwargs.values()], strict=True) if _is_tensor(value)]
        suffixes = {path: "" if len(tensors) == 1 else f"_{nth}" for nth, path in enumerate(tensors)}
        if isinstance(output, (tuple, list)):
            suffixes.update((f"output.{nth}", "" if len(output) == 1 else f"_{nth}") for nth in range(len(output)))
        self._suffixes[name] = suffixes

    def place(self, module: str, path: str, of_gradient: bool) -> tuple[str, int | None]:
        """A tensor's side with its number, as in `input_1`, and that number; a nested one keeps its whole path."""
        side, _, rest = path.partition(".")
        # Gradients are numbered as positional arguments are, values as the tensors among all arguments.
        suffix = self._suffixes.get(module, {}).get(path) if side == "output" or not of_gradient else None
        if suffix is None and rest.isdigit():
            suffix = f"_{rest}"
        if suffix is None:
            return (side + "_" + rest.replace(".", "_"), None) if rest else (side, 0)
        return side + suffix, int(suffix[1:]) if suffix else 0


class StructureSaved(TrainingStop):
    """`print_struct` has written the model's structure and stops training, as it is there for."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"print_struct: the structure of the model is in {path}. Training stops here as asked; set print_struct to "
            "false to train."
        )


class Structure:
    """Collects what every module takes and returns in its first call."""

    def __init__(self) -> None:
        self.modules: dict[str, Struct] = {}

    def follow(self, modules: Mapping[str, Any]) -> Undo:
        """Hook these modules, by their names."""
        return after_each_call(modules, self._note)

    def _note(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        if name not in self.modules:
            tensors = tuple(value for value in (*args, *kwargs.values()) if _is_tensor(value))
            self.modules[name] = {
                "input": _struct(tensors),
                "output": _struct(output),
                "input_grad": _gradient_struct(args),
                "output_grad": _gradient_struct(output if isinstance(output, (tuple, list)) else (output,)),
            }


class Stacks:
    """Collects where every module was called from, the first time."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}

    def follow(self, modules: Mapping[str, Any]) -> Undo:
        """Hook these modules, by their names."""
        return after_each_call(modules, self._note)

    def _note(self, name: str, *_: Any) -> None:
        if name not in self.modules:
            # Innermost first; what stands between a module and its caller in torch and here says nothing.
            frames = [frame for frame in reversed(traceback.extract_stack()) if not _is_plumbing(frame.filename)]
            lines = [f"File {f.filename}, line {f.lineno}, in {f.name}, \n {f.line} \n" for f in frames]
            self.modules[name] = "".join(lines)


def _is_plumbing(filename: str) -> bool:
    from torch.nn.modules import module

    return filename == module.__file__ or is_own_file(filename)


def after_each_call(modules: Mapping[str, Any], note: Callable[..., None], in_any_mode: bool = False) -> Undo:
    """Run `note(name, args, kwargs, output)` after calls of these modules, outside compiled graphs.

    Modules in evaluation mode are passed over, unless `in_any_mode`: frozen ones may stay in it while others train.
    """
    from vario.backends.torch.loop import hooks, module_hooks

    undos = hooks.Undos()
    for name, module in modules.items():

        def after(module: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            is_of_interest = in_any_mode or module.training
            if is_of_interest and hooks.current_backward() == -1:
                note(name, args, kwargs, output)

        undos.add(module_hooks.after_forward(module, after))
    return undos


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _struct(value: Any) -> dict[str, str]:
    if _is_tensor(value):
        return {"config": "tensor", "tensor": _form(value)}
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        items = {str(nth): _form(item) if _is_tensor(item) else str(type(item)) for nth, item in enumerate(value)}
        return {"config": f"{kind}[{len(value)}]", **items}
    return {"config": str(type(value))}


def _gradient_struct(values: Any) -> dict[str, str]:
    """The gradients of these: autograd gives each the shape and dtype of its tensor, and none to what needs none."""
    return _struct(tuple(value if _is_tensor(value) and value.requires_grad else None for value in values))


def _form(tensor: Any) -> str:
    return f"size={tuple(tensor.shape)}, dtype={tensor.dtype}"
