"""The addresses that change something: notes on runs, the trash, and the charts of a folder. Off unless asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vario.core.errors import ConfigError, RunError
from vario.runs.files.status import is_run
from vario.runs.notes.arrangement import checked_arrangement, write_arrangement
from vario.runs.notes.keeping import move_to_trash, write_note
from vario.web import bodies
from vario.web.addresses.overlay import described_arrangement
from vario.web.api.answers import JSON, encode
from vario.web.api.parameters import BadParameter
from vario.web.live.streams import Streams
from vario.web.served import Served
from vario.web.server.security import CHARTS_PATH, NOTE_PATH, TRASH_PATH, refuse
from vario.web.server.users import OWNER, USER

MOST_BYTES = 1 << 17


def routes(streams: Streams) -> list[Route]:
    """Return the routes; they refuse everything if the server is read-only."""
    return [
        Route(NOTE_PATH, _handler(streams, _note), methods=["POST"]),
        Route(TRASH_PATH, _handler(streams, _trash), methods=["POST"]),
        Route(CHARTS_PATH, _handler(streams, _charts), methods=["POST"]),
    ]


def _handler(
    streams: Streams, change: Callable[[Served, Mapping[str, Any], str], Mapping[str, Any]]
) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        if not streams.served.is_writable:
            return refuse(403, "this server is read-only. Start it with `vario serve --no-read-only` to change notes.")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return refuse(413, f"more than {MOST_BYTES} bytes")
        by = request.scope.get(USER, OWNER).name
        told = await streams.readers.read("notes", change, streams.served, _read(body), by)
        return Response(encode(told), media_type=JSON)

    return handle


def _read(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError("expected a JSON object") from error
    if not isinstance(found, dict):
        raise ConfigError("expected a JSON object")
    return found


def _note(served: Served, told: Mapping[str, Any], by: str) -> Mapping[str, Any]:
    run = _own_folder(served, told)
    note = write_note(run, {key: value for key, value in told.items() if key != "run"}, by)
    return {"run": told["run"], "note": note}


def _trash(served: Served, told: Mapping[str, Any], by: str) -> Mapping[str, Any]:
    run = _own_folder(served, told)
    if told.get("confirm") != run.name:
        raise BadParameter("confirm", "repeat the name of the run's folder to move it to the trash")
    return {"run": told["run"], "trash": str(move_to_trash(run).relative_to(served.split(told["run"])[0]))}


def _charts(served: Served, told: Mapping[str, Any], by: str) -> bodies.StoredCharts:
    if is_run(served.folder):
        raise RunError("the served folder is a run, and charts are kept beside runs. Serve the folder above it.")
    arrangement = checked_arrangement(told)
    write_arrangement(served.folder, arrangement)
    return {"arrangement": described_arrangement(arrangement)}


def _own_folder(served: Served, told: Mapping[str, Any]) -> Path:
    """The folder of a run that lies below the served folder; what is beside it is then inside as well."""
    name = told.get("run")
    if not isinstance(name, str):
        raise BadParameter("run", "is missing")
    run = served.path_of(name)
    if any(part.startswith(".") for part in Path(name).parts if part != "."):
        raise RunError(f"'{name}' is not in the list of runs")
    if run in served.roots.values():
        raise RunError("the served folder is this run, and notes are kept beside a run. Serve the folder above it.")
    return run
