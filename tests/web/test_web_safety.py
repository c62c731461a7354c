"""Who may ask, and for what: tokens, names, other sites, and paths that lead out."""

import os
import shutil
import socket
import urllib.parse

import pytest
from web_client import SCRIPT_NAME, serving

import little_trainings
from vario.web.server.security import known_hosts

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def guarded(folder):
    with serving(folder, token=TOKEN) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/api", "/api/runs", "/api/live", "/openapi.json", "/assets/x.js", "/nothing"])
def test_nothing_is_answered_without_the_token(guarded, path):
    answer = guarded.ask(path)
    assert answer.status == 401
    assert answer.json["error"].startswith("missing or wrong token")
    assert answer.headers["set-cookie"] is None


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\u00e4" * 20, "\0"])
def test_a_wrong_token_is_as_good_as_none(guarded, wrong):
    assert guarded.ask("/api/runs", token=wrong).status == 401
    given = urllib.parse.quote(wrong)
    assert guarded.ask("/api/runs", headers={"Authorization": f"Bearer {given}x"}).status == 401
    assert guarded.ask("/api/runs", headers={"Cookie": f"vario_token_{guarded.port}={given}x"}).status == 401


def test_whether_it_is_there_may_be_asked_without_the_token(guarded):
    assert guarded.ask("/healthz").body == b"ok"


def test_a_page_opened_with_the_token_keeps_it_in_a_cookie_and_out_of_its_address(guarded):
    answer = guarded.ask("/", token=TOKEN, run="healthy", series="scalar|loss|value")
    assert answer.status == 303
    assert answer.headers["location"] == "./?run=healthy&series=scalar%7Closs%7Cvalue"
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    kept = cookie.partition(";")[0]
    assert guarded.ask("/api/runs", headers={"Cookie": kept}).status == 200
    assert guarded.ask("/", headers={"Cookie": f"other=1; {kept}"}).status == 200


def test_a_script_may_send_the_token_as_a_bearer_or_in_the_address(guarded):
    assert guarded.ask("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
    answer = guarded.ask("/api/runs", token=TOKEN)
    assert answer.status == 200
    assert answer.headers["set-cookie"].startswith(f"vario_token_{guarded.port}={TOKEN};")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::2]:80"])
def test_a_name_that_is_not_this_machines_is_refused(client, host):
    """Against DNS rebinding: a page of evil.example whose name leads to 127.0.0.1."""
    answer = client.ask("/api/runs", headers={"Host": host})
    assert answer.status == 403
    assert "unknown host name" in answer.json["error"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "LOCALHOST:8765"])
def test_names_of_this_machine_are_answered(client, host):
    assert client.ask("/api/runs", headers={"Host": host}).status == 200


def test_on_loopback_only_names_of_loopback_are_known():
    assert known_hosts("127.0.0.1") == {"localhost", "127.0.0.1", "::1"}
    assert "evil.example" not in known_hosts("::1")
    assert known_hosts("0.0.0.0") is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost", "http://localhost:1"])
def test_a_page_of_another_site_is_refused(client, origin):
    assert client.ask("/api/runs", headers={"Host": "localhost:8765", "Origin": origin}).status == 403


def test_its_own_page_is_answered_and_an_embedding_site_is_not(client):
    assert client.ask("/api/runs", headers={"Host": "localhost:7", "Origin": "http://localhost:7"}).status == 200
    for site in ("cross-site", "same-site"):
        assert client.ask("/api/runs", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}).status == 403
    assert client.ask("/api/runs", headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}).status == 200
    assert client.ask("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api", "/nothing", "/api/run?run=../x", "/healthz"])
def test_every_answer_has_the_strict_headers(client, path):
    headers = client.ask(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["access-control-allow-origin"] is None
    assert headers["server"] in (None, "uvicorn")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/run?run=healthy"])
def test_only_reading_is_possible(client, method, path):
    answer = client.ask(path, method=method)
    # CONNECT with a path is refused by the HTTP layer itself.
    assert answer.status in ((405,) if method != "CONNECT" else (400, 405))


OUTSIDE = [
    "..",
    "../outside",
    "healthy/..",
    "healthy/../../outside",
    "./../outside",
    "/",
    "/etc",
    "//etc",
    "~",
    "..\\outside",
    "%2e%2e/outside",
    "..%2foutside",
    "..%252foutside",
    "healthy/../../served",
    ".../outside",
    "\u2025/outside",
    "deeper/../../outside",
    "link",
    "link/",
    "linked_parent/outside",
]


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """A served folder with a run beside it, and links to that."""
    place = tmp_path_factory.mktemp("beside")
    little_trainings.train(place / "outside", steps=3)
    little_trainings.train(place / "served" / "healthy", steps=3)
    (place / "served" / "link").symlink_to(place / "outside")
    (place / "served" / "linked_parent").symlink_to(place)
    (place / "served" / "inside").symlink_to(place / "served" / "healthy")
    return place


@pytest.fixture(scope="module")
def narrow(beside):
    with serving(beside / "served") as client:
        yield client


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("path", ["/api/run", "/api/heat", "/api/settings", "/api/live"])
def test_no_path_outside_the_served_folder_can_be_read(narrow, beside, name, path):
    for given in (name, str(beside / "outside") if name == ".." else f"{name}/"):
        found = narrow.refused(path, status=404, run=given)
        assert found["key"] == "run"
        assert str(beside) not in found["error"].replace(given, "")


def test_an_encoded_path_is_decoded_once(narrow):
    for path in ("/api/run?run=%2e%2e%2foutside", "/api/run?run=..%2Foutside", "/api/run?run=%2Fetc"):
        assert narrow.ask(path).status == 404
    assert narrow.ask("/api/run?run=%68ealthy").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/assets/%2e%2e/app.py",
        "/assets/..%5capp.py",
        "/assets/....//app.py",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "/assets/.",
        "/assets/",
        "/assets/%00",
        "/../../etc/passwd",
        "//etc/passwd",
        "/built/index.html",
    ],
)
def test_no_file_beside_the_pages_own_can_be_read(client, path):
    assert client.ask(path).status == 404


