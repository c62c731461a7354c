"""Figures and tables that are kept beside a run."""

from __future__ import annotations

from typing import Literal, TypedDict

from vario.core.params import Plain


class Attachment(TypedDict):
    """One of them."""

    kind: Literal["figure", "table"]
    name: str
    step: int
    time: float
    """Unix seconds."""
    file: str
    """The name of its file in the folder `attachments` of the rank."""
    num_bytes: int
    rank: int


class Attachments(TypedDict):
    """What is kept beside a run."""

    attachments: list[Attachment]


class AttachedTable(TypedDict):
    """The content of a table."""

    columns: list[str]
    rows: list[list[Plain]]
    num_rows: int
    """How many rows the table had; only the first ones are kept."""
