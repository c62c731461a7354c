"""Incidents are told where the config says: real shells, real servers, real files; and nobody waits for them."""

import http.server
import json
import logging
import os
import select
import socketserver
import threading

import pytest

import vario
from incidents import recurring, train
from vario.cli.commands.parts import found_parts
from vario.config import Config, read_config
from vario.notices.command import Command
from vario.notices.message import Message
from vario.notices.sending import Notices
from vario.rules.api.alerts import Alert, Incident

PASSWORD = "correct-horse"


def incident(severity="page", step=7):
    alert = Alert("non_finite", "exact", severity, step, None, "gradient", "up.weight", float("nan"), "it holds NaN")
    return Incident(step, step, alert, severity, "tensor", "up.weight", None, "a bad batch", "look", (alert,))


def sent(notify, *incidents, rank=None, run="run-1"):
    """Send incidents and wait for them."""
    notices = Notices(Config(notify=notify), rank)
    for each in incidents:
        notices.send(each, run)
    notices.close()


@pytest.fixture
def web(monkeypatch):
    """A real server: `answers` are its next status codes, `bodies` what it was sent."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            server = self.server
            server.paths.append(self.path)
            server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.answers.pop(0) if server.answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.answers, server.bodies, server.paths = [], [], []
        server.url = f"http://127.0.0.1:{server.server_port}/hook/secret-token"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def post():
    """A real, minimal mail server: `mails` are what it took, `said` all that it was told."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.answer("220 here")
            while line := self.rfile.readline().decode().strip():
                self.server.said.append(line)
                word = line.split()[0].upper()
                if word == "EHLO":
                    self.answer("250-here\r\n250 AUTH PLAIN")
                elif word == "AUTH":
                    self.answer("235 welcome")
                elif word == "DATA":
                    self.answer("354 go on")
                    lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                    self.server.mails.append("\n".join(lines))
                    self.answer("250 taken")
                elif word in ("MAIL", "RCPT", "RSET"):
                    self.answer("250 fine")
                elif word == "QUIT":
                    self.answer("221 bye")
                    return
                else:
                    self.answer("502 what?")

        def answer(self, text):
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.mails, server.said = [], []
        server.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_function_is_called_with_the_incident_of_a_nan_on_a_thread_of_its_own(tmp_path):
    told = []
    losses, monitor = train(
        nan_at=10,
        directory=str(tmp_path),
        notify=lambda incident: told.append((incident, threading.current_thread().name)),
    )
    ((found, thread),) = told
    assert (found.step, found.lead.rule, found.severity) == (10, "non_finite", "page")
    assert thread == "vario-notice-callback"
    assert losses[:10] == train(nan_at=10, watched=False)[0][:10]
    assert json.loads((monitor.path / "run.json").read_text())["config"]["notify"] == {
        "callback": "test_a_function_is_called_with_the_incident_of_a_nan_on_a_thread_of_its_own.<locals>.<lambda>"
    }


def test_on_incident_hears_of_every_incident_whatever_its_severity(tmp_path):
    told, urgent = [], []
    train(
        20,
        directory=str(tmp_path),
        rules=[recurring(100, "note")],
        notify=urgent.append,
        each_step=lambda step, monitor, model: monitor.on_incident(told.append) if step == 0 else None,
    )
    assert [(found.step, found.severity) for found in told] == [(5, "note")]
    assert urgent == []


def test_on_incident_without_rules_is_refused(tmp_path):
    def ask(step, monitor, model):
        monitor.on_incident(print)

    with pytest.raises(vario.ConfigError, match=r"on_incident.*no rule is enabled"):
        train(1, directory=str(tmp_path), rules=False, each_step=ask)


def test_a_command_gets_the_incident_on_its_input_and_words_in_its_environment(tmp_path):
    command = (
        f'cat > {tmp_path}/input.json; echo "$VARIO_SEVERITY $VARIO_RULE $VARIO_STEP $VARIO_RUN" > {tmp_path}/words'
    )
    train(nan_at=10, directory=str(tmp_path), name="mine", notify={"command": command})
    content = json.loads((tmp_path / "input.json").read_text())
    assert (content["run"], content["step"], content["lead"]["rule"]) == ("mine", 10, "non_finite")
    assert content["text"].startswith("mine, step 10: ")
    assert Incident.from_json(content).alerts[0].rule == "non_finite"
    assert (tmp_path / "words").read_text() == "page non_finite 10 mine\n"


