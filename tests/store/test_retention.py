import json
import random
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from made_runs import STATISTICS, header, record
from rollup_runs import TARGETS, random_frame, small_rollups
from starting import run_afresh
from vario import first_bad
from vario.core.errors import RunTaken
from vario.core.run_format import current_parts
from vario.runs.run import open_run
from vario.runs.views.heat import read_heat
from vario.sinks.store import Store
from vario.store.compacting import compact_run, dry_run, volume

TIERS = {"steps": 100, "bytes": 0, "around": 3, "every": 50}
NUM_STEPS = 600
COMPACTING = """
import os, signal, sys
from pathlib import Path
from vario.store.compacting import compact_run

seen = 0

def count(event, arguments):
    global seen
    if event in ("os.rename", "os.remove", "open") and "run" in str(arguments[0]):
        seen += 1
        if seen == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
compact_run(Path(sys.argv[1]), eval(sys.argv[3]), rollup_min_rows=1)
print(seen)
"""


def write(path, steps, retention="all", store=None, frames=None, **changes):
    """Steps of a run that merges, and thins if it is told to."""
    store = store or small_rollups()
    config = {"statistics": STATISTICS, "eps": 1e-8, "quantities": ["gradient"]}
    if retention is not None:
        config["retention"] = retention
    store.open(header(path, config=config, **changes))
    for step in steps:
        made = frames(step) if frames else [random_frame(step)]
        store.write(record(step, *made, loss=float(np.sin(step)), lr=step / 7))
    store.close("finished", None)
    return path


def rows(path, quantity="gradient"):
    """All rows in the order of (step, target)."""
    table = open_run(path).to_arrow(quantity)
    return sorted(map(repr, table.to_pylist()))


def bad_rows(path):
    table = open_run(path).to_arrow("gradient")
    return [repr(row) for row in table.to_pylist() if row["nans"] or row["infs"]]


def part_names(path, quantity="gradient"):
    return sorted(file.name for file in (path / "rank0" / quantity).glob("part-*"))


def run_json(path):
    return json.loads((path / "run.json").read_text())


def incident(step, severity="page"):
    return json.dumps({"id": f"step-{step}", "step": step, "last_step": step, "severity": severity, "lead": {}}) + "\n"


def test_a_short_run_stays_complete_and_readable_for_older_versions(tmp_path):
    write(tmp_path / "run", range(70), "tiers")
    write(tmp_path / "plain", range(70), None)
    assert part_names(tmp_path / "run") == part_names(tmp_path / "plain")
    assert rows(tmp_path / "run") == rows(tmp_path / "plain")
    assert run_json(tmp_path / "run")["format"] == 1
    assert open_run(tmp_path / "run").thinned("gradient") == []


def test_merged_parts_have_every_row_once(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS))
    write(tmp_path / "plain", range(NUM_STEPS), None)
    assert len(part_names(tmp_path / "run")) < len(part_names(tmp_path / "plain")) / 4
    for quantity in ("gradient", "scalar"):
        assert rows(tmp_path / "run", quantity) == rows(tmp_path / "plain", quantity)
    assert open_run(tmp_path / "run").thinned("gradient") == []


def test_older_versions_refuse_a_run_with_merged_parts(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS))
    assert run_json(tmp_path / "run")["format"] == 2
    merged = list((tmp_path / "run" / "rank0" / "gradient").glob("part-*-*.parquet"))
    assert merged
    assert {pq.read_metadata(file).metadata[b"vario.format"] for file in merged} == {b"2"}


def clean_frame(step):
    """Rows of chance, of which a single one has a NaN."""
    frame = random_frame(step, seed=5)
    frame.summaries[:, 5:7] = 0
    if step == 430:
        frame.summaries[2, 5] = 4
    return frame


def test_what_stays_of_old_steps(tmp_path):
    store = small_rollups()
    store.open(header(tmp_path / "run", config={"statistics": STATISTICS, "retention": TIERS}))
    (tmp_path / "run" / "rank0" / "incidents.jsonl").write_text(incident(222) + incident(333, "note") + "{torn")
    for step in range(NUM_STEPS):
        store.write(record(step, clean_frame(step), loss=1.0))
    store.close("finished", None)
    run = open_run(tmp_path / "run")
    ((first, last),) = run.thinned("gradient")
    assert first == 0
    assert NUM_STEPS - 200 < last < NUM_STEPS - 100
    table = run.to_arrow("gradient")
    steps, counts = np.unique(table.column("step").to_numpy(), return_counts=True)
    assert set(counts) == {len(TARGETS)}
    # The start, an incident, a note, the first NaN; one step in 50; the newest.
    around = {*range(4), *range(219, 226), *range(331, 336)}
    regular = set(range(0, NUM_STEPS, 50))
    newest = set(range(last + 1, NUM_STEPS))
    onset = set(range(425, 436)) if last >= 435 else set()
    assert around | regular | newest <= set(steps.tolist())
    assert set(steps.tolist()) - around - regular - newest <= onset
    assert [row["step"] for row in table.to_pylist() if row["nans"]] == [430]
    assert run.steps("gradient").tolist() == list(range(NUM_STEPS))


