"""Every exception vario raises on purpose.

::

    VarioError
    |-- ConfigError      an option, quantity, statistic or target that cannot be used
    |-- ModelError       a model or optimizer that cannot be watched
    |-- RunError         a run folder that cannot be read or written
    |   |-- RunNotFound      nothing there, or nothing of ours
    |   |-- RunCorrupt       ours, but damaged beyond the torn tail a kill leaves
    |   |-- RunTooNew        written by a newer vario
    |   `-- RunTaken         the folder already belongs to another run
    |-- TrainingStop     the end of a training that was asked for; passes everything that guards the training
    |-- UnsupportedRelease   Python, torch or a trainer is older than what vario works with
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
    """The training ends here, as its user asked for; it passes everything that keeps errors from the training."""


class RunError(VarioError):
    """A run folder cannot be read or written."""


class RunNotFound(RunError):
    """There is no run at that place."""


class RunCorrupt(RunError):
    """The folder is a run, but a file in it cannot be understood."""


class RunTooNew(RunError):
    """The run was written in a format newer than this vario knows."""


class RunTaken(RunError):
    """The folder already belongs to another run."""


class UnsupportedRelease(VarioError):
    """Python, torch or a trainer is older than what vario works with; the message says how to upgrade."""


class MissingExtra(VarioError):
    """An optional package is missing."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'vario[{extra}]'")
        self.extra = extra
