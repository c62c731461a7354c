"""The table of runs as the API answers it."""

import pytest


@pytest.fixture(scope="module")
def sweep_client(sweep):
    from web_client import serving

    with serving(sweep) as found:
        yield found


def test_a_table_has_what_was_asked_for(sweep_client):
    found = sweep_client.get(
        "/api/table", column=["lr", "val_loss:best", "state"], sort="val_loss:best", where="lr > 0.01 and seed = 0"
    )
    assert [column["key"] for column in found["columns"]] == ["lr", "val_loss:best", "state"]
    assert [column["kind"] for column in found["columns"]] == ["number", "number", "state"]
    best = [row["values"][1] for row in found["rows"]]
    assert best == sorted(best)
    assert (found["columns"][1]["low"], found["columns"][1]["high"]) == (best[0], best[-1])
    assert (len(best), found["total"], found["num_unread"]) == (9, 30, 0)


def test_groups_and_columns(sweep_client):
    found = sweep_client.get("/api/table", column="val_loss:best", group="width")
    assert [group["value"] for group in found["groups"]] == ["4", "8", "16"]
    assert {row["group"] for row in found["rows"]} == {"4", "8", "16"}
    known = {each["key"]: each for each in sweep_client.get("/api/columns")["columns"]}
    assert known["lr"]["differs"]
    assert known["val_loss"]["source"] == "number"


def test_a_wrong_filter_is_a_refusal_with_its_parameter(sweep_client):
    assert sweep_client.refused("/api/table", where="lr >")["key"] == "where"
    assert sweep_client.refused("/api/table", sort="lrr")["key"] == "sort"
    assert sweep_client.refused("/api/table", column="lrr")["key"] == "columns"
