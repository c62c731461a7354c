"""Find out how the script of this process ends, for runs that the script does not close itself.

When the interpreter exits, it keeps an uncaught exception (`sys.last_value`), but neither a SystemExit nor its code. So
`sys.exit`, `exit` and `quit` note their code while a run is open. Once the script's outermost frame has ended, it shows
whether it returned or was unwound: a SystemExit that was caught ended nothing. No hook and no signal handler is
installed, so those of the script work as before.
"""

from __future__ import annotations

import atexit
import builtins
import dis
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from vario.core.process.ending import CRASHED, FINISHED, INTERRUPTED, ending
from vario.core.text import reason
from vario.training.children import at_end_of_child, is_child

UNKNOWN_CODE = "SystemExit: exit code unknown"
THREAD_ENDED = "the thread that trained ended with an exception"

Close = Callable[[str, "str | None"], None]

_codes: dict[int, tuple[object, str | None]] = {}
"""Exit code, and the exception being handled, of the latest call of `sys.exit` and the like, by thread."""
_undo: list[Callable[[], None]] = []
_open: set[Leaving] = set()


def close_all(error: BaseException | None) -> None:
    """Close all runs of this process: its script has ended with this exception, or with none."""
    for one in list(_open):
        one.close(error)


class Leaving:
    """Closes a run when its process ends, and records how it ended."""

    def __init__(self, close: Close) -> None:
        self._close = close
        self._process = os.getpid()
        self._script = _outermost(_frame_of(threading.main_thread()))
        self._thread, self._thread_frame = threading.get_ident(), _thread_frame()
        self._old_error = getattr(sys, "last_value", None)
        _note_codes()
        _codes.pop(self._thread, None)
        _open.add(self)
        atexit.register(self._at_exit)
        self._forget_child = at_end_of_child(self.close) if is_child() else None

    def cancel(self) -> None:
        """Stop watching for the end: the run is closed."""
        atexit.unregister(self._at_exit)
        if self._forget_child is not None:
            self._forget_child()
        self._script = self._thread_frame = None
        _open.discard(self)
        if not _open:
            _note_no_codes()

    def trained(self, _: float) -> None:
        """Forget earlier exceptions: a step has ended since, so they did not end training."""
        here = threading.get_ident()
        if here != self._thread:
            self._thread, self._thread_frame = here, _thread_frame()
        _codes.pop(here, None)
        self._old_error = getattr(sys, "last_value", None)

    def close(self, error: BaseException | None) -> None:
        """Close the run: the script has ended with this exception, or with none."""
        self._close_as(ending(error))

    def _at_exit(self) -> None:
        if os.getpid() == self._process:
            self._close_as(self._of_script())

    def _close_as(self, found: tuple[str, str | None]) -> None:
        # A script that ended well may have lost its training thread.
        self._close(*(found if found[0] != FINISHED else _of_thread(self._thread, self._thread_frame)))

    def _of_script(self) -> tuple[str, str | None]:
        error = getattr(sys, "last_value", None)
        if error is self._old_error:
            error = None
        was_unwound = _was_unwound(self._script)
        if error is not None and (was_unwound is not False or _is_interactive()):
            return ending(error)
        known = _codes.get(threading.main_thread().ident or 0)
        if was_unwound is False or (was_unwound is None and known is None):
            return FINISHED, None
        if known is not None:
            return _of_code(*known)
        assert self._script is not None
        return _of_last_statement(self._script)


def _of_code(code: object, cause: str | None) -> tuple[str, str | None]:
    state, error = ending(SystemExit(code))
    return state, f"{error}, after {cause}" if state == CRASHED and cause is not None else error


def _of_thread(thread: int, frame: FrameType | None) -> tuple[str, str | None]:
    """Return how the training thread ended, if that is not the main thread."""
    if frame is None or not _was_unwound(frame):
        return FINISHED, None
    return _of_code(*_codes[thread]) if thread in _codes else (CRASHED, THREAD_ENDED)


