"""Starting programs as users do: in a process of its own, or, faster, as a copy of one that has imported torch.

Tests whose point is the start itself, such as what is imported when, signals or the launcher, start processes afresh.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess
from typing import IO, Any, ClassVar

from warm_process import LONGEST_MESSAGE_BYTES

LIMIT_SECONDS = 600
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}

MINDSPORE_ENVIRONMENT = {
    "VARIO_OVERHEAD": "off",
    "VARIO_MACHINE": "off",
    "GLOG_v": "3",  # its log has a line for each deprecated part of itself that it imports
    # The threads of its pipeline wait busily, which costs more than tiny trainings. 0 where they are the point.
    "MS_DEV_LAUNCH_BLOCKING": "1",
}

Start = Callable[[Sequence[str], Path], int]
"""Runs `python WORDS` in a folder, leaves stdout.txt and stderr.txt there, and answers with the exit code."""


def start_afresh(words: Sequence[str], folder: Path) -> int:
    """A process of its own, as users start it."""
    with open(folder / "stdout.txt", "w") as out, open(folder / "stderr.txt", "w") as err:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdout=out,
            stderr=err,
            timeout=LIMIT_SECONDS,
        ).returncode


def start_warm(words: Sequence[str], folder: Path) -> int:
    """The same as a copy of a process that has imported torch."""
    with open(folder / "stdout.txt", "w") as out, open(folder / "stderr.txt", "w") as err:
        return Process(words, cwd=folder, env={**os.environ, **ENVIRONMENT}, stdout=out, stderr=err).wait()


def run_afresh(words: Sequence[str | Path], **options: Any) -> CompletedProcess[str]:
    """`python WORDS` in a process of its own, with what it wrote."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, **options)


def run_warm(words: Sequence[str | Path], **options: Any) -> CompletedProcess[str]:
    """The same as a copy of a process that has imported torch."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = Process(words, stdout=out, stderr=err, **options).wait()
        return CompletedProcess(list(words), code, _written(out), _written(err))


def run_ranks(
    words: Sequence[str | Path], ranks: int = 2, env: Mapping[str, str] | None = None, **options: Any
) -> CompletedProcess[str]:
    """What `torchrun --standalone --nproc-per-node RANKS WORDS` does, with ranks that are copies of a warm process.

    As there, the ranks meet at a store of their launcher, and when one of them fails the others are told to end.
    """
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {
        "OMP_NUM_THREADS": "1",
        **(os.environ if env is None else env),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks)),
        **dict.fromkeys(("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), "0"),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
    }
    with tempfile.TemporaryFile("a+") as out, tempfile.TemporaryFile("a+") as err:
        started = [
            Process(
                words,
                env={**shared, **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))},
                stdout=out,
                stderr=err,
                **options,
            )
            for rank in range(ranks)
        ]
        code = _wait_for_all(started)
        return CompletedProcess(list(words), code, _written(out), _written(err))


def _wait_for_all(started: Sequence[Process]) -> int:
    """The exit code of the first that failed, or zero."""
    going, first, told = list(started), 0, 0.0
    while going:
        select.select([process.reply for process in going], [], [], 1.0)
        for process in [process for process in going if process.poll() is not None]:
            going.remove(process)
            if process.returncode and not first:
                first, told = process.returncode, time.monotonic()
                for other in going:
                    other.send_signal(signal.SIGTERM)
        if first and time.monotonic() - told > 30:
            for other in going:
                other.kill()
    return first


def _written(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class Process:
    """`python WORDS` as a copy of a warm process, with as much of a Popen as tests need.

    `ready` names further modules that the program would import, and that take long.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        ready: Sequence[str] = (),
        stdin: int | IO[Any] | None = DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        asked = {"words": [*map(str, words)], "folder": str(cwd or os.getcwd()), "environment": environment}
        theirs: list[int] = []
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        if stdin == PIPE:
            stdin, own = os.pipe()
            theirs.append(stdin)
            self.stdin = os.fdopen(own, "w")
        if stdout == PIPE:
            own, stdout = os.pipe()
            theirs.append(stdout)
            self.stdout = os.fdopen(own)
        if stderr == PIPE:
            own, stderr = os.pipe()
            theirs.append(stderr)
            self.stderr = os.fdopen(own)
        if DEVNULL in (stdin, stdout, stderr):
            theirs.append(os.open(os.devnull, os.O_RDWR))
        given = [stdin, stdout, stdout if stderr == STDOUT else stderr]
        files = [_number(file, usual, theirs) for usual, file in enumerate(given)]
        try:
            self.pid, self.reply = _Warm.with_modules(ready, environment).ask(asked, files)
        finally:
            for number in theirs:
                os.close(number)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None and select.select([self.reply], [], [], 0)[0]:
            status = self.reply.readline()
            self.reply.close()
            self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode

    def wait(self, timeout: float = LIMIT_SECONDS) -> int:
        """The exit code; a program that takes longer than this is killed."""
        if self.returncode is None and not select.select([self.reply], [], [], timeout)[0]:
            self.kill()
            raise subprocess.TimeoutExpired("a copy of a warm process", timeout)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, text: str = "", timeout: float = LIMIT_SECONDS) -> tuple[str | None, str | None]:
        """Give it this to read; what it writes until it ends, of what goes through pipes."""
        if self.stdin is not None:
            self.stdin.write(text)
            self.stdin.close()
        found: dict[IO[str], str] = {}

        def read(pipe: IO[str]) -> None:
            found[pipe] = pipe.read()

        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [threading.Thread(target=read, args=(pipe,), daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        for pipe in pipes:
            pipe.close()
        return tuple(None if pipe is None else found[pipe] for pipe in (self.stdout, self.stderr))  # type: ignore[return-value]

    def send_signal(self, number: int) -> None:
        """To that process, if it is there still."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def _number(file: int | IO[Any] | None, usual: int, theirs: Sequence[int]) -> int:
    if file is None:
        return usual
    if file == DEVNULL:
        return theirs[-1]
    return file if isinstance(file, int) else file.fileno()


class _Warm:
    """A process that has imported modules and makes a copy of itself for each program; see `warm_process.py`.

    It ends with the process of the tests: nobody holds the other end of its socket then.
    """

    _started: ClassVar[dict[tuple[tuple[str, ...], str], _Warm]] = {}
    _starting = threading.RLock()

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_MESSAGE_BYTES)
        with theirs:
            if not modules:
                script = Path(__file__).with_name("warm_process.py")
                self._process = subprocess.Popen(
                    [sys.executable, str(script), str(theirs.fileno())],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            else:
                asked = {"modules": modules, "folder": os.getcwd(), "environment": dict(environment)}
                self._reply = _Warm.with_modules((), environment).ask(asked, (0, 1, 2), [theirs.fileno()])[1]

    @classmethod
    def with_modules(cls, modules: Sequence[str], environment: Mapping[str, str]) -> _Warm:
        """The one that has these, from where PYTHONPATH says they lie, on top of torch and vario."""
        key = tuple(modules), environment.get("PYTHONPATH", "") if modules else ""
        with cls._starting:
            if key not in cls._started:
                cls._started[key] = cls(key[0], environment)
            return cls._started[key]

    def ask(self, asked: Mapping[str, Any], files: Sequence[int], more: Sequence[int] = ()) -> tuple[int, IO[str]]:
        """The number of the copy's process, and where the status will be told with which it ends."""
        reading, writing = os.pipe()
        try:
            numbers = array.array("i", [*files, *more, writing])
            self._control.sendmsg(
                [json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())]
            )
        finally:
            os.close(writing)
        reply = os.fdopen(reading)
        return int(reply.readline()), reply
