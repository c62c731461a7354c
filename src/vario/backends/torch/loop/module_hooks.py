"""Hooks on modules: one function per purpose for all modules, and no trace of them in a copy of the model.

A compiler that traces a hook guards everything the hook refers to. So torch gets plain functions without state: what
they run is in a table here, by module, and what compiled graphs need is an attribute of the module.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch import releases
from vario.backends.torch.loop import patching
from vario.core.process import last_guard

ATTRIBUTE = "_vario_"
"""Prefix of our attributes on modules; copies and pickles of a module leave them out."""

Hook = Callable[..., None]
"""What torch gets: a function of a module and its arguments."""

_calls: dict[tuple[Hook, int], list[Callable[..., None]]] = {}
_hooks: dict[Hook, int] = {}
"""Each of our hooks, and its key in the tables of every module."""


def module_hook(hook: Hook) -> Hook:
    """Mark a function as one of our hooks. It has no state and calls `tell` to run what a module registered."""
    releases.run_eagerly(hook)
    _hooks[hook] = -1 - len(_hooks)
    return hook


def key_of(hook: Hook) -> int:
    """Return the key of one of our hooks in a module's tables."""
    return _hooks[hook]


@releases.outside_compilers
def tell(hook: Hook, module: torch.nn.Module, *values: Any) -> None:
    """Run what is registered for this hook of this module."""
    # While TorchScript traces, anything computed here would become part of the traced model.
    if torch._C._get_tracing_state() is not None:
        return
    # Removed while torch was about to call it, by a Monitor that gave way to the next in an earlier hook. By then torch
    # has its list of hooks, but no longer knows that this one wants keyword arguments.
    if len(values) < 2:
        return
    try:
        for call in tuple(_calls.get((hook, id(module)), ())):
            call(module, *values)
    except Exception as error:  # noqa: BLE001 - the failure policy
        last_guard.failed(error)


@module_hook
def _before_in_eager_code(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        tell(_before_in_eager_code, module, args, *kwargs)


@module_hook
def _after_in_eager_code(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        tell(_after_in_eager_code, module, args, kwargs, output)


def before_forward(module: torch.nn.Module, call: Callable[..., None], hook: Hook = _before_in_eager_code) -> Undo:
    """Run `call(module, args, kwargs)` before the module's forward, ahead of other hooks.

    `hook` decides what happens inside compiled graphs: by default nothing.
    """
    calls, undo = _added(
        module, call, hook, lambda: module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
    )
    calls.insert(0, call)
    return undo


def after_forward(
    module: torch.nn.Module,
    call: Callable[..., None],
    hook: Hook = _after_in_eager_code,
    even_if_it_raised: bool = False,
) -> Undo:
    """Run `call(module, args, kwargs, output)` after the module's forward; `hook` as for `before_forward`."""
    calls, undo = _added(
        module, call, hook, lambda: module.register_forward_hook(hook, with_kwargs=True, always_call=even_if_it_raised)
    )
    calls.append(call)
    return undo


_handles: dict[tuple[Hook, int], Any] = {}


def _added(
    module: torch.nn.Module, call: Callable[..., None], hook: Hook, register: Callable[[], Any]
) -> tuple[list[Callable[..., None]], Undo]:
    """Return the list of calls at a hook of a module, to add one more to, and the undo."""
    if isinstance(module, torch.jit.ScriptModule):
        return [], lambda: None  # TorchScript runs its own code and refuses hooks
    key = hook, id(module)
    if key not in _calls:
        _keep_out_of_copies(type(module))
        _calls[key] = []
        _handles[key] = _same_key_everywhere(hook, register())
    calls = _calls[key]

    def undo() -> None:
        calls.remove(call)
        if not calls:
            del _calls[key]
            _handles.pop(key).remove()
            if not _calls:
                _restore_copying()

    return calls, undo


def _same_key_everywhere(hook: Hook, handle: Any) -> Any:
    """Put a hook that is first or last in its table, and its handle, under our own key.

    torch numbers hooks across all modules, and compilers guard the numbers: each layer compiled separately would need
    its own graph, up to the limit at which torch gives up. Other hooks never have a negative number.
    """
    key = _hooks[hook]
    for table in (handle.hooks_dict_ref(), *(reference() for reference in handle.extra_dict_ref)):
        if handle.id in table:
            is_first = next(iter(table)) == handle.id
            table[key] = table.pop(handle.id)
            table.move_to_end(key, last=not is_first)
    handle.id = key
    return handle


# What copies and pickles of a module contain

_GETSTATE = "__getstate__"
_getstates: dict[type, tuple[Any, Any]] = {}
"""Classes whose `__getstate__` is ours for now: the original, if they had one, and ours."""
_undo_making: list[Undo] = []


def _keep_out_of_copies(kind: type) -> None:
    """Leave our hooks and attributes out of pickles and copies of modules of this class."""
    if not _undo_making:
        import torch.jit._recursive as scripting

        places = [(vars(scripting), "create_script_module")]
        if not releases.EXPORTS_HOOKS:
            exporting = vars(torch.export)
            places += [(exporting, name) for name in ("export", "export_for_training") if name in exporting]
        _undo_making.extend(patching.replace(*place, _without_ours_on_it) for place in places)
    for owner in kind.__mro__:
        has_own = _GETSTATE in vars(owner)
        if owner is object or owner in _getstates or not (has_own or owner is torch.nn.Module):
            continue
        original = vars(owner).get(_GETSTATE)
        ours = _getstate_without_ours(original)
        _getstates[owner] = original, ours
        setattr(owner, _GETSTATE, ours)


def _restore_copying() -> None:
    for owner, (original, ours) in _getstates.items():
        if vars(owner).get(_GETSTATE) is not ours:
            continue  # something else replaced it again
        if original is None:
            delattr(owner, _GETSTATE)
        else:
            setattr(owner, _GETSTATE, original)
    _getstates.clear()
    while _undo_making:
        _undo_making.pop()()


def _getstate_without_ours(original: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    default = getattr(object, _GETSTATE, vars)  # Python 3.10 has none, and pickles the attributes

    def __getstate__(self: Any) -> Any:
        state = default(self) if original is None else original(self)
        return without_ours(state) if isinstance(state, dict) else state

    return __getstate__


def without_ours(state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's attributes as they are without vario."""
    state = {name: value for name, value in state.items() if not name.startswith(ATTRIBUTE)}
    for table in ("_forward_pre_hooks", "_forward_hooks"):
        ours = {number for number, hook in (state.get(table) or {}).items() if any(hook is our for our in _hooks)}
        if ours:
            for name in (table, f"{table}_with_kwargs", f"{table}_always_called"):
                if name in state:
                    kept = ((number, entry) for number, entry in state[name].items() if number not in ours)
                    state[name] = OrderedDict(kept)
    return state


def _without_ours_on_it(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hide our hooks from TorchScript, which compiles hooks and attributes as parts of the model or refuses them."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        with _stripped([given for given in (*args, *kwargs.values()) if isinstance(given, torch.nn.Module)]):
            return original(*args, **kwargs)

    return make


@contextmanager
def _stripped(roots: Iterable[torch.nn.Module]) -> Iterator[None]:
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for module in (module for root in roots for module in root.modules()):
            attributes = vars(module)
            clean = without_ours(attributes)
            ours = {name: value for name, value in attributes.items() if clean.get(name) is not value}
            saved.append((attributes, ours))
            for name in ours:
                if name in clean:
                    attributes[name] = clean[name]
                else:
                    del attributes[name]
        yield
    finally:
        for attributes, ours in saved:
            attributes.update(ours)
