"""Few bytes that stand for gigabytes: a file is refused, or read in little memory, whatever it says of itself."""

import io
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import made_runs
import vario
from vario.core.errors import ConfigError, RunCorrupt, RunError
from vario.core.run_files import parquet
from vario.runs.views.grid import read_grid
from vario.store.encoding import FRAME_FIELDS

STAMP = {"vario.format": "1", "vario.session": "0", "vario.part": "1"}
SCHEMA = pa.schema(FRAME_FIELDS, metadata=STAMP)

PEAK = """
import sys, vario
run = vario.open_run(sys.argv[1])
for ask in (lambda: run.to_arrow("gradient"), lambda: run.targets("gradient"), lambda: run.steps("gradient"),
            lambda: run.series("a", "gradient"), lambda: run.sql("select sum(sum) from gradient")):
    try:
        ask()
    except vario.core.errors.VarioError as error:
        print(type(error).__name__)
# That of this process alone; `resource` tells of the one it was forked from as well.
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def rows(num, names=("a",)):
    """Rows that compress to nearly nothing."""
    columns = {}
    for field in SCHEMA:
        if field.name == "target":
            columns[field.name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(num, np.int32)), pa.array(names))
        else:
            columns[field.name] = pa.array(np.zeros(num, field.type.to_pandas_dtype()))
    return pa.table(columns, schema=SCHEMA)


def with_part(folder, write):
    """A run whose only part of `gradient` is written by a function of its path."""
    made_runs.write_run(folder, [made_runs.record(0)])
    part = folder / "rank0/gradient/part-000001.parquet"
    write(part)
    return vario.open_run(folder)


def write_many(path, num_rows=1 << 18, num_groups=16):
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for _ in range(num_groups):
            writer.write_table(rows(num_rows), row_group_size=num_rows)


def write_stream(path, table, compression):
    target = io.BytesIO()
    with pa.ipc.new_stream(target, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    path.write_bytes(target.getvalue())


def test_a_part_of_very_many_rows_is_refused_by_its_footer(tmp_path):
    run = with_part(tmp_path / "run", write_many)
    size = (run.path / "rank0/gradient/part-000001.parquet").stat().st_size
    assert size < 1 << 20, "a bomb is small"
    with pytest.raises(RunCorrupt, match=r"part-000001.parquet: not read: its rows would take more than"):
        run.to_arrow("gradient")
    with pytest.raises(RunError):
        run.sql("select count(*) from gradient where sum > 1 or target = 'a'")


def test_many_small_parts_that_come_to_very_much_together_are_refused(tmp_path):
    run = with_part(tmp_path / "run", lambda path: write_many(path, 1 << 20, 1))
    first = run.path / "rank0/gradient/part-000001.parquet"
    for number in range(2, 5):
        shutil.copy(first, first.with_name(f"part-{number:06d}.parquet"))
    with pytest.raises(RunCorrupt, match="as malicious files do"):
        run.to_arrow("gradient")
    assert run.steps("gradient").tolist() == [0]


def test_names_that_are_very_long_are_refused(tmp_path):
    run = with_part(
        tmp_path / "run", lambda path: pq.write_table(rows(9, ("x" * (40 << 20),)), path, compression="zstd")
    )
    with pytest.raises(RunCorrupt, match="not read"):
        run.targets("gradient")


@pytest.mark.parametrize("page_bytes", [1 << 30, 1 << 16])
@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_pages_are_measured_by_their_own_headers(tmp_path, compression, page_bytes):
    """The footer may lie about them, and Arrow makes as much room as a page asks for."""
    path = tmp_path / "some.parquet"
    num = 1 << 16
    table = rows(num, ("a" * 9, "b")).select(["sum", "target"])
    pq.write_table(table, path, compression=compression, use_dictionary=["target"], data_page_size=page_bytes)
    group = pq.read_metadata(path).row_group(0)
    with open(path, "rb", buffering=0) as opened:
        numbers, names = (parquet._pages_bytes(path, opened, group.column(at), at == 1) for at in (0, 1))
    assert 8 * num <= numbers <= 8 * num + 40_000 * 256 + 4096
    assert 0 < names <= group.column(1).total_uncompressed_size


def test_the_memory_of_a_reader_stays_small_whatever_a_file_says(tmp_path):
    with_part(tmp_path / "run", lambda path: write_many(path, 1 << 18, 80))
    answer = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "run")], check=True, capture_output=True, text=True
    ).stdout.split()
    assert int(answer[-1]) < 500, answer


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("inner", ["gradient.live.arrow", "gradient/part-000002.arrow"])
def test_a_compressed_stream_is_refused(tmp_path, compression, inner):
    made_runs.write_run(tmp_path / "run", [made_runs.record(0)])
    write_stream(tmp_path / "run/rank0" / inner, rows(1 << 20), compression)
    with pytest.raises(RunCorrupt, match=r"compressed, which a run's streams never are"):
        vario.open_run(tmp_path / "run").to_arrow("gradient")


def test_an_array_that_is_longer_than_its_bytes_is_never_looked_into(tmp_path):
    """Arrow trusts the lengths in a stream: reading on would read memory of others, or end the process."""
    made_runs.write_run(tmp_path / "run", [made_runs.record(0)])
    path = tmp_path / "run/rank0/gradient.live.arrow"
    write_stream(path, rows(1000), None)
    raw = bytearray(path.read_bytes())
    wanted = (1000).to_bytes(8, "little")
    at = raw.find(wanted)
    while at >= 0:
        raw[at : at + 8] = (1 << 40).to_bytes(8, "little")
        at = raw.find(wanted, at + 8)
    path.write_bytes(raw)
    run = vario.open_run(tmp_path / "run")
    assert run.to_arrow("gradient").num_rows == 4, "the closed part is whole, and the batch is not"


def test_a_rollup_that_tells_of_more_steps_than_fit_is_refused(tmp_path):
    store = made_runs.small_parts(rollup_min_rows=8, bucket_steps=4)
    made_runs.write_run(tmp_path / "run", [made_runs.record(step) for step in range(12)], store)
    (path,) = (tmp_path / "run/rank0/outlines/gradient").iterdir()
    table = pq.read_table(path)
    for steps in ([[0, 1, 10**12]], [[0, 2**62, 3]], [[-5, 1, 3]], []):
        told = {**table.schema.metadata, b"vario.steps": json.dumps(steps).encode()}
        pq.write_table(table.replace_schema_metadata(told), path)
        with pytest.raises(RunCorrupt, match="It may be deleted"):
            vario.open_run(tmp_path / "run").steps("gradient")


def test_a_large_honest_part_is_read(tmp_path):
    """What a writer makes of a full backlog, 100 MB of rows in one part, is no bomb."""
    num = 1_200_000
    table = rows(num).set_column(0, SCHEMA.field("step"), pa.array(np.arange(num)))
    run = with_part(tmp_path / "run", lambda path: pq.write_table(table, path, row_group_size=8192, compression="zstd"))
    assert len(run.steps("gradient")) == num
    assert run.series("a", "gradient").steps[-1] == num - 1


MANY = """
import sys, vario
from vario.runs.views.grid import read_grid
from vario.runs.views.heat import read_heat
run = vario.open_run(sys.argv[1])
asks = dict(everything=run.to_arrow, rows=lambda: run.to_arrow("gradient"), series=lambda: run.series("a", "gradient"),
            frame=lambda: run.frame(0, "gradient", "all"), heat=lambda: read_heat(run, "gradient"),
            grid=lambda: read_grid(run, "gradient"), sql=lambda: run.sql("select sum(sum) from gradient"),
            batches=lambda: sum(table.num_rows for table in run.batches("gradient")))
