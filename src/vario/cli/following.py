"""`vario follow`: polls runs, prints what is new, stores it and sends notifications."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vario.cli import output
from vario.reports.follow_text import incident_line, trouble_line, trouble_lines
from vario.rules.api.alerts import SEVERITIES, Incident
from vario.rules.api.detector import QUIET_STEPS
from vario.runs.live.run_watch import News, RunWatch
from vario.store.follow_log import WatchLog

if TYPE_CHECKING:
    from vario.notices.sending import Notices
    from vario.rules import Chosen


class Watched:
    """A run being watched, and where its findings are stored."""

    def __init__(self, path: Path, rules: Sequence[Chosen], stall_seconds: float) -> None:
        self.path = path
        self._watch = RunWatch(path, rules, stall_seconds)
        self._sessions = len(self._watch.sessions)
        self._log = self._open_log()
        self.is_over = False

    def look(self, now: float) -> News:
        """Return what is new, already stored."""
        news = self._watch.look(now)
        if len(self._watch.sessions) != self._sessions:
            self._sessions = len(self._watch.sessions)
            self._log.close()
            self._log = self._open_log()
        self._log.add(news.alerts, [*news.incidents, *news.revised])
        self.is_over = news.is_over
        return news

    def close(self) -> News:
        """Return what has not been reported yet."""
        rest = self._watch.flush()
        self._log.add([], rest)
        self._log.close()
        return News(incidents=rest)

    def _open_log(self) -> WatchLog:
        return WatchLog(self.path, [int(session["first_step"]) for session in self._watch.sessions])


class Speaker:
    """Prints news on stdout, as text or JSON lines, and sends incidents."""

    def __init__(
        self, is_json: bool, many_runs: bool, notices: Notices | None = None, tells_ranks: bool = True
    ) -> None:
        """`many_runs`: each line names its run; `tells_ranks`: also print the ranks' own incidents."""
        self._is_json = is_json
        self._many_runs = many_runs
        self._notices = notices
        self._tells_ranks = tells_ranks
        self._said: set[str] = set()
        self._told: dict[Path, list[Incident]] = {}

    def say(self, path: Path, news: News) -> None:
        """Print all news."""
        # The ranks have already sent their own.
        for incident in news.incidents:
            self._told.setdefault(path, []).append(incident)
            if self._line(path, "incident", incident.to_json(), incident_line(incident)) and self._notices is not None:
                self._notices.send(incident, path.name)
        for incident in news.told_by_ranks if self._tells_ranks else ():
            if not any(_covers(told, incident) for told in self._told.get(path, ())):
                self._line(path, "incident", incident.to_json(), incident_line(incident))
        if self._is_json:
            for trouble in news.troubles:
                self._line(path, "rank", output.plain(trouble), trouble_line(trouble), again=True)
            return
        for line in trouble_lines(news.troubles):
            self._line(path, "rank", {}, line, again=True)

    def remark(self, path: Path, event: str, text: str) -> None:
        """Print a remark about the watching itself."""
        self._line(path, event, {"text": text}, text, again=True)

    def close(self) -> None:
        """Send what is still queued."""
        if self._notices is not None:
            self._notices.close()

    def _line(self, path: Path, event: str, plain: dict[str, Any], text: str, again: bool = False) -> bool:
        line = f"{path.name}: {text}" if self._many_runs else text
        if not again and line in self._said:
            return False  # a restarted job is checked from its first step
        self._said.add(line)
        if self._is_json:
            line = json.dumps({"event": event, "run": str(path), **output.plain(plain)}, allow_nan=False)
        output.say(line)
        return True


def _covers(told: Incident, other: Incident) -> bool:
    """Whether a rank's incident is part of one over all ranks: the same steps, and no more urgent."""
    is_near = told.step - QUIET_STEPS <= other.step <= told.last_step + QUIET_STEPS
    return is_near and SEVERITIES.index(other.severity) <= SEVERITIES.index(told.severity)


def watch(
    find: Callable[[], Iterable[Path]],
    begin: Callable[[Path], Watched],
    speaker: Speaker,
    sleep: Callable[[], None],
    clock: Callable[[], float],
    once: bool = False,
    keep: bool = False,
) -> None:
    """Watch the runs that `find` returns until all have ended; with `keep` forever, with `once` check only once."""
    watched: dict[Path, Watched] = {}
    over: set[Path] = set()
    try:
        while True:
            for path in find():
                if path not in watched and path not in over:
                    watched[path] = begin(path)
            for path, run in list(watched.items()):
                speaker.say(path, run.look(clock()))
                if run.is_over and not keep:
                    speaker.say(path, watched.pop(path).close())
                    over.add(path)
            if once or (not watched and not keep):
                return
            sleep()
    except KeyboardInterrupt:
        return
    finally:
        for path, run in watched.items():
            speaker.say(path, run.close())
        speaker.close()
