"""Where the page leads from an alert: to a curve that there is, and along the chain in the order of time."""

import json

import pytest

from made_runs import frame, record, write_run
from vario.rules.api.alerts import Alert


def alert(rule, quantity, target, step=5, **changes):
    told = Alert(rule, "limit", "warn", step, 0, quantity, target, 1.0, f"{rule} at {target}", **changes)
    return json.dumps(told.to_json())


@pytest.fixture
def told(serve, tmp_path):
    """The series to which alerts lead, by rule."""

    def ask(*lines):
        attention = [f"attn:{kind}" for kind in ("entropy", "head_entropy", "max_logit")]
        frames = {
            "attention": attention,
            "unit": ["act:dead"],
            "expert": ["gate:drawn", "gate:load"],
            "update": ["head.weight:change", "head.weight:ratio"],
        }
        steps = [record(step, *(frame(step, name, targets) for name, targets in frames.items())) for step in range(8)]
        write_run(tmp_path / "run", steps)
        (tmp_path / "run" / "rank0" / "alerts.jsonl").write_text("\n".join(lines) + "\n")
        with serve(tmp_path) as client:
            found = client.get("/api/alerts", run="run")
            for each in [*found["alerts"], *found["diagnosis"]["chain"]]:
                if each["series"] is not None:
                    client.get("/api/series", run="run", series=each["series"])
            return found

    return ask


def test_alerts_of_several_numbers_lead_to_the_one_they_are_about(told):
    found = told(
        alert("attn_logit", "attention", "attn", statistic="max"),
        alert("attn_entropy", "attention", "attn", statistic="min", step=6),
        alert("dead_units", "unit", "act"),
        alert("expert_imbalance", "expert", "gate", statistic="max"),
        alert("settings_change", "update", "head.weight"),
        alert("update_high", "update", None, statistic="ratio", scope="global"),
        alert("attn_logit", "attention", "gone", statistic="max"),
    )
    assert {(each["rule"], each["target"]): each["series"] for each in found["alerts"]} == {
        ("attn_logit", "attn"): "attention|attn:max_logit|max",
        ("attn_entropy", "attn"): "attention|attn:head_entropy|min",
        ("dead_units", "act"): "unit|act:dead|",
        ("expert_imbalance", "gate"): "expert|gate:load|max",
        ("settings_change", "head.weight"): "update|head.weight:change|",
        ("update_high", None): None,
        ("attn_logit", "gone"): None,
    }


def test_the_chain_goes_on_in_time(client):
    chain = client.get("/api/alerts", run="deeper/broken")["diagnosis"]["chain"]
    steps = [link["step"] for link in chain]
    assert steps == sorted(steps)
    assert len({(link["quantity"], link["target"]) for link in chain}) == len(chain) > 2
    quantities = [link["quantity"] for link in chain if link["step"] == chain[0]["step"]]
    assert quantities == sorted(quantities, key=["activation", "activation_gradient", "gradient", "weight"].index)
    assert {link["rank"] for link in chain} == {None}
