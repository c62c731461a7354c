"""The configuration file while training runs: noticed when it changes, and told when a collection has ended."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from vario.compat.msprobe.config import MonitorConfig, read_monitor_config
from vario.errors import ConfigError

log = logging.getLogger("vario")


class ConfigFile:
    """The file of one TrainerMon."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._seen: tuple[int, int] | None = None
        self._said = ""

    def read(self) -> MonitorConfig:
        """The configuration now; a ConfigError says what is wrong with it."""
        return read_monitor_config(self.path)

    def read_if_changed(self) -> MonitorConfig | None:
        """The configuration if the file has changed since the last look; a broken edit is said once and passed over."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
            config = self.read()
        except (OSError, ConfigError) as error:
            if str(error) != self._said:
                self._said = str(error)
                log.error("the changed configuration is not used, the one before stays: %s", error)
            return None
        self._said = ""
        return config

    def _stamp(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def switch_off(self) -> None:
        """Write `dynamic_on: false`, unless somebody is editing the file at this moment."""
        try:
            stamp = self._stamp()
            content = json.loads(self.path.read_text(encoding="utf8"))
            content["dynamic_on"] = False
            unfinished = self.path.with_name(self.path.name + ".tmp")
            unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf8")
            if self._stamp() != stamp:
                unfinished.unlink()
                return
            os.replace(unfinished, self.path)
            self._seen = self._stamp()
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s: dynamic_on could not be set to false: %s", self.path, error)
