"""`vario serve s3://...`: the dashboard of runs that lie elsewhere."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

from remote_runs import begun, ship
from remote_servers import eventually

from made_runs import record
from synthetic import write_run


@contextmanager
def served(url):
    """The dashboard as a person starts it; yields a function that fetches an address."""
    words = [sys.executable, "-m", "vario", "serve", url, "--port", "0", "--json", "--no-browser"]
    environment = {**os.environ, "VARIO_TOKEN": "a-token-of-tests-1234567890"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            link = json.loads(process.stdout.readline())

            def fetch(address):
                request = urllib.request.Request(f"http://{link['host']}:{link['port']}{address}")
                request.add_header("Authorization", f"Bearer {link['token']}")
                try:
                    with urllib.request.urlopen(request, timeout=60) as answer:
                        return json.load(answer)
                except urllib.error.HTTPError as refused:
                    raise AssertionError(refused.read()) from None

            yield fetch
        finally:
            process.send_signal(signal.SIGKILL)


def test_the_dashboard_shows_runs_elsewhere_and_keeps_up_with_them(tmp_path, elsewhere):
    write_run(tmp_path / "runs" / "one")
    live = begun(tmp_path / "runs" / "live")
    live.write(record(0))
    assert ship(tmp_path / "runs", elsewhere.runs) == 0
    with served(elsewhere.runs) as fetch:
        told = fetch("/api/runs")
        assert {found["name"] for found in told["runs"]} == {"one", "live"}
        assert told["is_writable"] is False
        curve = fetch("/api/series?run=one&series=gradient%7Chead.weight%7Cnorm")
        assert [found["target"] for found in curve["curves"]] == ["head.weight"]
        for step in range(1, 30):
            live.write(record(step))
        live._write_rank()
        assert ship(tmp_path / "runs" / "live", elsewhere.runs) == 0
        eventually(lambda: fetch("/api/run?run=live")["step"] == 29)
        live.close("finished", None)
        assert ship(tmp_path / "runs" / "live", elsewhere.runs) == 0
        eventually(lambda: fetch("/api/run?run=live")["state"] == "finished")
        elsewhere.cut()
        assert fetch("/api/run?run=live")["step"] == 29, "what is kept is shown"
