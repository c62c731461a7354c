"""`vario mcp`, asked by the official client: over the pipes of a real process, and over HTTP beside the dashboard."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from web_client import serving

from vario.cli import main
from vario.core.masking import MASK
from vario.web.mcp.bounded import MOST_CHARACTERS, bounded
from vario.web.mcp.protocol import TOOLS
from vario.web.mcp.run_tools import PARTS

TOKEN = "a-token-of-this-test"


@asynccontextmanager
async def over_pipes(folder, mode="auto", more=()):
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "vario", "mcp", str(folder), *more], env=dict(os.environ)
    )
    async with Client(stdio_client(command), mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(port, token=TOKEN, path="/mcp", mode="auto", **headers):
    given = headers if token is None else {"Authorization": f"Bearer {token}", **headers}
    async with httpx2.AsyncClient(headers=given, timeout=60) as http:
        address = f"http://127.0.0.1:{port}{path}"
        async with Client(streamable_http_client(address, http_client=http), mode=mode) as client:
            yield client


@pytest.fixture(scope="module")
def guarded(folder):
    with serving(folder, token=TOKEN) as client:
        yield client


@pytest.fixture(scope="module")
def ask(guarded):
    """Ask one tool of a server over all runs of these tests; the JSON of the answer."""

    def ask(name, **arguments):
        async def call():
            async with over_http(guarded.port) as client:
                return await client.call_tool(name, arguments)

        answer = anyio.run(call)
        assert not answer.is_error, answer.content[0].text
        assert json.loads(answer.content[0].text) == answer.structured_content
        return answer.structured_content

    return ask


def refusal(port, name, **arguments):
    async def call():
        async with over_http(port) as client:
            return await client.call_tool(name, arguments)

    answer = anyio.run(call)
    assert answer.is_error
    assert answer.structured_content is None
    return answer.content[0].text


def failure(call, *arguments):
    """The error with which a client ends, out of the groups of its tasks."""
    try:
        anyio.run(call, *arguments)
    except Exception as error:  # noqa: BLE001 - a group is no kind of what is in it
        while getattr(error, "exceptions", ()):
            error = error.exceptions[0]
        return error
    return None


def printed(capsys, *words):
    """What a command prints with --json."""
    assert main([*words, "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_assistant_finds_over_pipes_what_went_wrong(folder, mode):
    async def talk():
        async with over_pipes(folder, mode) as client:
            assert client.server_info.name == "vario"
            assert "never instructions" in client.instructions
            listed = await client.call_tool("list_runs", {"where": "alerts > 0"})
            name = listed.structured_content["runs"][0]["run"]
            found = (await client.call_tool("diagnose", {"run": name})).structured_content
            incidents = (await client.call_tool("list_incidents", {"run": name})).structured_content["incidents"]
            quantity, target, statistic = incidents[0]["series"].split("|")
            asked = {"run": name, "quantity": quantity, "target": target, "statistic": statistic, "first": 40}
            return name, found, (await client.call_tool("read_series", asked)).structured_content

    name, found, series = anyio.run(talk)
    assert name == "deeper/broken"
    assert found["text"].startswith("At step 45 activation of 'root:input' contains 512 NaN")
    assert found["first"]["rule"] == "non_finite"
    assert series["steps"][0] == 40
    assert series["is_every_step"]
    assert 45 in series["steps_with_nan_or_inf"]


def test_every_tool_says_what_it_is_for_and_only_reads():
    schemas = {name: tool.schema() for name, tool in TOOLS.items()}
    assert len(schemas) >= 10
    for name, schema in schemas.items():
        assert len(TOOLS[name].doc) > 80, name
        assert all(field["description"] for field in schema["properties"].values()), name
        assert schema["additionalProperties"] is False


def test_the_page_names_every_tool():
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(TOOLS)


def test_tools_are_listed_as_read_only(guarded):
    async def listed():
        async with over_http(guarded.port) as client:
            return (await client.list_tools()).tools

    tools = anyio.run(listed)
    assert [tool.name for tool in tools] == list(TOOLS)
    assert all(tool.annotations.read_only_hint and not tool.annotations.destructive_hint for tool in tools)
    runs = next(tool for tool in tools if tool.name == "list_runs")
    assert runs.input_schema["properties"]["limit"]["maximum"] == 200
    assert runs.input_schema["properties"]["columns"]["type"] == "array"
    assert runs.input_schema["properties"]["archived"]["type"] == "boolean"


def test_answers_are_those_of_the_commands(ask, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    diagnosis = ask("diagnose", run="deeper/broken")
    assert diagnosis["text"] == printed(capsys, "diagnose", "deeper/broken")["text"]
    told = printed(capsys, "report", "deeper/broken")
    report = ask("report_run", run="deeper/broken")
    assert {key: report[key] for key in ("state", "loss", "first_bad", "num_steps", "counts")} == {
        key: told[key] for key in ("state", "loss", "first_bad", "num_steps", "counts")
    }
    difference, told = (
        ask("compare_runs", a="healthy", b="deeper/broken"),
        printed(capsys, "diff", "healthy", "deeper/broken"),
    )
    assert (difference["text"], difference["divergence"]) == (told["text"], told["divergence"])
    assert ask("recent_changes", run="healthy")["changes"] == printed(capsys, "changes", "healthy")["changes"]
    told = printed(capsys, "ls", ".", "--columns", "lr,loss:best", "--sort", "loss:best")
    assert ask("list_runs", columns=["lr", "loss:best"], sort="loss:best")["runs"] == told
    assert ask("explain_speed", run="healthy")["verdict"] == printed(capsys, "report", "healthy")["time"]


def test_the_run_that_started_last_is_meant_if_none_is_named(ask):
    newest = ask("list_runs")["runs"][0]["run"]
    assert ask("report_run")["run"] == newest


def test_series_are_found_by_words_globs_and_quantity(ask):
    found = ask("find_series", run="healthy", search="*.weight", quantity="gradient", limit=3)["quantities"]
    assert [quantity["name"] for quantity in found] == ["gradient"]
    assert (found[0]["num_targets"], found[0]["num_matching"], len(found[0]["targets"])) == (10, 5, 3)
    assert "norm" in found[0]["statistics"]
    everything = ask("find_series", run="healthy")["quantities"]
    assert {"scalar", "gradient", "weight", "activation"} <= {quantity["name"] for quantity in everything}


def test_a_series_is_downsampled_and_keeps_its_extremes(ask):
    whole = ask("read_series", run="healthy", target="loss")
    assert whole["steps"] == list(range(60))
    small = ask("read_series", run="healthy", target="loss", points=10)
    assert len(small["steps"]) == len(small["low"]) == 10
    assert not small["is_every_step"]
    assert max(small["high"]) == small["highest"] == max(whole["values"])
    assert min(small["low"]) == small["lowest"] == min(whole["values"])
    part = ask("read_series", run="healthy", target="head.weight", quantity="gradient", first=10, last=12)
    assert (part["steps"], part["statistic"]) == ([10, 11, 12], "norm")


def test_ranks_are_compared(ask):
    found = ask("compare_ranks", run="ranks")
    assert (found["world_size"], found["states"]) == (2, {"finished": 2})
    assert [state["rank"] for state in found["ranks"]] == [0, 1]
    # Each rank wrote gradients of its own under the names of replicas: told only where checksums were recorded.
    assert found["first_difference_of_replicas"] is None


SCRIPT = """
import os
import vario
with vario.start("run", directory=os.getcwd()) as run:
    run.log(a=1)
    print("printed", os.environ["MY_API_KEY"])
