"""`vario serve` as a person starts it: a real process, its printed link, its end."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from vario.cli import main
from vario.cli.commands.serve import SCREEN_VARIABLES
from vario.web.server.listening import FIRST_PORT, listen, listen_on_path


@contextmanager
def process(*words, lines=5, **environment):
    """A server process, once it has printed its link; ended as Ctrl-C would."""
    command = [sys.executable, "-m", "vario", *words]
    env = {**{key: value for key, value in os.environ.items() if key != "VARIO_TOKEN"}, **environment}
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
        # A shell starts what runs in the background deaf to Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield started, "".join(started.stdout.readline() for _ in range(lines))
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGINT)
        try:
            started.out, started.err = started.communicate(timeout=60)
        finally:
            started.kill()


def link(text):
    found = re.search(r"http://([\d.]+):(\d+)(/\S*)", text)
    assert found, text
    return found[1], int(found[2]), found[3]


def status(host, port, path, headers=None):
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", path, headers=headers or {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_the_printed_link_opens_it_and_ctrl_c_ends_it_cleanly(folder):
    with process("serve", str(folder), "--port", str(free_port())) as (started, text):
        host, port, path = link(text)
        assert host == "127.0.0.1"
        token = re.fullmatch(r"/\?token=([\w-]{43})", path)[1]
        assert status(host, port, "/api/runs") == 401
        assert status(host, port, path) == 303
        assert status(host, port, "/api/runs", {"Authorization": f"Bearer {token}"}) == 200
        # A stream that is open keeps nobody from ending it.
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/api/live", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 200
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=30) == 0
        connection.close()
    assert "Traceback" not in started.err
    assert started.err == ""


def test_a_folder_alone_serves_it_and_a_command_of_that_name_wins(folder, tmp_path, monkeypatch, capsys):
    with process(str(folder), "--no-token", "--port", str(free_port())) as (_, text):
        assert f"Dashboard for {folder}:" in text
        host, port, path = link(text)
        assert path == "/"
        assert status(host, port, "/api/runs") == 200
    (tmp_path / "ls").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["ls"]) == 0
    assert "No runs in vario_runs" in capsys.readouterr().err


def test_the_token_may_be_fixed_by_the_environment(folder):
    with process("serve", str(folder), "--port", str(free_port()), VARIO_TOKEN="fixed") as (_, text):
        host, port, path = link(text)
        assert path == "/?token=fixed"
        assert status(host, port, "/api/runs", {"Authorization": "Bearer fixed"}) == 200


def test_a_fixed_token_that_would_break_the_link_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VARIO_TOKEN", "a; Path=/x")
    assert main(["serve", str(tmp_path)]) == 2
    assert "VARIO_TOKEN: use only letters" in capsys.readouterr().err


def test_a_script_gets_the_link_in_one_line(folder):
    with process("serve", str(folder), "--port", "0", "--json", lines=1) as (_, text):
        found = json.loads(text)
        assert found["url"] == f"http://127.0.0.1:{found['port']}/?token={found['token']}"
        bearer = {"Authorization": f"Bearer {found['token']}"}
        assert status(found["host"], found["port"], "/api/runs", bearer) == 200


def test_a_unix_socket_is_its_owners_alone_and_goes_away_with_the_server(folder, tmp_path):
    place = tmp_path / "dashboard.sock"
    with process("serve", str(folder), "--uds", str(place), VARIO_TOKEN="fixed") as (_, text):
        assert str(place) in text
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(place))
            request = (
                "GET /api/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer fixed\r\nConnection: close\r\n\r\n"
            )
            connection.sendall(request.encode())
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
    assert not place.exists()


def test_a_prefix_is_part_of_the_link(folder):
    with process("serve", str(folder), "--no-token", "--root-path", "/vario/", "--port", str(free_port())) as (_, text):
        host, port, path = link(text)
        assert path == "/vario/"
        assert status(host, port, "/api/runs") == 200


def test_a_port_in_use_is_passed_over_unless_it_was_asked_for(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", ".", "--port", str(port)]) == 2
        assert f"--port: {port} is in use by another program" in capsys.readouterr().err
    first = listen("127.0.0.1", None)
    second = listen("127.0.0.1", None)
    try:
        assert FIRST_PORT <= first.port < second.port
        assert second.passed_over == FIRST_PORT
    finally:
        first.socket.close()
        second.socket.close()


def test_it_says_that_it_had_to_take_another_port(folder):
    with socket.socket() as taken:
        # Where it is in use already, that serves as well.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", FIRST_PORT))
            taken.listen()
        with process("serve", str(folder), "--no-token") as (started, text):
            _, port, _ = link(text)
    assert port > FIRST_PORT
    assert started.err == f"Port {FIRST_PORT} is in use; using {port}.\n"


def test_a_socket_path_is_taken_over_only_from_a_server_that_is_gone(tmp_path):
    place = tmp_path / "here.sock"
    listening = listen_on_path(place)
    with pytest.raises(Exception, match="another program listens"):
        listen_on_path(place)
    listening.socket.close()
    assert place.exists()
    listen_on_path(place).socket.close()
    (tmp_path / "text").write_text("mine")
    with pytest.raises(Exception, match="exists and is not a socket"):
        listen_on_path(tmp_path / "text")
    assert (tmp_path / "text").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--host", "0.0.0.0", "--no-token"], "--no-token: 0.0.0.0 can be reached from other machines"),
        (["--host", "192.0.2.1"], "--host: cannot listen on 192.0.2.1"),
        (["--host", "no such host"], "--host: "),
        (["--root-path", "vario"], "--root-path: expected something like /vario, got 'vario'"),
        (["--port", "70000"], "--port: expected a number from 0 (any free one) to 65535, got 70000"),
        (["--uds", "missing/here.sock"], "--uds: cannot listen on missing/here.sock"),
    ],
)
def test_what_cannot_be_served_is_refused_with_exit_code_2(words, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", ".", *words]) == 2
    assert text in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "nowhere"]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert main(["nowhere"]) == 2
    assert "unknown command 'nowhere'" in capsys.readouterr().err


def test_without_the_extra_the_error_is_its_install_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in ("starlette", "uvicorn")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("vario.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert main(["serve", "."]) == 2
    assert "pip install 'vario[web]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "has_screen", "is_opened"), [((), True, True), ((), False, False), (("--no-browser",), True, False)]
)
def test_a_browser_is_opened_at_a_terminal_with_a_screen(folder, tmp_path, words, has_screen, is_opened):
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    screen = {"BROWSER": str(browser)} if has_screen else {}
    env = {**{key: value for key, value in os.environ.items() if key not in SCREEN_VARIABLES}, **screen}
    terminal, its_end = os.openpty()
    command = [sys.executable, "-m", "vario", "serve", str(folder), "--port", "0", *words]
    with subprocess.Popen(command, stdout=its_end, stderr=its_end, env=env, start_new_session=True) as started:
        os.close(its_end)
        try:
            printed = ""
            while "Ctrl-C" not in printed:
                printed += os.read(terminal, 4096).decode()
            # It answers when it has done all it does at its start.
            assert status(*link(printed)) in (200, 303)
            until = time.monotonic() + 60
            while is_opened and not opened.exists() and time.monotonic() < until:
                time.sleep(0.02)
            assert opened.exists() == is_opened
            assert not is_opened or opened.read_text().strip() in printed.split()
        finally:
            started.terminate()
    os.close(terminal)


def test_no_browser_is_opened_where_nobody_looks(folder):
    # stdout is a pipe: a browser named here would leave its mark.
    browser = "echo opened >&2 %s"
    with process("serve", str(folder), "--port", str(free_port()), BROWSER=browser) as (started, text):
        assert "Ctrl-C" in text
    assert "opened" not in started.err