def test_a_command_of_the_environment_is_looked_up_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_COMMAND", f"touch {tmp_path}/ran")
    sent({"command": "env:MY_COMMAND"}, incident())
    assert (tmp_path / "ran").exists()


def test_a_command_that_hangs_ends_with_the_training_and_so_does_what_it_started(tmp_path):
    os.mkfifo(tmp_path / "started")
    notices = Notices(Config(notify={"command": f"sleep 600 & echo $! > {tmp_path}/started; wait"}))
    notices.send(incident(), "run-1")
    notices.send(incident(), "run-1")
    running = os.pidfd_open(int((tmp_path / "started").read_text()))
    notices.close(0.0)
    assert select.select([running], [], [], 60)[0], "it still runs"
    os.close(running)


def test_a_command_ends_by_itself_where_the_training_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("vario.notices.command.LONGEST_SECONDS", 0.2)
    with pytest.raises(OSError, match="exit code"):
        Command("sleep 600").send(Message(incident(), "run-1"))


def test_a_webhook_gets_what_slack_and_discord_read_and_the_incident(web, tmp_path):
    train(nan_at=10, directory=str(tmp_path), name="mine", notify={"webhook": web.url})
    (body,) = web.bodies
    assert body["text"] == body["content"]
    assert body["text"].startswith("mine, step 10: ")
    assert body["lead"]["rule"] == "non_finite"
    assert body["alerts"][0]["value"] == "nan"


def test_slack_gets_words_only_and_they_are_escaped(web, monkeypatch):
    # Through a proxy the request for Slack reaches this server as it is.
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{web.server_port}")
    monkeypatch.delenv("no_proxy")
    sent({"webhook": "http://hooks.slack.com/services/secret-token"}, incident(), run="<a&b>")
    assert web.paths == ["http://hooks.slack.com/services/secret-token"]
    (body,) = web.bodies
    assert set(body) == {"text", "content", "allowed_mentions"}
    assert body["text"].startswith("&lt;a&amp;b&gt;, step 7")
    assert body["content"].startswith("<a&b>, step 7")


def test_a_webhook_is_tried_once_more_when_the_server_fails(web, caplog):
    web.answers[:] = [503]
    sent({"webhook": web.url}, incident())
    assert len(web.bodies) == 2
    assert caplog.records == []


def test_a_webhook_that_does_not_exist_is_not_tried_again(web, caplog):
    web.answers[:] = [404]
    sent({"webhook": web.url}, incident())
    assert len(web.bodies) == 1
    (record,) = caplog.records
    assert record.getMessage() == "a notice by webhook was not sent: HTTPError: HTTP Error 404: Not Found"


def test_a_mail_says_what_happened_and_what_to_do_next(post, tmp_path):
    notify = {"email": {"to": ["a@b.c", "d@e.f"], "host": "127.0.0.1", "port": post.port, "from": "me@b.c"}}
    train(nan_at=10, directory=str(tmp_path), name="mine", notify=notify)
    (mail,) = post.mails
    assert "Subject: [vario] page: mine, step 10: non_finite" in mail
    assert "To: a@b.c, d@e.f" in mail
    assert "Next: " in mail
    assert [line for line in post.said if line.startswith("rcpt")] == ["rcpt TO:<a@b.c>", "rcpt TO:<d@e.f>"]
    assert not any(line.startswith("AUTH") for line in post.said)


def test_a_mail_server_gets_the_password_of_the_environment(post, monkeypatch):
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    server = {"host": "127.0.0.1", "port": post.port, "starttls": False, "user": "me", "password": "env:MAIL_PASSWORD"}
    sent({"email": {"to": "a@b.c", **server}}, incident())
    assert len(post.mails) == 1
    assert any(line.startswith("AUTH PLAIN ") for line in post.said)


def test_a_password_is_not_sent_to_a_server_that_offers_no_encryption(post, monkeypatch, caplog):
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    server = {"host": "127.0.0.1", "port": post.port, "user": "me", "password": "env:MAIL_PASSWORD"}
    sent({"email": {"to": "a@b.c", **server}}, incident())
    assert "STARTTLS" in caplog.text
    assert post.mails == []
    assert not any(line.startswith(("AUTH", "mail")) for line in post.said)