def test_a_link_that_leads_out_is_left_out_of_the_list_and_one_inside_is_the_same_run(narrow):
    found = narrow.get("/api/runs")
    assert [row["run"] for row in found["runs"]] == ["healthy"]
    assert [left["path"] for left in found["left_out"]] == ["link"]
    assert "leads out" in found["left_out"][0]["error"]
    assert narrow.get("/api/run", run="inside")["name"] == "healthy"


@pytest.mark.parametrize("inner", ["run.json", "rank0", "rank0/rank.json", "rank0/structure.json", "rank0/gradient"])
def test_a_link_inside_a_run_that_leads_out_is_refused(serve, beside, tmp_path, inner):
    shutil.copytree(beside / "served" / "healthy", tmp_path / "runs" / "run")
    target = tmp_path / "runs" / "run" / inner
    shutil.move(target, tmp_path / "secret")
    target.symlink_to(tmp_path / "secret")
    with serve(tmp_path / "runs") as client:
        for path in ("/api/run", "/api/settings", "/api/heat"):
            assert "leads out of the served folder" in client.refused(path, status=404, run="run")["error"]
        assert "leads out" in client.get("/api/runs")["left_out"][0]["error"]


def test_a_linked_part_that_leads_out_is_refused(serve, beside, tmp_path):
    shutil.copytree(beside / "served" / "healthy", tmp_path / "runs" / "run")
    part = next((tmp_path / "runs" / "run" / "rank0" / "gradient").iterdir())
    shutil.move(part, tmp_path / "secret.parquet")
    part.symlink_to(tmp_path / "secret.parquet")
    with serve(tmp_path / "runs") as client:
        assert "leads out" in client.refused("/api/heat", status=404, run="run", quantity="gradient")["error"]


def test_a_run_named_as_a_script_is_a_name_and_nothing_else(client):
    rows = client.ask("/api/runs")
    assert rows.headers["content-type"] == "application/json"
    assert SCRIPT_NAME in {row["name"] for row in rows.json["runs"]}
    assert client.get("/api/run", run=SCRIPT_NAME)["name"] == SCRIPT_NAME
    for path in ("/", "/api"):
        page = client.ask(path, run=SCRIPT_NAME) if path == "/" else client.ask(path)
        assert b"<script>alert" not in page.body
    refused = client.ask("/api/run", run="<script>alert(2)</script>")
    assert (refused.status, refused.headers["content-type"]) == (404, "application/json")


def test_serving_writes_nothing_into_a_run(serve, beside):
    def state():
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (beside / "served" / "healthy").rglob("*")
        }

    before = state()
    with serve(beside / "served") as client:
        for path in (
            "/api/run",
            "/api/heat",
            "/api/alerts",
            "/api/changes",
            "/api/model",
            "/api/ranks",
            "/api/settings",
        ):
            client.ask(path, run="healthy")
        client.ask("/api/alerts", run="healthy", replay="1")
        client.ask("/api/live", run="healthy")
        client.ask("/api/compare", a="healthy", b="healthy")
    assert state() == before


def test_a_folder_that_may_not_be_read_is_no_server_error(serve, beside, tmp_path):
    shutil.copytree(beside / "served" / "healthy", tmp_path / "runs" / "run")
    (tmp_path / "runs" / "run" / "rank0" / "structure.json").unlink()
    (tmp_path / "runs" / "run" / "rank0" / "structure.json").mkdir()
    os.mkfifo(tmp_path / "runs" / "run" / "pipe")
    with serve(tmp_path / "runs") as client:
        assert client.ask("/api/model", run="run").status == 400
        assert client.ask("/api/run", run="run").status == 200


def test_links_in_a_circle_and_names_that_are_too_long_are_no_server_error(serve, beside, tmp_path):
    shutil.copytree(beside / "served" / "healthy", tmp_path / "runs" / "run")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs" / "circle")
    (tmp_path / "runs" / "around").symlink_to(tmp_path / "runs")
    with serve(tmp_path / "runs") as client:
        assert [row["run"] for row in client.get("/api/runs")["runs"]] == ["run"]
        for name in ("circle", "around/around", "x" * 300, "x" * 1999, "run/circle"):
            assert client.ask("/api/run", run=name).status == 404, name
        (tmp_path / "runs" / "run" / "rank0" / "circle").symlink_to(tmp_path / "runs" / "run" / "rank0" / "circle")
        assert "leads out" in client.refused("/api/run", status=404, run="run")["error"]


def test_requests_that_are_no_http_do_not_end_the_server(client):
    for raw in (b"\x00\x01\x02\r\n\r\n", b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost"):
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            try:
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:
                continue  # the server has hung up already
    assert client.ask("/healthz").status == 200


def test_under_a_prefix_of_a_proxy_everything_stays_relative(serve, folder):
    with serve(folder, token=TOKEN, root_path="/proxy/vario") as client:
        answer = client.ask("/", token=TOKEN, run="healthy")
        assert answer.headers["location"] == "./?run=healthy"
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert client.ask("/api/runs", headers=bearer).status == 200
        assert client.ask("/healthz").status == 200
