"""Every exception vario raises on purpose.

::

    VarioError
    |-- ConfigError      an option, quantity, statistic or target that cannot be used
    |-- ModelError       a model or optimizer that cannot be watched
    |-- RunError         a run folder that cannot be read or written
    |   |-- RunNotFound      there is no run
    |   |-- RunCorrupt       a run, but damaged beyond the truncated end a kill leaves
    |   |-- RunTooNew        written by a newer vario
    |   |-- RunTaken         the folder already belongs to another run
    |   `-- Unreachable      where the run lies does not answer, or refuses
    |-- TrainingStop     ends the training on request; not caught by the guards around training
    |-- UnsupportedRelease   Python, torch or a trainer is too old for vario
    `-- MissingExtra     an optional package is not installed; the message is its install line
"""

from __future__ import annotations


class VarioError(Exception):
    """Base of all errors raised on purpose; the command line prints its text and exits with `exit_code`."""

    exit_code = 2


class ConfigError(VarioError):
    """An option, quantity, statistic or target pattern cannot be used."""


class ModelError(VarioError):
    """A model or an optimizer cannot be watched."""


class TrainingStop(VarioError):
    """Ends the training as the user requested; not caught by the guards that keep errors away from training."""


class RunError(VarioError):
    """A run folder cannot be read or written."""


class RunNotFound(RunError):
    """There is no run at that path."""


class RunCorrupt(RunError):
    """The folder is a run, but a file in it is damaged."""


class RunTooNew(RunError):
    """The run was written in a format newer than this vario knows."""


class RunTaken(RunError):
    """The folder already belongs to another run."""


class Unreachable(RunError):
    """Where the run lies cannot be reached, or refuses to answer."""


class UnsupportedRelease(VarioError):
    """Python, torch or a trainer is too old for vario; the message says how to upgrade."""


class MissingExtra(VarioError):
    """An optional package is missing."""

    def __init__(self, feature: str, extra: str, package: str | None = None) -> None:
        """`package`: what is missing if no extra of vario brings it."""
        needs = f"an extra: pip install 'vario[{extra}]'" if package is None else f"a package: pip install {package}"
        super().__init__(f"{feature} needs {needs}")
        self.extra = extra