def test_a_file_for_prometheus_counts_incidents_and_says_how_far_training_is(tmp_path):
    path = tmp_path / "vario.prom"
    train(20, directory=str(tmp_path), name="mine", rules=[recurring(12)], notify={"prometheus": str(path)})
    text = path.read_text()
    assert 'vario_incidents_total{run="mine",severity="page",rule="recurring_finding"} 2\n' in text
    assert 'vario_alerts_total{run="mine",rule="recurring_finding"} 2\n' in text
    assert 'vario_last_incident_step{run="mine"} 17\n' in text
    assert 'vario_last_step{run="mine"} 19\n' in text
    assert "# TYPE vario_incidents_total counter\n" in text
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "vario.prom"]


def test_ranks_do_not_overwrite_each_others_file_for_prometheus(tmp_path):
    for rank in (None, 3):
        sent({"prometheus": str(tmp_path / "v.prom")}, incident(), rank=rank, run='a"b\\c')
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["v.prom", "v.rank3.prom"]
    assert 'run="a\\"b\\\\c",severity="page",rule="non_finite",rank="3"} 1' in (tmp_path / "v.rank3.prom").read_text()


@pytest.mark.parametrize(
    ("least", "rank", "expected"),
    [
        (None, None, ["warn", "page"]),
        ("note", None, ["note", "warn", "page"]),
        ("page", None, ["page"]),
        ("note", 3, ["page"]),
    ],
)
def test_what_is_less_urgent_is_not_told_and_other_ranks_tell_only_what_pages(least, rank, expected):
    told = []
    notify = {"callback": told.append, **({"least": least} if least else {})}
    sent(notify, *(incident(severity) for severity in ("note", "warn", "page")), rank=rank)
    assert [found.severity for found in told] == expected


def test_three_failures_in_a_row_end_a_way_which_the_run_lists_while_training_goes_on(tmp_path, caplog):
    ran = tmp_path / "ran"
    options = {"directory": str(tmp_path), "rules": [recurring(11)], "strict": False}
    losses, monitor = train(60, notify={"command": f"echo >> {ran}; exit 3"}, **options)
    assert ran.read_text() == "\n" * 3
    parts = json.loads((monitor.path / "rank0" / "rank.json").read_text())["parts_off"]
    assert [(part["part"], part["error"]) for part in parts] == [
        ("notice command", "OSError: the command ended with exit code 3")
    ]
    about = [record.getMessage() for record in caplog.records if "command" in record.getMessage()]
    assert len(about) == 2  # once that it fails, once that it is switched off
    assert losses == train(60, watched=False)[0]


def test_a_failure_between_successes_ends_nothing(tmp_path):
    fails = iter([True, True, False, True, True, False])
    told = []

    def sometimes(found):
        if next(fails):
            raise OSError("busy")
        told.append(found)

    sent(sometimes, *[incident()] * 6)
    assert len(told) == 2


def test_strict_raises_what_a_way_failed_with(tmp_path):
    with pytest.raises(OSError, match="exit code 3"):
        train(60, directory=str(tmp_path), rules=[recurring(11)], notify={"command": "exit 3"})


def test_nobody_waits_for_a_way_that_hangs_and_its_queue_is_bounded(caplog):
    goes_on, told = threading.Event(), []

    def hang(found):
        goes_on.wait()
        told.append(found)

    notices = Notices(Config(notify=hang))
    for step in range(200):
        notices.send(incident(step=step), "run")
    notices.close(seconds=0)
    assert told == []
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in messages] == [
        "notices by callback are slow",
        "notices by callback take too long",
    ]
    goes_on.set()
    notices.close()
    assert 64 <= len(told) <= 65


