"""Parquet files and Arrow streams that are whole and valid, and not what a writer of runs makes."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STAMPS = (
    b"x",
    b"-1",
    b"2",
    b"99",
    b"9" * 30,
    b"",
    b"\xff",
    b"[]",
    b"[[0,0,1000000000000]]",
    b"[[0,0,0,-1]]",
    b"{",
    b"NaN",
)
NAMES = ("", "\x1b[2J", "a/b", "../x", "|", "x" * 5000, "\u202egnp", "\0", "\U0001f600", "head.weight ")


def changed_table(chance, path):
    """Rewrite a file of rows with one thing about it changed; says what. None where it cannot be read."""
    is_parquet = path.endswith(".parquet")
    try:
        if is_parquet:
            table = pq.read_table(path)
        else:
            with open(path, "rb") as file:
                table = pa.ipc.open_stream(file.read()).read_all()
    except (OSError, ValueError, pa.ArrowException):
        return None
    if not table.num_columns:
        return None
    name = chance.choice(table.column_names)
    change = chance.choice(CHANGES)
    try:
        table = change(chance, table, name)
        content = _parquet(chance, table) if is_parquet else _stream(table)
    except (ValueError, TypeError, NotImplementedError, pa.ArrowException):
        return None  # this column cannot become that
    with open(path, "wb") as file:
        file.write(content)
    return f"{change.__name__} of '{name}' in"


def _parquet(chance, table):
    content = io.BytesIO()
    options = chance.choice(({}, {}, {"compression": "zstd"}, {"row_group_size": 1}, {"write_statistics": False}))
    pq.write_table(table, content, **options)
    return content.getvalue()


def _stream(table):
    content = io.BytesIO()
    with pa.ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def with_column(table, name, column):
    return table.set_column(table.column_names.index(name), name, column)


def dropped(_, table, name):
    return table.drop_columns([name])


def renamed(chance, table, name):
    other = chance.choice(("x", "", "step", "\x1b[2J", name.upper(), "sum\n"))
    return table.rename_columns([other if each == name else each for each in table.column_names])


def doubled(chance, table, name):
    return table.append_column(chance.choice((name, f"{name}2")), table.column(name))


def retyped(chance, table, name):
    num = table.num_rows
    kinds = (
        lambda: pa.array(np.arange(num, dtype=np.float32)),
        lambda: pa.array(np.arange(num, dtype=np.uint64)),
        lambda: pa.array(np.arange(num) % 2 == 0),
        lambda: pa.array(["x"] * num),
        lambda: pa.array(["7"] * num, pa.large_string()),
        lambda: pa.array([b"\xff"] * num),
        lambda: pa.array([[1.0]] * num),
        lambda: pa.array([{"a": 1}] * num),
        lambda: pa.nulls(num),
        lambda: pa.array(np.arange(num), pa.timestamp("us")),
        lambda: pa.array([None] * num, pa.decimal128(20, 2)),
    )
    return with_column(table, name, chance.choice(kinds)())


def other_dictionary(chance, table, _):
    """Names that are kept otherwise."""
    names = table.column("target").to_pylist()
    kinds = (
        pa.dictionary(pa.int64(), pa.string()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint32(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
        pa.dictionary(pa.int32(), pa.binary()),
        pa.string(),
        pa.binary(),
    )
    kind = chance.choice(kinds)
    plain = pa.array(names)
    if pa.types.is_dictionary(kind):
        indices = pa.array(range(len(names)), kind.index_type)
        return with_column(
            table, "target", pa.DictionaryArray.from_arrays(indices, plain.cast(kind.value_type), safe=False)
        )
    return with_column(table, "target", plain.cast(kind))


def other_names(chance, table, _):
    odd = chance.choice(NAMES)
    some = [odd if chance.random() < 0.5 else name for name in table.column("target").to_pylist()]
    return with_column(table, "target", pa.array(some).dictionary_encode())


def nulls(chance, table, name):
    kind = table.schema.field(name).type
    if chance.random() < 0.5:
        return with_column(table, name, pa.nulls(table.num_rows, kind))
    values = [None if chance.random() < 0.2 else value for value in table.column(name).to_pylist()]
    return with_column(table, name, pa.array(values, kind))


def extreme(chance, table, name):
    kind = table.schema.field(name).type
    if pa.types.is_floating(kind):
        words = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324)
    else:
        words = (-1, 2**31 - 1, -(2**31)) if kind == "int32" else (2**62, 2**63 - 1, -(2**63), -1)
    values = table.column(name).to_pylist()
    for at in range(len(values)):
        if chance.random() < 0.3:
            values[at] = chance.choice(words)
    return with_column(table, name, pa.array(values, kind))


def stamped(chance, table, _):
    """What a file says of its format, session and number."""
    metadata = dict(table.schema.metadata or {})
    known = [key for key in metadata if key.startswith(b"vario.")]
    if not known:
        raise ValueError("nothing to change")
    key = chance.choice(known)
    if chance.random() < 0.2:
        del metadata[key]
    else:
        metadata[key] = chance.choice(STAMPS)
    return table.replace_schema_metadata(metadata)


def without_rows(_, table, __):
    return table.slice(0, 0)


def repeated(chance, table, _):
    return pa.concat_tables([table] * chance.choice((2, 50)))


def backwards(_, table, __):
    return table.take(np.arange(table.num_rows)[::-1])


CHANGES = (
    dropped,
    renamed,
    doubled,
    retyped,
    retyped,
    other_dictionary,
    other_names,
    nulls,
    extreme,
    extreme,
    stamped,
    without_rows,
    repeated,
    backwards,
)
