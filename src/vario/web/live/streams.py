"""Live updates of a run as server-sent events: only what a page has not received, from its cursor on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from vario.core.errors import ConfigError, VarioError
from vario.core.text import suggestion
from vario.runs.run import Run
from vario.runs.views.merged_series import checked_statistic
from vario.runs.views.model_order import model_order
from vario.web import bodies
from vario.web.addresses.charts import QUANTITY, RANK_OR_EACH, SERIES, STATISTIC, read_rank, split_series
from vario.web.addresses.cursor import Cursor, read_cursor
from vario.web.addresses.overview import rows_of
from vario.web.api.answers import EVENTS, Endpoint, encode
from vario.web.api.parameters import BadParameter, Parameter
from vario.web.live.watching import MOST_CELLS, MOST_COLUMNS, Look, RunLooks, Watcher, column_list
from vario.web.reading import Readers
from vario.web.served import Served
from vario.web.server.security import refuse
from vario.web.server.users import IS_ALLOWED

BEAT_SECONDS = 15.0
MOST_STREAMS = 64
LIST = "the list of runs"
HEAD: tuple[Literal["id", "severity", "rule", "step", "place"], ...] = ("id", "severity", "rule", "step", "place")
"""The fields of an incident whose change is sent."""


class Streams:
    """The open streams of a server: one watcher per run, and one for the list."""

    def __init__(self, served: Served, readers: Readers) -> None:
        self.served = served
        self.readers = readers
        self._watchers: dict[str, tuple[Watcher, RunLooks]] = {}
        self.num_open = 0
        self.is_ending = False
        self.rows = rows_of(served)
        self.row_watcher = Watcher(LIST, self._row_cursor, readers)

    def _row_cursor(self) -> str:
        self.rows.read()
        return self.rows.cursor

    def end(self) -> None:
        """End all streams because the server stops. May be called from a signal handler."""
        self.is_ending = True
        for watcher in [self.row_watcher, *(watcher for watcher, _ in self._watchers.values())]:
            watcher.wake()

    @property
    def num_watched(self) -> int:
        """The number of runs and lists being polled."""
        return sum(watcher.is_going for watcher in (self.row_watcher, *(found for found, _ in self._watchers.values())))

    @asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[Watcher]:
        """Poll a run while any page shows it."""
        watcher, _ = self.of_run(name)
        try:
            async with watcher:
                yield watcher
        finally:
            if not watcher.is_going:
                self._watchers.pop(name, None)

    def of_run(self, name: str) -> tuple[Watcher, RunLooks]:
        """Return the watcher of a run, shared by all pages that show it."""
        if name not in self._watchers:
            looks = RunLooks(self.served, name)
            self._watchers[name] = (Watcher(name, looks.look, self.readers), looks)
        return self._watchers[name]


async def live(streams: Streams, values: Mapping[str, Any], request: Request) -> Response:
    """Open a stream."""
    if streams.num_open >= MOST_STREAMS:
        return refuse(429, f"{MOST_STREAMS} pages are already open. Close one.")
    # Count before awaiting anything: otherwise many simultaneous requests would all pass.
    streams.num_open += 1
    try:
        events = await _events(streams, values, request)
    except BaseException:
        streams.num_open -= 1
        raise
    return _Stream(streams, _while_allowed(events, request.scope.get(IS_ALLOWED, lambda: True)))


async def _while_allowed(events: AsyncGenerator[bytes, None], is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Events until the token they were asked for with is revoked; at the latest the next beat notices."""
    async with aclosing(events):
        async for event in events:
            if not is_allowed():
                return
            yield event


