"""Run folders, logs and configs damaged in many ways, the same every time: what readers have to stand."""

import json
import os
import random
import shutil
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = (
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    2**63,
    10**30,
    "x",
    "",
    "\ud800",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"a": 1},
    ["x"],
    "NaN",
)
"""Values that a key of a JSON file does not have."""
DEEP = b"[" * 100_000 + b"]" * 100_000
NAMES = (b"\xff\xfe", b"a\nb", b"x" * 255, b"%n", b"\x1b[31mred")


def damaged_run(random_source: random.Random, folder: str) -> str:
    """Spoil one file of a copied run; says what was done."""
    files = sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name.isascii())
    path = random_source.choice(files)
    return f"{damaged_file(random_source, path)} {os.path.relpath(path, folder)}"


def damaged_file(random_source: random.Random, path: str) -> str:
    """Spoil one file; says what was done."""
    if path.endswith(".json") and random_source.random() < 0.7:
        return _other_values(random_source, path)
    if path.endswith(".parquet") and random_source.random() < 0.5:
        return _other_columns(random_source, path)
    ways = (cut, flip, overwrite, empty, grow, vanish, turn_into_folder, name_oddly)
    return random_source.choice(ways)(random_source, path)


def cut(random_source, path):
    content = _read(path)
    _write(path, content[: random_source.randrange(len(content) + 1)])
    return "cut"


def flip(random_source, path):
    content = bytearray(_read(path) or b"\0")
    for _ in range(random_source.choice((1, 1, 4, 64))):
        content[random_source.randrange(len(content))] ^= 1 << random_source.randrange(8)
    _write(path, bytes(content))
    return "flipped bits of"


def overwrite(random_source, path):
    content = bytearray(_read(path) or b"\0")
    at = random_source.randrange(len(content))
    junk = random_source.choice(
        (b"\xff" * 8, bytes(8), struct.pack("<q", -1), struct.pack("<i", 2**31 - 1), b"\x80" * 16)
    )
    content[at : at + len(junk)] = junk
    _write(path, bytes(content))
    return "overwrote a word of"


def empty(random_source, path):
    _write(path, random_source.choice((b"", b"\n", b"null", b"[]", b"{}", b"\xff\xfe{", DEEP, bytes(4096))))
    return "emptied"


def grow(random_source, path):
    _write(path, _read(path) + random_source.choice((b"}", bytes(100), b"PAR1", random_source.randbytes(64))))
    return "lengthened"


def vanish(_, path):
    os.unlink(path)
    return "removed"


def turn_into_folder(_, path):
    os.unlink(path)
    os.mkdir(path)
    return "made a folder of"


def name_oddly(random_source, path):
    shutil.copy(path, os.path.join(os.path.dirname(path).encode(), random_source.choice(NAMES)))
    return "copied to an odd name"


def _other_values(random_source, path):
    """One value somewhere in a JSON file becomes another one."""
    try:
        content = json.loads(_read(path))
        places = list(_places(content))
    except (ValueError, TypeError, RecursionError):
        return flip(random_source, path)
    if not places:
        return "left"
    holder, key = random_source.choice(places)
    holder[key] = random_source.choice(WORDS)
    _write(path, json.dumps(content).encode())
    return f"changed '{key}' to {holder[key]!a} in"


def _places(content):
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], (dict, list)):
            yield from _places(content[key])


def _other_columns(random_source, path):
    """A Parquet file that is whole, and not what a writer of runs makes."""
    try:
        table = pq.read_table(path)
    except (OSError, ValueError):
        return flip(random_source, path)
    metadata = dict(table.schema.metadata or {})
    name = random_source.choice(table.column_names)
    place = table.column_names.index(name)
    kind = random_source.choice(("drop", "type", "nulls", "extreme", "stamp", "rename", "nothing", "text"))
    if kind == "drop":
        table = table.drop([name])
    elif kind == "type":
        table = table.set_column(place, name, pa.array(np.arange(table.num_rows, dtype=np.float32)))
    elif kind == "text":
        table = table.set_column(place, name, pa.array(["x"] * table.num_rows))
    elif kind == "nulls":
        table = table.set_column(place, name, pa.nulls(table.num_rows, table.schema.field(name).type))
    elif kind == "extreme" and name != "target":
        extreme = random_source.choice(
            (-1, 2**31 - 1, -(2**31)) if table.schema.field(name).type == "int32" else (2**62, -(2**62))
        )
        column = pa.array([extreme] * table.num_rows).cast(table.schema.field(name).type, safe=False)
        table = table.set_column(place, name, column)
    elif kind == "rename":
        table = table.rename_columns([other if other != name else "x" for other in table.column_names])
    elif kind == "nothing":
        table = table.slice(0, 0)
    known = [key for key in metadata if key.startswith(b"vario.")]
    if kind == "stamp" and known:
        metadata[random_source.choice(known)] = random_source.choice(
            (b"x", b"-1", b"9" * 30, b"[]", b"[[0,0,1000000000000]]", b"{")
        )
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return f"{kind} of '{name}' in"


def _read(path):
    with open(path, "rb") as file:
        return file.read()


def _write(path, content):
    with open(path, "wb") as file:
        file.write(content)