def _of_last_statement(script: FrameType) -> tuple[str, str | None]:
    """Return the exit code of a SystemExit that was raised by name.

    The script's own last statement may show the code. If it is computed, as in `raise SystemExit(main())`, the script's
    functions have returned. A SystemExit raised inside them ended them early.
    """
    before = [one for one in dis.get_instructions(script.f_code) if one.offset <= script.f_lasti]
    said = [(one.opname, one.argval) for one in before if one.opname not in ("PRECALL", "PUSH_NULL")]
    if said[-1:] != [("RAISE_VARARGS", 1)] or len(said) < 3:
        return INTERRUPTED, UNKNOWN_CODE
    (given, code), (made, name) = said[-3:-1]
    if made.startswith("CALL"):
        return ending(SystemExit(code)) if given in ("LOAD_CONST", "LOAD_SMALL_INT") else (FINISHED, None)
    return (FINISHED, None) if name == "SystemExit" else (INTERRUPTED, UNKNOWN_CODE)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or hasattr(builtins, "get_ipython")


# The outermost frames


def _frame_of(thread: threading.Thread) -> FrameType | None:
    if thread is threading.current_thread():
        return sys._getframe(1)
    return None if thread.ident is None else sys._current_frames().get(thread.ident)


def _outermost(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _thread_frame() -> FrameType | None:
    """Return the outermost frame of this thread; None in the main thread and in threads that Python did not start."""
    starts: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    frame: FrameType | None = sys._getframe(1)
    if threading.current_thread() is threading.main_thread():
        return None
    while frame is not None and (frame.f_back is None or frame.f_back.f_code is not starts.__code__):
        frame = frame.f_back
    return frame


def _was_unwound(frame: FrameType | None) -> bool | None:
    """Whether an exception ended this frame; None if it still runs, or if this Python does not show it."""
    if frame is None or not _frames_tell() or any(_runs(frame, top) for top in sys._current_frames().values()):
        return None
    return _was_left_by_exception(frame)


def _runs(frame: FrameType, top: FrameType | None) -> bool:
    while top is not None and top is not frame:
        top = top.f_back
    return top is frame


def _was_left_by_exception(frame: FrameType) -> bool:
    code = frame.f_code.co_code
    return not 0 <= frame.f_lasti < len(code) or not dis.opname[code[frame.f_lasti]].startswith("RETURN_")


@functools.cache
def _frames_tell() -> bool:
    """Whether frames of this Python show how they ended. Found out by a trial, since it is undocumented."""
    frames = []

    def leave(well: bool) -> None:
        frames.append(sys._getframe())
        if not well:
            raise KeyError

    leave(True)
    try:
        leave(False)
    except KeyError:
        return [_was_left_by_exception(frame) for frame in frames] == [False, True]
    return False


# Exit codes


def _note_codes() -> None:
    if _undo:
        return
    original = sys.exit
    # A script may have imported it by name.
    names = [name for name, value in vars(sys.modules["__main__"]).items() if value is original]
    noting = _noting(original, 0)
    for owner, name in [(sys, "exit"), *((sys.modules["__main__"], name) for name in names)]:
        _replace(owner, name, noting)
    for quitter in {type(getattr(builtins, name, None)) for name in ("exit", "quit")}:
        if quitter.__module__ == "_sitebuiltins":
            _replace(quitter, "__call__", _noting(quitter.__call__, 1))


def _note_no_codes() -> None:
    while _undo:
        _undo.pop()()
    _codes.clear()


def _noting(leave: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return the same call, which notes its exit code: the argument at this position, if given."""

    @functools.wraps(leave)
    def noting(*args: Any, **kwargs: Any) -> Any:
        code = kwargs.get("code", args[place] if len(args) > place else None)
        handled = sys.exc_info()[1]
        _codes[threading.get_ident()] = code, None if handled is None else reason(handled)
        return leave(*args, **kwargs)

    return noting


def _replace(owner: Any, name: str, call: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    def undo() -> None:
        if getattr(owner, name, None) is call:
            setattr(owner, name, original)

    setattr(owner, name, call)
    _undo.append(undo)
