"""Attention found automatically: calls of torch's own function and of the attention interfaces of transformers.

torch has no hook there, so the functions are replaced while a Monitor that wants them is attached. A replacement first
checks whether it is being compiled, and then is the original; in steps that are not recorded it is the original plus
one check. A call is named after the innermost watched module that is running, found on the call stack.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from vario.backends.protocols.events import Undo
from vario.backends.protocols.observing import Observer
from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.patching import original_of, replace
from vario.backends.torch.modules.attention_sample import AttentionCall, sampled_rows
from vario.core.process import last_guard

_NAME = "scaled_dot_product_attention"
_INTERFACES = "ALL_ATTENTION_FUNCTIONS"
_EAGER = "eager_attention_forward"
_FIRST = ("module", "query", "key", "value", "attention_mask")
_CALL_MODULE = torch.nn.Module._call_impl.__code__

_followers: list[FoundAttention] = []


class _Told(threading.local):
    number = 0


_told = _Told()
"""How many calls this thread has reported: an interface that calls torch's function inside was reported there."""


class FoundAttention:
    """Passes the numbers of all attention inside a model's modules to an observer."""

    def __init__(self, observer: Observer, is_training: Callable[[], bool], by_head: bool = False) -> None:
        """`by_head`: also a row for each head."""
        self.observer = observer
        self._by_head = by_head
        self._is_training = is_training
        self._names: dict[int, str] = {}

    def attach(self, modules: Mapping[str, torch.nn.Module], roots: Mapping[str, torch.nn.Module]) -> Undo:
        """Follow calls from inside these modules, wherever the code of the whole models may call from."""
        self._names = {id(module): name for name, module in modules.items()}
        undos = hooks.Undos()
        all_modules = [module for root in roots.values() for module in root.modules()]
        if any(map(_is_compiled, all_modules)) and not any(map(_may_attend, _outside_graphs(roots.values()))):
            # Nothing would be observed, and graphs compiled before would be recompiled for a new function.
            return undos
        _followers.append(self)
        undos.add(lambda: _followers.remove(self))
        undos.add(replace(vars(torch.nn.functional), _NAME, _sdpa))
        for namespace, key, make in _places(all_modules):
            undos.add(replace(namespace, key, make))
        return undos

    @property
    def wants(self) -> bool:
        """Whether this step is recorded and in a training pass; a recomputation for checkpointing does not count."""
        return self.observer.watching and self._is_training() and hooks.current_backward() == -1

    def came(self, module: torch.nn.Module | None, read: Callable[[], AttentionCall | None]) -> None:
        """Take a call of attention, by this module if it is known."""
        if not self.wants:
            return
        name = self._names.get(id(module)) or next((self._names[found] for found in self._running()), None)
        if name is None:
            return
        try:
            call = read()
            rows = None if call is None else sampled_rows(call, by_head=self._by_head)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.observer.failed(error)
            return
        for what, numbers in (rows or {}).items():
            self.observer.observe(f"{name}:{what}", numbers)

    def _running(self) -> Iterator[int]:
        """Yield the watched modules that are running in this thread, innermost first."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _CALL_MODULE:
                number = id(frame.f_locals["self"])
                if number in self._names:
                    yield number
            frame = frame.f_back  # type: ignore[assignment]


def _is_compiled(module: torch.nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"


def _may_attend(module: torch.nn.Module) -> bool:
    return "att" in type(module).__name__.lower()


def _outside_graphs(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    """Yield these modules and those inside them that are not compiled so far."""
    for module in modules:
        if not _is_compiled(module):
            yield module
            yield from _outside_graphs(module.children())


def _places(modules: Iterable[torch.nn.Module]) -> Iterator[tuple[dict[str, Any], str, Callable[[Any], Any]]]:
    """Yield where the code of these modules keeps attention functions: namespace, key, and the replacement's maker."""
    own = original_of(torch.nn.functional.scaled_dot_product_attention)
    sources = {base.__module__ for module in modules for base in type(module).__mro__}
    tables: dict[int, dict[str, Any]] = {}
    for source in sorted(sources):
        namespace = vars(sys.modules.get(source, object))
        if not isinstance(namespace, dict) or source.partition(".")[0] == "torch":
            continue
        for key, value in list(namespace.items()):
            if original_of(value) is own:
                yield namespace, key, _sdpa
            elif key.endswith(_EAGER) and inspect.isfunction(value):
                yield namespace, key, functools.partial(_interface, _EAGER)
        for which in ("_global_mapping", "_local_mapping"):
            table = getattr(namespace.get(_INTERFACES), which, None)
            if isinstance(table, dict):
                tables[id(table)] = table
    for table in tables.values():
        for key in [key for key, value in table.items() if inspect.isfunction(value)]:
            yield table, key, functools.partial(_interface, key)


