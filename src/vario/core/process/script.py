"""Runs a script as `python` would: the same `__main__`, paths, traceback and exit code."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import threading
import zipfile
from collections.abc import Collection, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from vario.core.package import is_own_file


class ScriptRaised(BaseException):
    """Carries a script's exception past the code that formats our own errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def execute(target: str, arguments: Sequence[str], is_module: bool) -> BaseException | None:
    """Run a script or module and return the exception it raised, with a traceback that starts in the script."""
    kept = sys.argv, list(sys.path), sys.modules["__main__"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    threads = set(threading.enumerate())
    try:
        if is_module:
            _run_module(target, arguments)
        else:
            _run_file(target, arguments, main)
        _wait_for_threads(threads)
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is the answer
        return error.with_traceback(_of_script(error))
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = kept
    return None


def _wait_for_threads(earlier: Collection[threading.Thread]) -> None:
    """Do what the interpreter does before it exits: one of the threads may be training.

    Pools of threads and of processes wait for work for ever, unless they are told first that no more will come.
    """
    for call in reversed(getattr(threading, "_threading_atexits", ())):
        call()
    while started := [each for each in threading.enumerate() if each not in earlier and not each.daemon]:
        for thread in started:
            thread.join()


def _run_file(target: str, arguments: Sequence[str], main: ModuleType) -> None:
    sys.argv = [target, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path(target).resolve().parent))
    path = os.path.abspath(target)
    if zipfile.is_zipfile(path) or path.endswith(".pyc"):
        runpy.run_path(target, run_name="__main__")
        return
    vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


def _run_module(target: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-m", *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    # What `python -m` itself calls: its traceback has these frames, too.
    runpy._run_module_as_main(target)  # type: ignore[attr-defined]


def passed_on(error: BaseException) -> BaseException:
    """Return the script's exception for the interpreter to print and exit with, as it would without vario."""
    traceback, show = error.__traceback__, sys.excepthook

    def show_script(kind: type[BaseException], shown: BaseException, found: TracebackType | None) -> None:
        if shown is error:
            found = traceback  # skip the frames between the interpreter and the script
            shown = error.with_traceback(found)
        show(kind, shown, found)

    sys.excepthook = show_script
    return error


def _of_script(error: BaseException) -> TracebackType | None:
    """The traceback without our frames, except those in which our code failed."""
    frames: list[TracebackType] = []
    at = error.__traceback__
    while at is not None:
        frames.append(at)
        at = at.tb_next
    while frames and _is_ours(frames[0]):
        del frames[0]
    is_foreign = isinstance(error, KeyboardInterrupt) or (bool(frames) and not _is_ours(frames[-1]))
    kept: TracebackType | None = None
    for frame in reversed(frames):
        if not (is_foreign and _is_ours(frame)):
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _is_ours(frame: TracebackType) -> bool:
    return is_own_file(frame.tb_frame.f_code.co_filename)