def test_no_secret_reaches_the_run(tmp_path, monkeypatch, web, post):
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    user = web.url.replace("http://", "http://name:hidden-word@")
    notify = {
        "webhook": user,
        "command": "TOKEN=top-secret-word true",
        "email": {"to": "a@b.c", "host": "127.0.0.1", "port": post.port, "user": "me", "password": "env:MAIL_PASSWORD"},
    }
    # All of them fail or are refused now and then: what is said about that is written down as well.
    web.answers[:] = [404] * 20
    _, monitor = train(60, strict=False, directory=str(tmp_path), rules=[recurring(11)], notify=notify)
    files = [path for path in monitor.path.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    for path in files:
        content = path.read_bytes()
        for secret in (b"secret-token", b"top-secret-word", b"hidden-word", PASSWORD.encode()):
            assert secret not in content, path
    shown = json.loads((monitor.path / "run.json").read_text())["config"]["notify"]
    assert shown["webhook"] == "http://127.0.0.1/***"
    assert shown["command"] == "***"
    assert shown["email"]["password"] == "env:MAIL_PASSWORD"


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ({"webhok": "https://x.y"}, "notify: unknown 'webhok'. Did you mean 'webhook'?"),
        (3, "notify: expected a function or a table"),
        ({"least": "hi"}, "notify.least: expected one of note, warn, page, got 'hi'"),
        ({"webhook": "x.y/z"}, "notify.webhook: expected a URL that begins with http:// or https://"),
        ({"webhook": "file:///etc/passwd"}, "notify.webhook: expected a URL"),
        ({"command": ""}, "notify.command: expected a shell command or env:NAME, got ''"),
        ({"callback": "f"}, "notify.callback: expected a function"),
        ({"prometheus": "vario.txt"}, "notify.prometheus: expected a path that ends with .prom"),
        ({"email": "a@b.c"}, "notify.email: expected a table"),
        ({"email": {"to": "a@b.c"}}, "notify.email: 'host' is missing"),
        ({"email": {"to": "a", "host": "h"}}, "notify.email.to: expected one address or a list"),
        ({"email": {"to": "a@b.c", "hots": "h"}}, "notify.email: unknown 'hots'. Did you mean 'host'?"),
        ({"email": {"to": "a@b.c", "host": "h", "port": "25"}}, "notify.email.port: expected a port, got '25'"),
        (
            {"email": {"to": "a@b.c", "host": "h", "user": "u", "password": PASSWORD}},
            "notify.email.password: expected the name of an environment variable",
        ),
        ({"email": {"to": "a@b.c", "host": "h", "user": "u"}}, "set both 'user' and 'password', or neither"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(notify, said):
    with pytest.raises(vario.ConfigError) as error:
        Config(notify=notify)
    assert said in str(error.value)
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ({"webhook": "env:NOT_THERE"}, "notify.webhook: the environment variable 'NOT_THERE' is not set"),
        ({"prometheus": "/no/such/folder/v.prom"}, "notify.prometheus: no folder '/no/such/folder'"),
    ],
)
def test_what_is_missing_where_the_training_runs_is_refused_without_a_run_left_behind(tmp_path, notify, said):
    with pytest.raises(vario.ConfigError, match=said):
        train(1, directory=str(tmp_path / "runs"), notify=notify)
    assert not (tmp_path / "runs").exists()


def test_a_config_without_rules_has_nothing_to_tell():
    with pytest.raises(vario.ConfigError, match="notify: has no effect without rules"):
        Config(rules=False, notify={"command": "true"})


def test_a_config_file_says_where_incidents_go(tmp_path):
    (tmp_path / "v.toml").write_text(
        '[notify]\ncommand = "true"\nleast = "page"\n[notify.email]\nto = "a@b.c"\nhost = "h"\n'
    )
    config = read_config(tmp_path / "v.toml")
    assert config.notify == {"command": "true", "least": "page", "email": {"to": "a@b.c", "host": "h"}}


def test_every_way_is_listed_among_the_parts():
    names = {row["name"] for row in found_parts() if row["kind"] == "notices"}
    assert names == {"callback", "command", "webhook", "email", "prometheus"}


def test_a_run_without_incidents_starts_no_threads(tmp_path):
    names = []
    train(
        5,
        directory=str(tmp_path),
        notify={"command": "true"},
        each_step=lambda step, monitor, model: names.extend(thread.name for thread in threading.enumerate()),
    )
    assert not any(name.startswith("vario-notice") for name in names)
    assert os.listdir(tmp_path)


def test_a_failure_is_told_once(caplog):
    with caplog.at_level(logging.WARNING, "vario"):
        sent({"command": "exit 1"}, incident(), incident())
    assert len(caplog.records) == 1
