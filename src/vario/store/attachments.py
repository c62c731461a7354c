"""Write figures and tables beside a run's rows."""

from __future__ import annotations

import os
from pathlib import Path

from vario.core.attachments import FILE, MOST_BYTES, MOST_FILES, MOST_OF_KIND, Attachment, file_name
from vario.core.errors import ConfigError
from vario.core.run_files import entries_of, no_links
from vario.core.run_format import ATTACHMENT_LINES, ATTACHMENTS
from vario.core.text import size
from vario.store.line_files import LineFile


class AttachmentFolder:
    """`<run>/rank<k>/attachments`, and the lines that say what is in it."""

    def __init__(self, rank_folder: Path) -> None:
        """Those of earlier sessions count as well."""
        self._folder = rank_folder / ATTACHMENTS
        self._lines = LineFile(rank_folder / ATTACHMENT_LINES)
        self._last = self._num_files = self._num_bytes = 0
        try:
            with entries_of(self._folder, 2) as entries:
                for entry in entries:
                    if FILE.fullmatch(entry.name):
                        self._num_files += 1
                        self._num_bytes += entry.stat(follow_symlinks=False).st_size
                        self._last = max(self._last, int(entry.name[:6]))
        except (FileNotFoundError, NotADirectoryError):
            pass

    def add(self, kind: str, name: str, step: int, time: float, content: bytes) -> Attachment:
        """Keep one; raises ConfigError if it does not fit."""
        if len(content) > MOST_OF_KIND[kind]:
            raise ConfigError(f"the {kind} has {size(len(content))}; the limit is {size(MOST_OF_KIND[kind])}")
        if self._num_files >= MOST_FILES or self._num_bytes + len(content) > MOST_BYTES:
            raise ConfigError(f"at most {MOST_FILES:,} figures and tables are kept, {size(MOST_BYTES)} in all")
        self._last += 1
        found = Attachment(kind, name, step, time, file_name(self._last, kind, name), len(content))
        self._folder.mkdir(parents=True, exist_ok=True)
        half = self._folder / f".{found.file}.tmp"
        with open(half, "wb", opener=no_links) as file:
            file.write(content)
        os.replace(half, self._folder / found.file)
        self._num_files += 1
        self._num_bytes += len(content)
        self._lines.append(found.to_json())
        self._lines.close()
        return found
