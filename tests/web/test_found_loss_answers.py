"""A loss that nobody logged, as the addresses answer it."""

import made_runs


def test_the_list_and_the_run_say_that_a_loss_was_found(tmp_path, serve):
    made_runs.write_run(tmp_path / "found", [made_runs.record(step, loss_backward=9.0 - step) for step in range(8)])
    made_runs.write_run(tmp_path / "logged", [made_runs.record(step, loss=3.0, loss_backward=1.0) for step in range(8)])
    with serve(tmp_path) as client:
        rows = {row["name"]: row for row in client.get("/api/runs")["runs"]}
        homes = {name: client.get("/api/run", run=name)["vital"][0] for name in rows}
    assert (rows["found"]["loss"], rows["found"]["loss_is_found"]) == (2.0, True)
    assert (rows["logged"]["loss"], rows["logged"]["loss_is_found"]) == (3.0, False)
    assert (homes["found"]["target"], homes["found"]["is_found"]) == ("loss_backward", True)
    assert (homes["logged"]["target"], homes["logged"]["is_found"]) == ("loss", False)
