"""The description tells the truth: every field of every answer and event is described, and nothing else is answered."""

import copy
import json
from dataclasses import dataclass

import jsonschema_rs
import pytest

from vario.web.api import openapi
from vario.web.api.schemas import Schemas
from vario.web.app import all_endpoints

SERIES = ["scalar|loss|value", "gradient|head.weight|norm"]
BROKEN = "deeper/broken"
ASKED = [
    ("/api/runs", {}),
    ("/api/table", {"column": ["loss:best", "state", "optimizer"], "group": "state"}),
    ("/api/columns", {}),
    ("/api/overlay", {"number": "loss"}),
    ("/api/effects", {"result": "loss:best"}),
    ("/api/overlay", {"number": "loss", "group": "state", "along": "time", "best": "1"}),
    ("/api/charts", {}),
    ("/api/run", {"run": "healthy"}),
    ("/api/run", {"run": BROKEN}),
    ("/api/run", {"run": "ranks"}),
    ("/api/heat", {"run": "healthy", "quantity": "gradient", "format": "json"}),
    ("/api/heat", {"run": BROKEN, "quantity": "gradient", "format": "json"}),
    ("/api/series", {"run": ["healthy", BROKEN], "series": SERIES}),
    ("/api/targets", {"run": "healthy"}),
    ("/api/changes", {"run": BROKEN}),
    ("/api/alerts", {"run": BROKEN}),
    ("/api/alerts", {"run": BROKEN, "replay": "1"}),
    ("/api/alerts", {"run": "healthy"}),
    ("/api/ranks", {"run": "ranks"}),
    ("/api/compare", {"a": "healthy", "b": BROKEN}),
    ("/api/compare/heat", {"a": "healthy", "b": BROKEN, "format": "json"}),
    ("/api/model", {"run": "healthy"}),
    ("/api/model", {"run": "ranks"}),
    ("/api/settings", {"run": "healthy"}),
    ("/api/settings", {"run": "ranks"}),
    ("/api/origin", {"run": "healthy"}),
    ("/api/origin", {"run": "ranks"}),
    ("/api/precision", {"run": "healthy"}),
    ("/api/distribution", {"run": "healthy", "target": "head.weight", "quantity": "gradient"}),
    ("/api/precision", {"run": "ranks"}),
    ("/api/channels", {"run": "ranks"}),
    ("/api/attachments", {"run": "ranks"}),
    ("/api/attached", {"run": "ranks", "name": "kept"}),
]


@pytest.fixture(scope="module")
def described():
    """The description, in which an object has the described fields alone."""
    found = copy.deepcopy(openapi.document(all_endpoints()))
    for schema in found["components"]["schemas"].values():
        schema["additionalProperties"] = False
    return json.loads(json.dumps(found))


def check(described, schema, body):
    whole = {**schema, "components": described["components"]}
    problems = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:300]}"
        for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(body)
    ]
    assert problems == []


def body_of(described, path, media="application/json"):
    return described["paths"][path]["get"]["responses"]["200"]["content"][media]["schema"]


@pytest.mark.parametrize(("path", "asked"), ASKED, ids=lambda value: value if isinstance(value, str) else "")
def test_answers_are_as_described(client, described, path, asked):
    check(described, body_of(described, path), client.get(path, **asked))


def test_every_address_that_answers_in_json_is_looked_at(described):
    in_json = [path for path in described["paths"] if path not in ("/api/live", "/api/figure", "/metrics")]
    assert sorted({path for path, _ in ASKED}) == sorted(in_json)


@pytest.mark.parametrize("path", ["/api/heat", "/api/compare/heat"])
def test_the_head_of_a_binary_answer_is_as_described(client, described, path):
    runs = {"a": "healthy", "b": BROKEN} if "compare" in path else {"run": BROKEN}
    body = client.ask(path, **runs, quantity="gradient").body
    length = int.from_bytes(body[:4], "little")
    check(described, body_of(described, path, "application/octet-stream")["x-head"], json.loads(body[4 : 4 + length]))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, {"runs"}),
        ({"run": BROKEN, "cursor": "0.10.0", "quantity": "gradient", "series": SERIES}, {"progress", "heat", "points"}),
        ({"run": BROKEN, "cursor": "0.10.0"}, {"incident", "bye"}),
        ({"run": BROKEN, "cursor": "7.10.0"}, {"reset"}),
    ],
)
def test_events_are_as_described(client, described, asked, told):
    events = body_of(described, "/api/live", "text/event-stream")
    found = [dict(line.split(": ", 1) for line in part.split("\n")) for part in stream(client, asked)]
    assert told <= {event["event"] for event in found}
    for event in found:
        check(described, events, {event["event"]: json.loads(event["data"])})


def stream(client, asked):
    return [part for part in client.ask("/api/live", once="1", **asked).body.decode().split("\n\n") if part]


def test_a_refusal_is_as_described(client, described):
    check(described, {"$ref": "#/components/schemas/Refusal"}, client.refused("/api/run", status=404, run="nobody"))


def test_two_types_of_one_name_are_refused():
    @dataclass
    class Curve:
        """Not the one that is answered."""

        step: int

    schemas = Schemas()
    schemas.of(next(endpoint.body for endpoint in all_endpoints() if endpoint.path == "/api/series"))
    with pytest.raises(TypeError, match="two types are named Curve"):
        schemas.of(Curve)


def test_a_type_that_json_cannot_say_is_refused():
    with pytest.raises(TypeError, match="complex"):
        Schemas().of(complex)