def test_pictures_of_thinned_steps_have_every_extreme_and_every_nan(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS), TIERS)
    write(tmp_path / "plain", range(NUM_STEPS), None)
    for statistic in ("norm", "mean"):
        pictures = [read_heat(open_run(tmp_path / name), "gradient", statistic, columns=6) for name in ("run", "plain")]
        thin, full = pictures
        assert (thin.first.tolist(), thin.last.tolist()) == (full.first.tolist(), full.last.tolist())
        np.testing.assert_array_equal(thin.values, full.values)
        np.testing.assert_array_equal(thin.bad, full.bad)


def test_the_first_nan_is_found_after_thinning(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS + 200), None, frames=lambda step: [clean_frame(step)])
    compact_run(tmp_path / "run", TIERS)
    onset = first_bad(open_run(tmp_path / "run"))
    assert (onset.step, onset.target, onset.nans) == (430, TARGETS[2], 4)
    steps = set(open_run(tmp_path / "run").to_arrow("gradient").column("step").to_pylist())
    assert set(range(425, 436)) <= steps
    assert not {424, 436} & steps


def test_rollups_have_the_mean_of_the_good_points(tmp_path):
    write(tmp_path / "run", range(200), None)
    for level in ("1", "2"):
        for file in (tmp_path / "run" / "rank0" / "outlines" / "gradient").glob(f"{level}-*"):
            for row in pq.read_table(file).to_pylist():
                at = TARGETS.index(row["target"])
                cell = [random_frame(step).summaries[at] for step in range(row["first_step"], row["last_step"] + 1)]
                norms = [np.sqrt(one[2]) for one in cell if not one[5] and not one[6]]
                assert row["norm_mean"] == pytest.approx(np.mean(norms) if norms else np.nan, rel=1e-6, nan_ok=True)


def test_a_run_that_resumes_often_has_few_files(tmp_path):
    for session in range(40):
        first = 3 * session
        write(tmp_path / "run", range(first, first + 3), resume=session > 0, store=small_rollups(rollup_min_rows=10**9))
    assert len(part_names(tmp_path / "run")) < 16
    assert open_run(tmp_path / "run").to_arrow("gradient").column("step").to_pylist()[:: len(TARGETS)] == [*range(120)]


def test_what_a_resume_took_back_is_not_merged_in(tmp_path):
    write(tmp_path / "run", range(100))
    other = {step: random_frame(step, seed=1) for step in range(60, 200)}
    frames = lambda step: [other[step]]  # noqa: E731 - as short as its use
    write(tmp_path / "run", range(60, 200), resume=True, first_step=60, frames=frames)
    compact_run(tmp_path / "run", "all")
    table = open_run(tmp_path / "run").to_arrow("gradient")
    assert table.column("step").to_pylist()[:: len(TARGETS)] == list(range(200))
    found = {(row["step"], row["target"]): row["sum_squares"] for row in table.to_pylist()}
    for step in (59, 60, 99, 150):
        frame = other.get(step) or random_frame(step)
        told = [found[step, name] for name in frame.targets]
        np.testing.assert_array_equal(told, frame.summaries[:, 2])


def test_a_second_resume_takes_back_steps_of_merged_sessions(tmp_path):
    for session in range(12):
        write(tmp_path / "run", range(10 * session, 10 * session + 10), resume=session > 0)
    compact_run(tmp_path / "run", "all")
    write(tmp_path / "run", range(45, 50), resume=True, first_step=45)
    assert open_run(tmp_path / "run").to_arrow("gradient").column("step").to_pylist()[:: len(TARGETS)] == [*range(50)]


def test_an_open_reader_goes_on_when_parts_are_merged(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS), None)
    run = open_run(tmp_path / "run")
    before = run.series(TARGETS[0], "gradient", "norm")
    files = [row_file for row_file, _ in run.reader(0, "gradient").shown(run.sessions)]
    compact_run(tmp_path / "run", "all")
    after = run.series(TARGETS[0], "gradient", "norm")
    np.testing.assert_array_equal(before.steps, after.steps)
    np.testing.assert_array_equal(before.values, after.values)
    with pytest.raises(FileNotFoundError, match="merged with others"):
        files[0].read(["step"])