class _Stream(StreamingResponse):
    """An open stream; its slot is released however it ends."""

    def __init__(self, streams: Streams, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type=EVENTS, headers={"x-accel-buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.num_open -= 1


async def _events(streams: Streams, values: Mapping[str, Any], request: Request) -> AsyncGenerator[bytes, None]:
    told = request.headers.get("last-event-id") or values["cursor"]
    if values["run"] is None:
        if values["quantity"] or values["series"]:
            raise BadParameter("run", "is missing")
        return _of_list(streams, told, values["once"])
    cursor = read_cursor(told) if told else None
    page = await streams.readers.read(values["run"], _Page, streams, values, cursor)
    return page.events(values["once"])


class _Page:
    """One open stream of a run, and what its page has received."""

    def __init__(self, streams: Streams, values: Mapping[str, Any], cursor: Cursor | None) -> None:
        with streams.served.reading():
            self._prepare(streams.served.open(values["run"]), values)
        self._streams = streams
        self._name = values["run"]
        self._looks = streams.of_run(self._name)[1]
        self._cursor = cursor
        self._told: set[tuple[Any, ...]] = set()
        self._is_order_told = False

    def _prepare(self, run: Run, values: Mapping[str, Any]) -> None:
        self._quantity, self._statistic, self._rank = values["quantity"], values["statistic"], values["rank"]
        self._ranks = run.ranks if self._rank == "each" else [read_rank(self._rank, ("each",))]
        self._series = values["series"]
        for text in self._series:
            split_series(text)
        self._order: dict[str, int] = {}
        if self._quantity:
            self._learn_order(run)

    def _learn_order(self, run: Run) -> None:
        """Use the same rows in the same order as /api/heat; none if there are no rows yet."""
        recorded = run.quantities("all") if run.ranks else []
        if self._quantity in recorded:
            checked_statistic(run, self._quantity, self._statistic)
            names = model_order(run, self._quantity, run.targets(self._quantity))
            self._order = {name: at for at, name in enumerate(names)}
        elif self._quantity not in (known := [*recorded, *run.config.get("quantities", ())]):
            raise BadParameter("quantity", f"unknown '{self._quantity}'. {suggestion(self._quantity, known)}")

    async def events(self, once: bool) -> AsyncGenerator[bytes, None]:
        """Yield events until the run or the page is gone."""
        seen: Look | None = None
        async with self._streams.watching(self._name) as watcher:
            while not self._streams.is_ending:
                look = watcher.latest
                if watcher.error is not None:
                    yield _event("problem", {"error": str(watcher.error)}, None)
                    return
                if look is None or look == seen:
                    if not await watcher.news(BEAT_SECONDS):
                        yield b": beat\n\n"
                    continue
                seen = look
                try:
                    told = await self._streams.readers.read(self._name, self._news, look)
                except VarioError as error:
                    told, watcher.error = [], error
                for event in told:
                    yield event
                if look.is_over:
                    yield _event("bye", {"state": look.state}, look.cursor)
                    return
                if once:
                    return

    def _news(self, look: Look) -> list[bytes]:
        """What this page has not received yet."""
        return list(self._new_events(look))

    def _new_events(self, look: Look) -> Iterator[bytes]:
        before = self._cursor or look.cursor
        self._cursor = look.cursor
        num_columns = look.cursor.step - before.step
        is_behind = num_columns > MOST_COLUMNS or num_columns * len(self._order) > MOST_CELLS
        if not before.is_same_story(look.cursor) or is_behind:
            yield _event("reset", {}, look.cursor)
            before = look.cursor
        yield _event("progress", look.progress, look.cursor)
        if before.step < look.cursor.step:
            first, last = before.step + 1, look.cursor.step
            if self._quantity and (columns := self._columns(first, last)) is not None:
                yield _event("heat", columns, look.cursor)
            if self._series:
                yield _event("points", {"curves": list(self._points(first, last))}, look.cursor)
        heads = {tuple(found[key] for key in HEAD): found for found in look.incidents}
        if self._told or before.num_incidents != look.cursor.num_incidents:
            for head, found in heads.items():
                if head not in self._told:
                    yield _event("incident", found, look.cursor)
        self._told |= heads.keys()

    def _columns(self, first: int, last: int) -> bodies.NewColumns | None:
        rank = "all" if self._rank == "each" else self._ranks[0]
        try:
            heat = self._looks.heat(self._quantity, self._statistic, rank, first, last)
        except ConfigError:
            return None  # not recorded yet
        fresh = [name for name in heat.targets if name not in self._order]
        for name in fresh:
            self._order[name] = len(self._order)
        columns, bad = column_list(heat, self._order, len(self._order))
        found: bodies.NewColumns = {"steps": heat.last, "targets": fresh, "values": columns, "bad": bad}
        if not self._is_order_told:
            self._is_order_told = True
            found["order"] = list(self._order)
        return found

    def _points(self, first: int, last: int) -> Iterator[bodies.NewCurve]:
        for text in self._series:
            for rank in self._ranks:
                try:
                    curve = self._looks.curve(text, rank, first, last)
                except ConfigError:
                    continue  # not recorded on that rank yet
                yield {
                    "quantity": curve.quantity,
                    "target": curve.target,
                    "statistic": curve.statistic,
                    "rank": curve.rank,
                    "steps": curve.steps,
                    "values": curve.last,
                    "bad": curve.bad,
                    "times": curve.times,
                }


async def _of_list(streams: Streams, cursor: str, once: bool) -> AsyncGenerator[bytes, None]:
    async with streams.row_watcher as watcher:
        while not streams.is_ending:
            latest = watcher.latest
            if latest is not None and latest != cursor:
                news = await streams.readers.read(LIST, streams.rows.since, cursor)
                cursor = latest
                yield _event("runs", news, cursor)
            if once and latest is not None:
                return
            if not await watcher.news(BEAT_SECONDS):
                yield b": beat\n\n"


def _event(kind: str, content: Mapping[str, Any], cursor: object) -> bytes:
    number = b"" if cursor is None else b"id: " + str(cursor).encode() + b"\n"
    return b"event: " + kind.encode() + b"\n" + number + b"data: " + encode(content) + b"\n\n"


async def _streamed(*_: object) -> None:
    raise AssertionError("a stream is opened by `live`")


SOME_SERIES = Parameter(**{**vars(SERIES), "is_required": False})
LIVE = Endpoint(
    "/api/live",
    "Live updates as server-sent events, for one run or (default) for the list. Event ids are cursors.",
    _streamed,
    (
        Parameter("run", "The run (default: updates of the list of runs)."),
        Parameter("cursor", "Where to start: the cursor of /api/run or /api/runs.", default=""),
        QUANTITY,
        STATISTIC,
        RANK_OR_EACH,
        SOME_SERIES,
        Parameter("once", "1: end after the current updates, for scripts that poll.", "switch", False),
    ),
    (EVENTS,),
    bodies.LiveEvents,
    is_stream=True,
)