for name, ask in asks.items():
    try:
        answer = ask()
        print(name, answer if name == "batches" else "answered")
        del answer
    except vario.core.errors.RunError as error:
        print(name, "refused" if "VARIO_READ_MB" in str(error) else error)
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_very_many_small_parts_of_several_quantities_and_ranks_stay_within_one_limit(tmp_path):
    """Each quantity of each rank fits, and all that one answer needs of them does not; batches read everything."""
    run = with_part(tmp_path / "run", lambda path: write_many(path, 100_000, 1))
    first = run.path / "rank0/gradient/part-000001.parquet"
    raw = first.read_bytes()
    # Bytes that nobody reads make a file look as if it held more.
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    first.write_bytes(raw[:footer] + bytes(100_000) + raw[footer:])
    shutil.rmtree(run.path / "rank0/scalar")
    shutil.copytree(run.path / "rank0", run.path / "rank1")
    for folder in (run.path / "rank0/gradient", run.path / "rank0/weight", run.path / "rank1/gradient"):
        folder.mkdir(exist_ok=True)
        for number in range(1, 10):
            if not (folder / f"part-{number:06d}.parquet").exists():
                (folder / f"part-{number:06d}.parquet").hardlink_to(first)
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(run.path)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = dict(line.split(" ", 1) for line in done[:-1])
    assert {name: found[name] for name in ("everything", "frame", "series", "heat", "grid", "batches")} == {
        **dict.fromkeys(("everything", "frame", "series", "heat", "grid"), "refused"),
        "batches": "900000",
    }
    assert int(done[-1]) < 500, done


def test_rows_that_are_scattered_over_targets_and_steps_are_not_spread_out(tmp_path):
    """20,000 rows, each of a target and a step of its own, would be a table of 400 million cells."""
    num = 20_000
    target = pa.array([f"layer.{index}" for index in range(num)]).dictionary_encode()
    table = rows(num).set_column(0, SCHEMA.field("step"), pa.array(np.arange(num)))
    table = table.set_column(table.column_names.index("target"), SCHEMA.field("target"), target)
    run = with_part(tmp_path / "run", lambda path: pq.write_table(table.cast(SCHEMA), path))
    with pytest.raises(RunCorrupt, match="spread over 400,000,000 pairs"):
        read_grid(run, "gradient")


def test_a_reader_that_trusts_a_run_may_take_more_memory(tmp_path, monkeypatch):
    run = with_part(tmp_path / "run", lambda path: write_many(path, 1 << 20, 1))
    first = run.path / "rank0/gradient/part-000001.parquet"
    (first.parent / "part-000002.parquet").hardlink_to(first)
    with pytest.raises(RunCorrupt, match="VARIO_READ_MB=") as refused:
        run.to_arrow("gradient")
    monkeypatch.setenv("VARIO_READ_MB", re.search(r"VARIO_READ_MB=(\d+)", str(refused.value))[1])
    assert run.to_arrow("gradient").num_rows == 2 << 20
    monkeypatch.setenv("VARIO_READ_MB", "much")
    with pytest.raises(ConfigError, match=r"^VARIO_READ_MB: expected a whole number of megabytes"):
        run.to_arrow("gradient")
