"""Inputs and outputs of modules: the numbering of their tensors, `module_struct.json`, and call stacks."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vario.backends.protocols.events import Undo
from vario.backends.protocols.msprobe_wishes import MsprobeSide
from vario.core.errors import TrainingStop
from vario.core.package import is_own_file

Struct = dict[str, dict[str, str]]


class Sides:
    """Follows the calls of modules and numbers their tensors as msprobe does."""

    def __init__(self, side: MsprobeSide) -> None:
        self._side = side
        self._suffixes: dict[str, Mapping[str, str]] = {}
        self._seen: dict[str, tuple[Any, ...]] = {}
        self.version = 0
        """Changes whenever a module was called in another way than before."""

    def follow(self, modules: Mapping[str, Any]) -> Undo:
        """Hook these modules, by their names."""
        return self._side.after_each_call(modules, self._note, in_any_mode=True)

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
        values = zip(paths, [*args, *kwargs.values()], strict=True)
        tensors = [path for path, value in values if self._side.is_tensor(value)]
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
    """Raised to stop training after `print_struct` has written the model's structure."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"print_struct: the structure of the model is in {path}. Training stops here as requested; set "
            "print_struct to false to train."
        )


class Structure:
    """Collects the inputs and outputs of every module's first call."""

    def __init__(self, side: MsprobeSide) -> None:
        self._side = side
        self.modules: dict[str, Struct] = {}

    def follow(self, modules: Mapping[str, Any]) -> Undo:
        """Hook these modules, by their names."""
        undos = [self._side.after_each_call(modules, self._note)]
        undos.append(self._side.after_each_backward(modules, self._note_gradients))

        def undo() -> None:
            while undos:
                undos.pop()()

        return undo

    def _note(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        if name not in self.modules:
            tensors = tuple(value for value in (*args, *kwargs.values()) if self._side.is_tensor(value))
            self.modules[name] = {"input": self._struct(tensors), "output": self._struct(output)}

    def _note_gradients(self, name: str, of_inputs: tuple[Any, ...], of_outputs: tuple[Any, ...]) -> None:
        found = self.modules.get(name)
        if found is not None and "input_grad" not in found:
            found.update(input_grad=self._struct(of_inputs), output_grad=self._struct(of_outputs))

    def _struct(self, value: Any) -> dict[str, str]:
        is_tensor = self._side.is_tensor
        if is_tensor(value):
            return {"config": "tensor", "tensor": _form(value)}
        if isinstance(value, (tuple, list)):
            kind = "list" if isinstance(value, list) else "tuple"
            items = {str(nth): _form(item) if is_tensor(item) else str(type(item)) for nth, item in enumerate(value)}
            return {"config": f"{kind}[{len(value)}]", **items}
        return {"config": str(type(value))}


class Stacks:
    """Collects where every module was called from, the first time."""

    def __init__(self, side: MsprobeSide) -> None:
        self._side = side
        self.modules: dict[str, str] = {}

    def follow(self, modules: Mapping[str, Any]) -> Undo:
        """Hook these modules, by their names."""
        return self._side.after_each_call(modules, self._note)

    def _note(self, name: str, *_: Any) -> None:
        if name not in self.modules:
            # Innermost first; skip the frames of the framework and of vario between a module and its caller.
            frames = [frame for frame in reversed(traceback.extract_stack()) if not self._is_between(frame.filename)]
            lines = [f"File {f.filename}, line {f.lineno}, in {f.name}, \n {f.line} \n" for f in frames]
            self.modules[name] = "".join(lines)

    def _is_between(self, filename: str) -> bool:
        return is_own_file(filename) or self._side.is_between_calls(filename)


def _form(tensor: Any) -> str:
    return f"size={tuple(tensor.shape)}, dtype={tensor.dtype}"