def _sdpa(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's function, with its calls reported."""

    @functools.wraps(original)
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_wanted():
            return _call_sdpa(original, args, kwargs)
        before = _told.number
        result = _call_sdpa(original, args, kwargs)
        last_guard.safely(_tell, before, None, lambda: _read_sdpa(*args, **kwargs))
        return result

    return scaled_dot_product_attention


def _call_sdpa(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Such a mask checks that it is called from the function torch.nn.functional has under that name, which is ours now.
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    return CausalBias._dispatch(*args, **kwargs) if type(mask) is CausalBias else original(*args, **kwargs)


def _interface(key: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention function as transformers calls them, with its calls reported."""
    names = [*inspect.signature(original).parameters]

    @functools.wraps(original)
    def attention(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_wanted():
            return original(*args, **kwargs)
        before = _told.number
        result = original(*args, **kwargs)
        module = args[0] if args else None
        last_guard.safely(_tell, before, module, lambda: _read_interface(key, names, args, kwargs))
        return result

    return attention


def _is_wanted() -> bool:
    try:
        for follower in _followers:  # noqa: SIM110 - half the time that `any` takes, at every call
            if follower.observer.watching and follower.wants:
                return True
        return False
    except Exception as error:  # noqa: BLE001 - the failure policy
        last_guard.failed(error)
        return False


def _tell(before: int, module: Any, read: Callable[[], AttentionCall | None]) -> None:
    """Report a call, unless one inside it has been reported since."""
    if _told.number == before:
        _told.number += 1
        for follower in tuple(_followers):
            follower.came(module, read)


def _read_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall | None:
    if query.is_nested or key.is_nested:
        return None
    # torch aligns at the beginning: the first query sees the first key.
    last_seen = 0 if is_causal else None
    if isinstance(attn_mask, CausalBias):
        last_seen = 0 if attn_mask.variant == CausalVariant.UPPER_LEFT else key.shape[-2] - query.shape[-2]
        attn_mask = None
    return AttentionCall(query, key, scale, attn_mask, last_seen=last_seen)


def _read_interface(key: str, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall | None:
    # The first five come in this order in all of them, whatever their names.
    given = {**dict(zip([*_FIRST, *names[len(_FIRST) :]], args, strict=False)), **kwargs}
    module, query, keys = (given.get(name) for name in _FIRST[:3])
    if not isinstance(query, torch.Tensor) or not isinstance(keys, torch.Tensor):
        return None
    mask, scale = given.get("attention_mask"), given.get("scaling")
    if not isinstance(mask, (torch.Tensor, type(None))) or given.get("cu_seq_lens_q") is not None:
        return None  # made for a kernel of its own: which keys a query sees is known only by running it
    if isinstance(scale, torch.Tensor) and scale.numel() != 1:
        return None
    call = functools.partial(AttentionCall, query, keys, scale, softcap=given.get("softcap"))
    if "eager" in key or "flex" in key or (mask is not None and mask.ndim > 2):
        return call(mask=mask, bias=given.get("position_bias"))
    # Flash attention gets padding only, and hides later keys itself, aligned at the end.
    is_causal = given.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    last_seen = keys.shape[-2] - query.shape[-2] if is_causal and query.shape[-2] > 1 else None
    return call(seen_keys=mask, last_seen=last_seen, window=given.get("sliding_window"))
