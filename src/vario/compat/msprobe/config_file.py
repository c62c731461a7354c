"""The config file during training: detects changes, and is updated when a collection has ended."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

from vario.compat.msprobe.config import MonitorConfig, read_monitor_config
from vario.core.errors import ConfigError

log = logging.getLogger("vario")


class ConfigFile:
    """The file of one TrainerMon."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"config_file_path: expected the path of a JSON file, got {type(path).__name__}")
        self.path = Path(path).expanduser().absolute()
        self._seen: tuple[int, ...] | None = None
        self._said = ""

    def read(self) -> MonitorConfig:
        """Read the current config; raises ConfigError if it is invalid."""
        return read_monitor_config(self.path)

    def read_if_changed(self) -> MonitorConfig | None:
        """Return the config if the file has changed since the last call; an invalid edit is reported once and
        ignored."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
            config = self.read()
        except (OSError, ConfigError) as error:
            if str(error) != self._said:
                self._said = str(error)
                log.error("the changed config is invalid, so the previous one stays in use: %s", error)
            return None
        self._said = ""
        return config

    def _stamp(self) -> tuple[int, ...]:
        # An editor may replace the file by one with the same time.
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def switch_off(self) -> None:
        """Write `dynamic_on: false`, unless the file is read-only or being edited."""
        try:
            stamp = self._stamp()
            # In place, to keep its permissions: others edit it as well.
            path = self.path.resolve()
            if not path.stat().st_mode & 0o222:
                log.warning("%s: read-only, so dynamic_on stays true there; nothing more is recorded", self.path)
                return
            content = json.loads(self.path.read_text(encoding="utf8"))
            content["dynamic_on"] = False
            unfinished = path.with_name(path.name + ".tmp")
            unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf8")
            shutil.copymode(path, unfinished)
            if self._stamp() != stamp:
                unfinished.unlink()
                return
            os.replace(unfinished, path)
            self._seen = self._stamp()
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s: dynamic_on could not be set to false: %s", self.path, error)