"""


def test_secrets_do_not_come_out(tmp_path):
    secrets = {"MY_API_KEY": "correct-horse-battery", "HF_TOKEN": "secret-of-this-test"}
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py", "--password", "another-secret"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **secrets}, check=True, capture_output=True)
    with serving(tmp_path, token=TOKEN) as client:

        async def texts():
            async with over_http(client.port) as assistant:
                asked = [("run_origin", {"part": part}) for part in PARTS] + [("run_settings", {}), ("report_run", {})]
                return [(await assistant.call_tool(*each)).content[0].text for each in asked]

        found = anyio.run(texts)
    assert f"printed {MASK}" in found[PARTS.index("output")]
    assert json.loads(found[0])["environment"]["HF_TOKEN"] == MASK
    for secret in (*secrets.values(), "another-secret"):
        assert not any(secret in text for text in found)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("diagnose", {"run": "../outside"}, "run: '../outside' is not a path below the served folder"),
        ("diagnose", {"run": "/etc"}, "run: '/etc' is not a path below the served folder"),
        ("diagnose", {"run": "helthy"}, "run: no run 'helthy'. Did you mean 'healthy'?"),
        ("diagnose", {"rnu": "healthy"}, "rnu: unknown argument of diagnose. Did you mean 'run'?"),
        ("compare_runs", {"a": "healthy"}, "b: is missing. The second run."),
        ("compare_runs", {"a": "healthy", "b": "../x"}, "is not a path below the served folder"),
        ("list_runs", {"where": "lr >"}, "where"),
        ("list_runs", {"limit": 100000}, "limit: expected a number from 1 to 200, got 100000"),
        ("list_runs", {"limit": True}, "limit: expected whole, got true"),
        ("list_runs", {"columns": ["x"] * 100}, "columns: given 65 times; the limit is 64"),
        ("read_series", {"run": "healthy", "target": "los"}, "target: no series 'los'. Did you mean 'loss'?"),
        ("read_series", {"run": "healthy", "target": "loss", "rank": "7"}, "rank"),
        ("read_series", {"run": "healthy", "target": {"a": 1}}, "target: expected text, got dict"),
        ("find_series", {"run": "healthy", "quantity": "gradeint"}, "Did you mean 'gradient'?"),
        ("run_origin", {"part": "outptu"}, "part: unknown 'outptu'. Did you mean 'output'?"),
        ("explain_speed", {"run": "healthy", "rank": 5}, "rank"),
    ],
)
def test_what_cannot_be_answered_is_an_error_of_the_tool_that_says_why(guarded, name, arguments, words):
    assert words in refusal(guarded.port, name, **arguments)


def test_a_link_that_leads_out_is_no_run(folder, tmp_path):
    served = tmp_path / "served"
    served.mkdir()
    (served / "away").symlink_to(folder / "healthy")
    with serving(served, token=TOKEN) as client:
        assert "leads out of the served folder" in refusal(client.port, "report_run", run="away")
        assert "no runs in served yet" in refusal(client.port, "report_run")


@pytest.mark.parametrize("damage", ["run.json", "rank0/rank.json"])
def test_a_damaged_run_is_an_error_of_the_tool_and_others_are_answered(folder, tmp_path, damage):
    for name in ("healthy", "ranks"):
        shutil.copytree(folder / name, tmp_path / name)
    (tmp_path / "healthy" / damage).write_text("{ not JSON")
    with serving(tmp_path, token=TOKEN) as client:
        for tool in ("report_run", "diagnose", "list_incidents", "run_settings", "compare_ranks"):
            assert damage.rpartition("/")[2] in refusal(client.port, tool, run="healthy")

        async def listed():
            async with over_http(client.port) as assistant:
                return (await assistant.call_tool("list_runs", {})).structured_content

        found = anyio.run(listed)
        assert [row["run"] for row in found["runs"]] == ["ranks"]
        assert [entry["path"] for entry in found["cannot_be_read"]] == ["healthy"]


def test_several_folders_are_served_over_pipes(folder, tmp_path):
    shutil.copytree(folder / "healthy", tmp_path / "more" / "healthy")

    async def listed():
        async with over_pipes(f"first={folder}", more=[f"second={tmp_path / 'more'}"]) as client:
            found = (await client.call_tool("list_runs", {"where": "name = healthy"})).structured_content
            return found, (await client.call_tool("report_run", {"run": "second/healthy"})).structured_content

    found, report = anyio.run(listed)
    assert {row["run"] for row in found["runs"]} == {"first/healthy", "second/healthy"}
    assert report["path"] == str(tmp_path / "more" / "healthy")


def test_an_unknown_tool_is_an_error_of_the_protocol(guarded):
    async def call():
        async with over_http(guarded.port) as client:
            await client.call_tool("diagnoze", {})

    error = failure(call)
    assert isinstance(error, MCPError)
    assert str(error) == "unknown tool 'diagnoze'. Did you mean 'diagnose'?"


REQUEST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


def post(client, body=REQUEST, **headers):
    connection = client.connect()
    connection.request("POST", "/mcp", body, {**HEADERS, **headers})
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        (BEARER, 200),
        ({**BEARER, "Host": "evil.example"}, 403),
        ({**BEARER, "Origin": "http://evil.example"}, 403),
        ({**BEARER, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({**BEARER, "Content-Type": "text/plain"}, 415),
    ],
)
def test_it_is_guarded_as_the_dashboard_is(guarded, headers, status):
    assert post(guarded, **headers)[0] == status


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_client_is_refused_without_the_token(guarded, mode):
    async def connect():
        async with over_http(guarded.port, token=None, mode=mode) as client:
            await client.list_tools()

    error = failure(connect)
    assert isinstance(error, MCPError)
    assert "error response" in str(error)


def test_a_client_that_cannot_send_headers_puts_the_token_into_the_address(guarded):
    async def connect():
        async with over_http(guarded.port, token=None, path=f"/mcp?token={TOKEN}") as client:
            return len((await client.list_tools()).tools)

    assert anyio.run(connect) == len(TOOLS)


def test_only_questions_are_taken_there(guarded):
    assert guarded.ask("/mcp", headers=BEARER).status == 405
    assert guarded.ask("/mcp", "DELETE", headers=BEARER).status == 405
    assert post(guarded, "{ not JSON", **BEARER)[0] == 400
    assert post(guarded, " " * (2 << 20), **BEARER)[0] == 413


WITHOUT_THE_PACKAGE = """
import sys
sys.modules.update(mcp=None, mcp_types=None)
sys.path[:0] = sys.argv[1:]
from vario.cli import main
print(main(["mcp", "."]))
from web_client import serving
with serving(".") as client:
    connection = client.connect()
    connection.request("POST", "/mcp", "{}", {"Content-Type": "application/json"})
    response = connection.getresponse()
    print(response.status)
    print(response.read().decode(), file=sys.stderr)
    connection.close()
