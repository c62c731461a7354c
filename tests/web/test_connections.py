"""Slow, half and very many requests: whoever asks properly is answered."""

import logging
import socket
from contextlib import ExitStack

import pytest

from vario.core.errors import ConfigError
from vario.web.live import streams as live_streams
from vario.web.server import connections
from vario.web.server.connections import RareRecords, limited
from vario.web.server.security import host_name, make_token


@pytest.fixture
def hasty(monkeypatch):
    """A server that waits for a request for a moment only."""
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)


def opened(client, raw=b""):
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    connection.sendall(raw)
    return connection


def ended(connection):
    """Waits until the server has closed a connection; gives what it said."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    "raw",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n", b"G"],
    ids=["nothing", "line", "header", "empty", "letter"],
)
def test_a_request_that_does_not_come_in_time_is_given_up(serve, folder, hasty, raw):
    with serve(folder) as client, opened(client, raw) as connection:
        assert b"200" not in ended(connection)


def test_a_body_that_never_ends_is_given_up_after_the_answer(serve, folder, hasty):
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx"
    with serve(folder) as client, opened(client, ask) as connection:
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"x")
        ended(connection)


def test_very_many_half_requests_keep_nobody_from_an_answer(serve, folder):
    with serve(folder, http=limited(40, 32)) as client, ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(opened(client, b"GET / HT"))
        for _ in range(3):
            assert client.ask("/healthz").status == 200
        assert client.get("/api/runs")["runs"]


def test_a_client_whose_connections_are_all_in_use_is_refused_and_others_are_not_pushed_out(serve, folder):
    with serve(folder, http=limited(40, 3)) as client, ExitStack() as stack:
        ask = b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = [stack.enter_context(opened(client, ask)) for _ in range(3)]
        assert all(b"200" in connection.recv(12) for connection in streams)
        with opened(client, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as fourth:
            assert ended(fourth) == b""
        assert client.streams.num_open == 3


def test_the_limit_on_streams_counts_before_it_accepts(serve, folder, monkeypatch):
    monkeypatch.setattr(live_streams, "MOST_STREAMS", 8)
    with serve(folder) as client, ExitStack() as stack:
        ask = b"GET /api/live?run=healthy&quantity=gradient HTTP/1.1\r\nHost: localhost\r\n\r\n"
        asked = [stack.enter_context(opened(client)) for _ in range(40)]
        for connection in asked:
            connection.sendall(ask)
        answers = [connection.recv(12)[-3:] for connection in asked]
        assert answers.count(b"429") == 40 - 8
        assert answers.count(b"200") == 8


def test_a_stream_that_cannot_be_opened_gives_its_place_back(serve, folder):
    with serve(folder) as client:
        for _ in range(3):
            client.refused("/api/live", status=404, run="nowhere")
            client.refused("/api/live", run="healthy", quantity="nothing")
        assert client.streams.num_open == 0


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 256, "%00", "%0a", "%2e%2e", "..%2findex.html"])
def test_odd_assets_are_not_there(client, name):
    assert client.ask(f"/assets/{name}").status == 404


LOOKALIKES = ("[::1].evil.com", "localhost:x.evil.com", "localhost:80:80", "[::1", "localhost@evil.com", "evil.com", "")
LOOKALIKES += ("localhost.", "127.0.0.1.evil.com", "[127.0.0.1]evil", "localhost:", "localhost:999999")


@pytest.mark.parametrize("host", LOOKALIKES)
def test_a_host_that_only_looks_like_loopback_is_refused(client, host):
    assert client.ask("/healthz", headers={"Host": host}).status in (400, 403)


@pytest.mark.parametrize(("host", "name"), [("LocalHost:80", "localhost"), ("[::1]:8765", "::1"), ("[::1]", "::1")])
def test_names_of_loopback_are_known_with_and_without_a_port(host, name):
    assert host_name(host) == name


@pytest.mark.parametrize("weak", ["a", "secret", "password1234", "a" * 64, "abcabcabcabcabcabcabcabcabcabc"])
def test_a_fixed_token_that_others_could_guess_is_refused_off_loopback(weak):
    assert make_token(weak) == weak
    with pytest.raises(ConfigError, match="VARIO_TOKEN: too easy to guess"):
        make_token(weak, is_private=False)
    strong = make_token()
    assert make_token(strong, is_private=False) == strong


def test_errors_are_logged_at_a_bounded_rate():
    rare = RareRecords(most=3, seconds=1e9)
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "bad request", (), None)
    assert [rare.filter(record) for _ in range(6)] == [True] * 3 + [False] * 3
    again = RareRecords(most=1, seconds=0.0)
    assert all(again.filter(record) for _ in range(3))
