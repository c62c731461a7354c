"""A real server over runs that were really trained, and a client that knows nothing of vario."""

import http.client
import json
import threading
import urllib.parse
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

import made_runs
from vario.web.app import make_app
from vario.web.server.listening import listen, server_config

SCRIPT_NAME = "<script>alert(1)<"
"""A run's name as an attacker would like it; a slash cannot be in one."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self):
        # Strict: NaN and Infinity, which Python would take, are refused.
        return json.loads(self.body, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


class Client:
    def __init__(self, port, streams):
        self.port = port
        self.streams = streams

    def connect(self, timeout=30):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, path, method="GET", headers=None, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        connection = self.connect()
        connection.request(method, f"{path}?{query}" if query else path, headers=headers or {})
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        connection.close()
        return answer

    def get(self, path, **parameters):
        """The JSON of an answer that must be a good one."""
        answer = self.ask(path, **parameters)
        assert answer.status == 200, answer.body
        return answer.json

    def refused(self, path, status=400, **parameters):
        """The JSON of an answer that must be a refusal."""
        answer = self.ask(path, **parameters)
        assert answer.status == status, answer.body
        found = answer.json
        assert set(found) == {"error", "key"}
        assert found["error"]
        return found


@contextmanager
def serving(
    folder,
    token=None,
    hosts=("localhost", "127.0.0.1"),
    root_path="",
    is_writable=False,
    tokens=None,
    proxy=None,
    **changes,
):
    """A server on a free port, in a thread; of one folder, or of several by name."""
    listening = listen("127.0.0.1", 0)
    folders = folder if isinstance(folder, dict) else Path(folder)
    app = make_app(folders, token, hosts, is_writable, tokens, proxy)
    config = server_config(app, root_path, log_level="error", timeout_graceful_shutdown=1, **changes)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.socket]})
    thread.start()
    try:
        yield Client(listening.port, config.app.state.streams)
    finally:
        config.app.state.streams.end()
        server.should_exit = True
        thread.join()
        listening.socket.close()


def write_ranks(path, world_size=2, steps=12, slow=1):
    """A job of several ranks, one of them slow and one that holds something else from step 8 on."""
    for rank in range(world_size):
        store = made_runs.small_parts()
        groups = [list(range(world_size))]
        parameters = [{"name": name, "shape": [4, 4], "dtype": "float32", "replicas": 0} for name in made_runs.NAMES]
        modules = [{"name": "root", "class": "Net"}, {"name": "head", "class": "Linear"}]
        store.open(
            made_runs.header(
                path,
                rank=rank,
                world_size=world_size,
                structure={"modules": modules, "parameters": parameters, "groups": groups},
            )
        )
        for step in range(steps):
            seconds = 0.2 if rank == slow else 0.1
            store.write(
                made_runs.record(
                    step,
                    made_runs.frame(step, rank=rank),
                    loss=1 / (1 + step),
                    forward_seconds=seconds,
                    step_seconds=0.3,
                    total_steps=24.0,
                )
            )
        store.close("finished", None)
    return path
