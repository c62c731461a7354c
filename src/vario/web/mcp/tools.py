"""What a tool is: a name and a description that a model reads, parameters that are checked, and a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vario.core.errors import RunNotFound
from vario.core.text import suggestion
from vario.runs.run import Run
from vario.web.addresses.overview import rows_of
from vario.web.api.answers import Values
from vario.web.api.parameters import BadParameter, Parameter
from vario.web.served import Served

RUN = Parameter(
    "run", "The run, as `list_runs` names it: its path below the served folder (default: the one started last)."
)
MOST_ENTRIES = 64
"""The most entries of a list that an assistant sends."""


@dataclass(frozen=True)
class Tool:
    """One question that an assistant can ask."""

    name: str
    title: str
    doc: str
    """What it answers, for a model that has never seen vario."""
    answer: Callable[[Served, Values], Mapping[str, Any]]
    """Called with the served runs and the checked arguments."""
    parameters: tuple[Parameter, ...] = ()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of its arguments."""
        required = [parameter.name for parameter in self.parameters if parameter.is_required]
        found = {
            "type": "object",
            "properties": {parameter.name: _schema(parameter) for parameter in self.parameters},
            "additionalProperties": False,
        }
        return found | ({"required": required} if required else {})

    def read(self, given: Mapping[str, Any] | None) -> Values:
        """Return the checked arguments by name; raises for one that is unknown or cannot be used."""
        told = given or {}
        known = [parameter.name for parameter in self.parameters]
        for key in told:
            if key not in known:
                raise BadParameter(key[:40], f"unknown argument of {self.name}. {suggestion(key[:40], known)}")
        return {
            parameter.name: parameter.read(_texts(parameter, told.get(parameter.name))) for parameter in self.parameters
        }


def _schema(parameter: Parameter) -> dict[str, Any]:
    """As for the web, but with JSON's own booleans."""
    found: dict[str, Any] = dict(parameter.described()["schema"])
    if parameter.kind == "switch":
        found = {"type": "boolean", "default": bool(parameter.default)}
    return {"description": parameter.doc, **found}


def _texts(parameter: Parameter, value: Any) -> Sequence[str]:
    """JSON values as the texts that a query would have."""
    if value is None:
        return []
    if isinstance(value, list):
        if not parameter.is_repeated:
            raise BadParameter(parameter.name, "expected one value, not a list")
        return [_text(parameter, one) for one in value[: MOST_ENTRIES + 1]]
    return [_text(parameter, value)]


def _text(parameter: Parameter, value: Any) -> str:
    if isinstance(value, bool):
        if parameter.kind != "switch":
            raise BadParameter(parameter.name, f"expected {parameter.kind}, got {str(value).lower()}")
        return "1" if value else "0"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, str) and parameter.kind == "switch":
        return {"true": "1", "false": "0"}.get(value.lower(), value)
    if not isinstance(value, (str, int, float)):
        raise BadParameter(parameter.name, f"expected {parameter.kind}, got {type(value).__name__}")
    return str(value)


def open_run(served: Served, values: Values) -> tuple[str, Run]:
    """Return the name of the run that is asked about, and the run; the one started last if none is named."""
    name = values["run"]
    if not name:
        rows = rows_of(served).read()["runs"]
        if not rows:
            raise RunNotFound(f"run: there are no runs in {served.name} yet")
        name = rows[0]["run"]
    return name, served.open(name)