def test_a_run_of_an_older_version_is_thinned_afterwards(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS), None)
    expected = bad_rows(tmp_path / "run")
    before = volume(tmp_path / "run")
    after = compact_run(tmp_path / "run", TIERS)
    assert after == volume(tmp_path / "run")
    assert after.num_bytes < before.num_bytes
    assert after.num_files < before.num_files / 2
    assert bad_rows(tmp_path / "run") == expected
    # A second time there is nothing to do.
    names = part_names(tmp_path / "run")
    compact_run(tmp_path / "run", TIERS)
    assert part_names(tmp_path / "run") == names


def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path):
    write(tmp_path / "run", range(NUM_STEPS), None)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    told = dry_run(tmp_path / "run", TIERS)
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    found = compact_run(tmp_path / "run", TIERS)
    assert told.num_files == found.num_files
    assert told.num_bytes == pytest.approx(found.num_bytes, rel=0.01)


def test_a_run_that_is_being_written_is_refused(tmp_path):
    store = small_rollups()
    store.open(header(tmp_path / "run"))
    store.write(record(0))
    code = "import sys; from pathlib import Path; from vario.store.compacting import compact_run; "
    done = run_afresh(["-c", code + "compact_run(Path(sys.argv[1]), 'all')", tmp_path / "run"])
    assert done.returncode == 1
    assert RunTaken.__name__ in done.stderr
    assert "still writing this run" in done.stderr
    store.close("finished", None)


def test_a_damaged_part_keeps_its_neighbours_as_they_are(tmp_path, caplog):
    write(tmp_path / "run", range(200), None)
    damaged = tmp_path / "run" / "rank0" / "gradient" / "part-000003.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:4] + bytes(200) + content[204:])
    names = part_names(tmp_path / "run")
    write(tmp_path / "run", range(200, 210), TIERS, resume=True)
    assert set(names) <= set(part_names(tmp_path / "run"))
    assert "not thinned or merged from now on" in caplog.text


@pytest.mark.parametrize("retention", ["all", TIERS], ids=["merging", "thinning"])
def test_a_kill_at_any_moment_loses_no_row_and_shows_none_twice(tmp_path, retention):
    write(tmp_path / "run", range(300), None)
    complete = rows(tmp_path / "run")
    bad = bad_rows(tmp_path / "run")
    num_events = 400 if retention == "all" else 500
    chance = random.Random(7)
    num_killed = 0
    for _ in range(6):
        place = chance.randrange(1, num_events)
        done = run_afresh(["-c", COMPACTING, tmp_path / "run", str(place), repr(retention)])
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        num_killed += done.returncode != 0
        found = rows(tmp_path / "run")
        assert len(found) == len(set(found))
        assert found == complete if retention == "all" else set(found) <= set(complete)
        assert bad_rows(tmp_path / "run") == bad
        assert len(open_run(tmp_path / "run").steps("gradient")) == 300
    assert num_killed
    compact_run(tmp_path / "run", retention)
    found = rows(tmp_path / "run")
    assert found == complete if retention == "all" else set(found) <= set(complete)
    files = list((tmp_path / "run" / "rank0" / "gradient").iterdir())
    assert not [file for file in files if file.name.endswith((".tmp", ".arrow"))]
    parts = part_names(tmp_path / "run")
    assert len(current_parts(parts)) == len(parts) < 20


def test_ranks_merge_once_the_leading_one_has_said_so(tmp_path):
    # The leading rank has nothing to merge: its part is never closed.
    stores = [Store(), small_rollups(part_steps=100, rollup_min_rows=10**9)]
    for rank, store in enumerate(stores):
        config = {"statistics": STATISTICS, "retention": "all"}
        store.open(header(tmp_path / "run", rank=rank, world_size=2, config=config))
    for step in range(1900):
        stores[1].write(record(step, random_frame(step), loss=1.0))
    assert run_json(tmp_path / "run")["format"] == 1
    assert not list((tmp_path / "run" / "rank1" / "gradient").glob("part-*-*.parquet"))
    for step in range(2100):
        stores[0].write(record(step, random_frame(step, targets=TARGETS[:1]), loss=1.0))
    assert run_json(tmp_path / "run")["format"] == 2
    stores[1].write(record(1900, random_frame(1900), loss=1.0))
    for store in reversed(stores):
        store.close("finished", None)
    assert list((tmp_path / "run" / "rank1" / "gradient").glob("part-*-*.parquet"))
    assert run_json(tmp_path / "run")["state"] == "finished"
