"""A folder of this machine, also one that is mounted from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from vario.core.run_files import entries_of, no_links, open_file
from vario.remote.places import MOST_DEPTH, MOST_FILES, MOST_NAMES, Entry, check_count, told


class Folder:
    """A local folder. Links inside it are not followed."""

    can_append = True
    num_parallel = 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

    def listed(self, folder: str, most: int = MOST_NAMES) -> dict[str, Entry]:
        """Return what is directly in a folder."""
        found = {}
        depth = len(folder.split("/")) if folder else 0
        try:
            with told(self.url), entries_of(self.path / folder, depth) as entries:
                for entry in entries:
                    if (one := _entry(entry)) is not None:
                        found[entry.name] = one
                        check_count(self.url, len(found), most)
        except FileNotFoundError:
            return {}
        return found

    def tree(self, folder: str, most: int = MOST_FILES) -> dict[str, Entry]:
        """Return the files below a folder."""
        found: dict[str, Entry] = {}
        waiting = [("", 1)]
        while waiting:
            above, depth = waiting.pop()
            inside = "/".join(filter(None, (folder, above.rstrip("/"))))
            for name, entry in self.listed(inside, most).items():
                if not entry.is_folder:
                    found[above + name] = entry
                elif depth < MOST_DEPTH and not name.startswith("."):
                    waiting.append((f"{above}{name}/", depth + 1))
            check_count(self.url, len(found) + len(waiting), most)
        return found

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a range of bytes."""
        with told(self.url), open_file(self.path / name, len(name.split("/"))) as file:
            file.seek(start)
            return file.read() if end is None else file.read(end - start)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file."""
        with told(self.url):
            path = self._made(name)
            unfinished = path.with_name(f".{path.name}.tmp")
            with open(unfinished, "wb", opener=no_links) as file:
                file.write(content)
            os.replace(unfinished, path)

    def append(self, name: str, at: int, content: bytes) -> None:
        """Write at a place of a file, which ends after that."""
        with told(self.url):
            descriptor = no_links(str(self._made(name)), os.O_WRONLY | os.O_CREAT)
            try:
                os.ftruncate(descriptor, at)
                with open(descriptor, "wb", closefd=False) as file:
                    file.seek(at)
                    file.write(content)
            finally:
                os.close(descriptor)

    def rename(self, name: str, new: str) -> None:
        """Rename a file."""
        with told(self.url):
            os.replace(self.path / name, self.path / new)

    def remove(self, name: str) -> None:
        """Delete a file."""
        with told(self.url):
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _made(self, name: str) -> Path:
        path = self.path / name
        os.makedirs(path.parent, exist_ok=True)
        return path


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    try:
        if entry.is_symlink():
            return None
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return None  # gone in the meantime
    tag = f"{found.st_ino} {found.st_mtime_ns}"
    return Entry(found.st_size, tag, found.st_mtime, entry.is_dir(follow_symlinks=False))
