"""Who asks, and for what they may: named tokens, names from a proxy, and what stands on a note."""

import json
import os
import stat
from contextlib import closing

import pytest
from test_serve_command import free_port, link, process, status
from web_client import serving

import made_runs
from vario.cli import main
from vario.core.errors import ConfigError
from vario.web.live import streams
from vario.web.server.users import TokenFile, make_proxy

OWN = "a-token-of-this-test"
ANN, BOB = "ann-7f3kq0zvwx51mtrc8gdh", "bob-2b9xw4cnqj60ysle3pua"
LINES = f"ann {ANN}\n\n# who left\nbob {BOB} write  # may change notes\n"


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(LINES)
    path.chmod(0o600)
    return path


@pytest.fixture
def runs(tmp_path):
    place = tmp_path / "runs"
    store = made_runs.small_parts()
    store.open(made_runs.header(place / "one"))
    store.write(made_runs.record(0, loss=1.0))
    store.close("finished", None)
    return place


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def post_note(client, headers, **changes):
    connection = client.connect()
    body = json.dumps({"run": "one", **changes})
    connection.request("POST", "/api/note", body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_a_named_token_lets_its_owner_read_and_nobody_else(runs, tokens):
    with serving(runs, token=OWN, tokens=TokenFile(tokens)) as client:
        for token in (OWN, ANN, BOB):
            assert client.ask("/api/runs", headers=bearer(token)).status == 200
        for wrong in ("", ANN[:-1], ANN + "x", "ann", f"ann {ANN}"):
            assert client.ask("/api/runs", headers=bearer(wrong)).status == 401
        # As a link, it is kept in a cookie as the server's own is.
        answer = client.ask("/", token=ANN)
        assert (answer.status, answer.headers["location"]) == (303, "./")
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert cookie == f"vario_token_{client.port}={ANN}"
        assert client.ask("/api/runs", headers={"Cookie": cookie}).status == 200


def test_a_token_counts_as_long_as_its_line_is_there(runs, tokens):
    with serving(runs, token=OWN, tokens=TokenFile(tokens)) as client:
        assert client.ask("/api/runs", headers=bearer(ANN)).status == 200
        tokens.write_text(f"bob {BOB}\ncarl car-{ANN}\n")
        assert client.ask("/api/runs", headers=bearer(ANN)).status == 401
        assert client.ask("/api/runs", headers={"Cookie": f"vario_token_{client.port}={ANN}"}).status == 401
        assert client.ask("/api/runs", headers=bearer(BOB)).status == 200
        assert client.ask("/api/runs", headers=bearer(f"car-{ANN}")).status == 200
        tokens.unlink()
        assert client.ask("/api/runs", headers=bearer(BOB)).status == 401
        assert client.ask("/api/runs", headers=bearer(OWN)).status == 200


def test_a_page_that_is_open_hears_no_more_once_its_token_is_revoked(runs, tokens, monkeypatch):
    monkeypatch.setattr(streams, "BEAT_SECONDS", 0.1)
    with serving(runs, token=OWN, tokens=TokenFile(tokens)) as client, closing(client.connect()) as connection:
        connection.request("GET", "/api/live", headers=bearer(ANN))
        events = connection.getresponse()
        assert events.status == 200
        lines = iter(events.readline, b"")
        assert any(line == b": beat\n" for line in lines)
        tokens.write_text(f"bob {BOB}\n")
        assert {line.strip() for line in lines} <= {b"", b": beat"}, "and it ends"


def test_a_file_that_is_damaged_later_lets_nobody_in_and_says_so_without_a_token(runs, tokens, caplog):
    with serving(runs, token=OWN, tokens=TokenFile(tokens)) as client:
        tokens.write_text(f"ann {ANN} and more\n")
        for _ in range(3):
            assert client.ask("/api/runs", headers=bearer(ANN)).status == 401
        assert caplog.text.count("line 1: expected NAME TOKEN") == 1
        tokens.write_text(LINES)
        tokens.chmod(0o604)
        assert client.ask("/api/runs", headers=bearer(ANN)).status == 401
        assert "every user of this machine can open it" in caplog.text
    assert ANN not in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ann\n", "line 1: expected NAME TOKEN"),
        (f"\nann {ANN} owner\n", "line 2: expected NAME TOKEN"),
        ("ann short\n", "line 1: a token has at least 24"),
        ("ann aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", "10 of them different"),
        (f"ann {ANN}$\n", "letters, digits"),
        (f"ann {ANN}\nann {BOB}\n", "each name and each token may occur once"),
        (f"ann {ANN}\nbob {ANN}\n", "each name and each token may occur once"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_without_a_token_in_the_message(tokens, text, words):
    tokens.write_text(text)
    with pytest.raises(ConfigError) as raised:
        TokenFile(tokens)
    assert words in str(raised.value)
    assert ANN not in str(raised.value)


def test_only_who_may_write_changes_notes_and_their_name_is_on_them(runs, tokens):
    with serving(runs, token=OWN, tokens=TokenFile(tokens), is_writable=True) as client:
        assert post_note(client, bearer(ANN), text="mine") == (403, {"error": "ann may only read here", "key": None})
        assert post_note(client, {}, text="nobody's")[0] == 401
        assert post_note(client, bearer(BOB), text="diverges at 10k")[0] == 200
        row = client.ask("/api/runs", headers=bearer(ANN)).json["runs"][0]
        assert (row["note"], row["note_by"]) == ("diverges at 10k", "bob")
        # Who may only read is not offered to write, and whoever writes says nothing of others.
        assert client.ask("/api/runs", headers=bearer(ANN)).json["is_writable"] is False
        assert client.ask("/api/runs", headers=bearer(BOB)).json["is_writable"] is True
        assert post_note(client, bearer(BOB), by="ann")[0] == 400
        assert post_note(client, bearer(OWN), is_starred=True)[0] == 200
        row = client.ask("/api/runs", headers=bearer(OWN)).json["runs"][0]
        assert (row["note"], row["note_by"], row["is_starred"]) == ("diverges at 10k", "", True)
    with serving(runs, token=OWN, tokens=TokenFile(tokens)) as client:
        assert post_note(client, bearer(BOB), text="no")[0] == 405


def test_a_proxy_at_a_listed_address_names_who_asks(runs):
    trusted, other = make_proxy("X-Remote-User", ["127.0.0.1"]), make_proxy("X-Remote-User", ["10.0.0.0/8", "::1"])
    with serving(runs, token=OWN, proxy=trusted, is_writable=True) as client:
        ann = {"X-Remote-User": "ann@example.org"}
        assert client.ask("/api/runs", headers=ann).status == 200
        assert client.ask("/api/runs").status == 401
        assert post_note(client, ann, text="seen")[0] == 200
        assert client.ask("/api/runs", headers=ann).json["runs"][0]["note_by"] == "ann@example.org"
        for odd in ("", "   ", "x" * 101, "a\x07b"):
            assert client.ask("/api/runs", headers={"X-Remote-User": odd}).status == 401
        # The address is that of the connection, whatever it says of itself.
        assert client.ask("/api/runs", headers={**ann, "Host": "evil.example"}).status == 403
        assert client.ask("/api/runs", headers={**ann, "Origin": "http://evil.example"}).status == 403
    with serving(runs, token=OWN, proxy=other) as client:
        assert client.ask("/api/runs", headers=ann).status == 401
        assert client.ask("/api/runs", headers={**ann, "X-Forwarded-For": "10.0.0.1"}).status == 401
        assert client.ask("/api/runs", headers=bearer(OWN)).status == 200
    with serving(runs, token=OWN) as client:
        assert client.ask("/api/runs", headers=ann).status == 401


def test_two_names_are_none(runs):
    with serving(runs, token=OWN, proxy=make_proxy("X-Remote-User", ["127.0.0.1"])) as client:
        connection = client.connect()
        connection.putrequest("GET", "/api/runs")
        for name in ("ann", "bob"):
            connection.putheader("X-Remote-User", name)
        connection.endheaders()
        assert connection.getresponse().status == 401
        connection.close()


def test_behind_a_proxy_with_https_the_cookie_is_for_https_alone(runs):
    with serving(runs, token=OWN) as client:
        kept = client.ask("/", token=OWN, headers={"X-Forwarded-Proto": "https"}).headers["set-cookie"]
        assert kept.endswith("; Secure")
        assert "Secure" not in client.ask("/", token=OWN).headers["set-cookie"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--token-file", "missing"], "--token-file: missing cannot be read"),
        (["--token-file", "tokens", "--no-token"], "--token-file: with --no-token nobody needs one"),
        (["--trust-header", "X-Remote-User"], "--trust-header: needs --proxy"),
        (["--proxy", "10.0.0.1"], "--proxy: needs --trust-header"),
        (["--trust-header", "X-Remote-User", "--proxy", "example.org"], "--proxy: expected an address or a network"),
        (["--trust-header", "Cookie", "--proxy", "10.0.0.1"], "--trust-header: expected the name of a header"),
    ],
)
def test_a_wrong_option_is_named(words, text, tokens, runs, monkeypatch, capsys):
    monkeypatch.chdir(tokens.parent)
    assert main(["serve", str(runs), *words]) == 2
    assert text in capsys.readouterr().err


def test_a_server_for_a_team_as_it_is_started(runs, tokens):
    os.chmod(tokens, stat.S_IRUSR)
    more = ["--token-file", str(tokens), "--trust-header", "X-Remote-User", "--proxy", "192.0.2.0/24"]
    with process("serve", str(runs), "--port", str(free_port()), *more) as (started, text):
        host, port, _ = link(text)
        assert status(host, port, "/api/runs", bearer(ANN)) == 200
        assert status(host, port, "/api/runs", {"X-Remote-User": "ann"}) == 401
        assert status(host, port, "/api/runs") == 401
    assert ANN not in text + started.out + started.err