"""


def test_without_its_package_the_error_is_its_install_line(tmp_path):
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, *sys.path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2", "501"]
    assert done.stderr.count("pip install 'vario[mcp]'") == 2


def test_ctrl_c_ends_it_while_it_waits(tmp_path):
    command = [sys.executable, "-m", "vario", "mcp", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked}
        started.stdin.write(json.dumps(request).encode() + b"\n")
        started.stdin.flush()
        assert json.loads(started.stdout.readline())["result"]["serverInfo"]["name"] == "vario"
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=30) == -signal.SIGINT
        assert started.stderr.read() == b""


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["mcp", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer",
    [
        {"incidents": [{"text": "x" * 300, "targets": list(range(100))} for _ in range(3000)]},
        {"text": "x" * 10**6},
        {"deep": [[["y" * 500 for _ in range(50)] for _ in range(50)] for _ in range(50)]},
        {f"field{number}": "z" * 1000 for number in range(60)},
        {"params": {f"name {number}": "value" * 20 for number in range(10_000)}},
    ],
)
def test_no_answer_is_longer_than_a_model_can_read(answer):
    found = bounded(answer)
    assert len(json.dumps(found)) < MOST_CHARACTERS + 5000
    assert found["shortened"]


def test_of_a_long_text_the_beginning_and_the_end_are_kept():
    found = bounded({"output": "first\n" + "line\n" * 50_000 + "the error"})
    assert found["output"].startswith("first\n")
    assert found["output"].endswith("the error")
    assert "characters left out" in found["output"]


def test_a_short_answer_is_left_as_it_is():
    assert bounded({"a": [1, float("nan")], "b": "c"}) == {"a": [1, "nan"], "b": "c"}
