"""Whatever is asked, the answer is good or a refusal: addresses made from the server's own description."""

import os
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from web_client import SCRIPT_NAME, serving

EXAMPLES = 30 * int(os.environ.get("VARIO_ATTACK", "1"))
"""Of each address, and kind."""
LONGEST = 100_000
"""Characters of a query; 120,000 were still answered."""
RUNS = ["healthy", "deeper/broken", "ranks", SCRIPT_NAME, "../healthy", "", "healthy/rank0"]
REAL = {
    "run": RUNS,
    "a": RUNS,
    "b": RUNS,
    "quantity": ["gradient", "weight", "activation", "scalar", "gradiant"],
    "statistic": ["norm", "mean", "nans", "value", ""],
    "series": ["scalar|loss|value", "gradient|head.weight|norm", "activation|head|rms", "weight|head|", "|||"],
    "rank": ["0", "1", "all", "each", "spread", "7"],
    "cursor": ["0.10.0", "0.-1.0", "3.2.1", "0.999999999.0"],
    "target": ["step_seconds", "head.weight", "loss"],
    "last": ["5", "0", "59"],
    "column": ["loss", "loss:best", "state", "optimizer.lr", "params.lr", "lr:worst"],
    "where": ["lr > 0.001 and state = finished", "not (loss < 1 or name ~ a*)", "loss in (1, 2)", "loss >", "`"],
    "sort": ["loss", "-started, name", "loss desc", "nothing"],
    "group": ["state", "loss", "optimizer"],
    "number": ["loss", "step_seconds", "los"],
    "along": ["step", "time", "loss", "nothing"],
    "result": ["loss:best", "duration", "state", ""],
    "name": ["kept", "kpet"],
    "step": ["2", "3"],
}
"""Values that lead further than a random text does."""
OPERATIONS = [
    "/api/runs",
    "/api/table",
    "/api/columns",
    "/api/overlay",
    "/api/charts",
    "/api/effects",
    "/api/run",
    "/api/heat",
    "/api/series",
    "/api/targets",
    "/api/changes",
    "/api/alerts",
    "/api/ranks",
    "/api/compare",
    "/api/compare/heat",
    "/api/model",
    "/api/settings",
    "/api/origin",
    "/api/attachments",
    "/api/precision",
    "/metrics",
    "/api/distribution",
    "/api/channels",
    "/api/attached",
    "/api/figure",
    "/api/live",
]
WANTED = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def described(folder):
    with serving(folder) as client:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")
        assert sorted(schema) == sorted(OPERATIONS)
        yield schema, f"http://127.0.0.1:{client.port}"
        assert client.ask("/healthz").status == 200


MODES = [
    pytest.param(path, mode, id=f"{path}-{mode.value}")
    for path in OPERATIONS
    for mode in schemathesis.GenerationMode
    # Without parameters there is nothing to get wrong.
    if path not in ("/api/runs", "/api/columns", "/api/charts", "/metrics")
    or mode is schemathesis.GenerationMode.POSITIVE
]


@pytest.mark.parametrize(("path", "mode"), MODES)
def test_nothing_but_good_answers_and_refusals_come_back(described, path, mode):
    schema, base_url = described
    operation = schema[path]["GET"]
    real = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in REAL.items()})

    @given(case=operation.as_strategy(generation_mode=mode), real=real)
    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def ask(case, real):
        known = {parameter.name for parameter in operation.query}
        query = dict(case.query or {}) | {key: value for key, value in real.items() if key in known}
        if path == "/api/live":
            query["once"] = "1"
        # Of several hundred kilobytes of address the server hangs up while the client still sends: no answer is read.
        assume(len(urlencode(query, doseq=True)) < LONGEST)
        case.query = query
        response = case.call_and_validate(base_url=base_url, checks=WANTED)
        # That is said of damaged files, of which there are none here.
        assert b"cannot be read" not in response.content

    ask()
