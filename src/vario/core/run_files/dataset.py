"""Parquet files of a run as an Arrow dataset that reads only through `open_file`."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs

from vario.core.run_files import open_file
from vario.core.run_files.mirrors import PartialFile


class _Forgotten(io.FileIO):
    """A file that Arrow releases without closing it."""

    def __del__(self) -> None:
        self.close()


class _RunFiles(pa.fs.FileSystemHandler):
    """A file system that only opens files a fixed number of levels below a run's folder."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def get_type_name(self) -> str:
        return "vario"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> Any:
        file = open_file(Path(path), self._depth)
        if isinstance(file, PartialFile):
            return pa.PythonFile(file, mode="r")
        with file:
            return pa.PythonFile(_Forgotten(os.dup(file.fileno()), "rb"), mode="r")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def get_file_info(self, paths: Sequence[str]) -> list[Any]:
        return [pa.fs.FileInfo(path, pa.fs.FileType.File) for path in paths]

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError("runs are read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse  # type: ignore[assignment]
    get_file_info_selector = delete_file = move = copy_file = _refuse  # type: ignore[assignment]
    open_output_stream = open_append_stream = _refuse  # type: ignore[assignment]


def parquet_dataset(paths: Sequence[Path], depth: int, schema: Any) -> Any:
    """Return the rows of files that have been checked; each is opened when it is scanned."""
    files = pa.fs.PyFileSystem(_RunFiles(depth))
    format_ = pa.dataset.ParquetFileFormat()
    fragments = [format_.make_fragment(str(path), files) for path in paths]
    return pa.dataset.FileSystemDataset(fragments, schema, format_, files)
