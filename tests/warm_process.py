"""A process that has imported torch and becomes programs, a copy of itself for each: a fraction of a fresh start.

`starting.py` asks for them: one message each on the socket whose number is the first argument, with the program's three
standard files and a pipe for its number and the status with which it ended. A copy runs `words` as `python` would, or,
told the names of `modules`, imports those as well and serves a socket of its own.
"""

import array
import atexit
import builtins
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import time
import warnings
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

FIRST = (
    "torch",
    "torch._dynamo",  # what the first optimizer of a process imports
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.attention.bias",
    "numpy.ma.extras",
    "pyarrow.compute",
    "pyarrow.parquet",
    "vario.cli",
    "vario.training",
    "vario.backends.torch",
    "vario.probes",
    "vario.rules",
    "vario.sinks",
    "vario.statistics",
    "vario.store",
)
LONGEST_MESSAGE_BYTES = 1 << 20


def serve(control):
    """Make a copy of this process for each message; returns what it said and the files that came with it, in copies."""
    running = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    selector.unregister(key.fileobj)
                    _ended(key.fileobj, *running.pop(key.fileobj))
                    continue
                asked, files = _receive(control)
                if asked is None:
                    _leave(running)
                child = _fork()
                if not child:
                    for number in (control.detach(), *running, *(pipe for _, pipe in running.values())):
                        os.close(number)
                    return asked, files
                *files, pipe = files
                for number in files:
                    os.close(number)
                os.write(pipe, f"{child}\n".encode())
                waiting = os.pidfd_open(child)
                running[waiting] = child, pipe
                selector.register(waiting, selectors.EVENT_READ)


def _fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyarrow's allocator has a thread, and knows of forks
        return os.fork()


def _ended(waiting, child, pipe):
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(BrokenPipeError):  # where nobody waits for it
        os.write(pipe, f"{status}\n".encode())
    os.close(pipe)
    os.close(waiting)


def _leave(running):
    """The tests are over; nothing that they started goes on."""
    for child, _ in running.values():
        os.kill(child, signal.SIGKILL)
    os._exit(0)


def _receive(control):
    numbers = array.array("i")
    message, more, _, _ = control.recvmsg(LONGEST_MESSAGE_BYTES, socket.CMSG_SPACE(8 * numbers.itemsize))
    for _, _, content in more:
        numbers.frombytes(content)
    return (json.loads(message) if message else None), list(numbers)


def set_up(asked, files):
    """Files, folder, environment and paths as of a process that was started with them."""
    *files, pipe = files
    os.close(pipe)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    own = _paths_of_environment()
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    sys.path[:] = [*_paths_of_environment(), *(path for path in sys.path if path not in own)]
    importlib.invalidate_caches()
    straight = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = _text(1, "strict", line_buffering=False, write_through=straight)
    sys.stderr = sys.__stderr__ = _text(2, "backslashreplace", line_buffering=True, write_through=straight)
    # A job in the background of a shell is born deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return files[3:]


def _paths_of_environment():
    return [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _text(number, errors, **how):
    file = os.fdopen(number, "wb", 0 if how["write_through"] else -1, closefd=False)
    return io.TextIOWrapper(file, encoding="utf-8", errors=errors, **how)


def run_program(words):
    """What the interpreter does with these words; what the program raises goes on to it."""
    sys.excepthook = _show
    sys.orig_argv = [sys.executable, *words]
    options = [option for option in os.environ.get("PYTHONWARNINGS", "").split(",") if option]
    while words[0] == "-W":
        options.append(words[1])
        words = words[2:]
    sys.warnoptions[:] = options
    warnings._processoptions(options)
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    first, *rest = words
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), vars(main))
    elif first == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])
    else:
        path = os.path.abspath(first)
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(path).resolve().parent))
        vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))


def leave_at_once(codes):
    """The last thing that happens at exit: freeing all that was ever imported would take longer than most programs."""
    sys.stdout.flush()
    sys.stderr.flush()
    if codes:
        os._exit(codes[-1] & 0xFF)


def run_to_end(words, codes):
    """Run the program, and keep the code with which the interpreter will exit."""
    try:
        run_program(words)
        codes.append(0)
    except KeyboardInterrupt:
        raise  # which the interpreter ends by a signal
    except SystemExit as left:
        codes.append(left.code if isinstance(left.code, int) else int(left.code is not None))
        raise
    except BaseException:
        codes.append(1)
        raise


def _show(kind, error, traceback):
    """As the interpreter does, without the frames of this file."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def import_whole(name):
    """A module; of vario's packages everything in them."""
    module = importlib.import_module(name)
    if name.startswith("vario.") and hasattr(module, "__path__"):
        for found in pkgutil.walk_packages(module.__path__, name + "."):
            with contextlib.suppress(ImportError):  # as of the kernels where there is no Triton
                importlib.import_module(found.name)


def become():
    """Serve; in each copy, go on as what was asked for."""
    control, modules = socket.socket(fileno=int(sys.argv[1])), FIRST
    del sys.path[0]  # the folder of this file
    while True:
        for name in modules:
            import_whole(name)
        gc.collect()
        gc.freeze()  # else the first collection of each copy would copy all there is
        asked, files = serve(control)
        more = set_up(asked, files)
        if "words" in asked:
            return asked["words"]
        control, modules = socket.socket(fileno=more[0]), asked["modules"]


if __name__ == "__main__":
    codes: list[int] = []
    atexit.register(leave_at_once, codes)  # before all others, which are called before it then
    run_to_end(become(), codes)
