"""Run folders, logs and configs damaged in many ways, the same every time: what readers have to stand."""

import json
import os
import random
import shutil
import struct

from odd_tables import changed_table

WORDS = (
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    2**63,
    -(2**63),
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    "x",
    "",
    "\ud800",
    "\x1b[2J",
    "x" * 70_000,
    "../../etc",
    [],
    [[]],
    {},
    {"a": 1},
    {"": {"": [None]}},
    ["x"],
    [1e999],
    "NaN",
    "0",
)
"""Values that a key of a JSON file does not have."""
DEEP = b"[" * 100_000 + b"]" * 100_000
NAMES = (b"\xff\xfe", b"a\nb", b"x" * 255, b"%n", b"\x1b[31mred")


def damaged_run(chance: random.Random, folder: str) -> str:
    """Spoil one file of a copied run; says what was done."""
    files = sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name.isascii())
    if not files:
        return "nothing is left"
    path = chance.choice(files)
    if chance.random() < 0.1:
        return swap(chance, path, files, folder)
    return f"{damaged_file(chance, path)} {os.path.relpath(path, folder)}"


def damaged_file(chance: random.Random, path: str) -> str:
    """Spoil one file; says what was done."""
    done = None
    if path.endswith(".json") and chance.random() < 0.7:
        done = _other_values(chance, path)
    elif path.endswith(".jsonl") and chance.random() < 0.7:
        done = _other_lines(chance, path)
    elif path.endswith((".parquet", ".arrow")) and chance.random() < 0.6:
        done = changed_table(chance, path)
    ways = (cut, flip, overwrite, empty, grow, vanish, turn_into_folder, name_oddly)
    return done or chance.choice(ways)(chance, path)


def swap(chance, path, files, folder):
    """Two files of a kind in each other's place: of another quantity, rank or session."""
    alike = [other for other in files if other != path and os.path.splitext(other)[1] == os.path.splitext(path)[1]]
    if not alike:
        return flip(chance, path) + f" {os.path.relpath(path, folder)}"
    other = chance.choice(alike)
    mine, theirs = _read(path), _read(other)
    _write(path, theirs)
    if chance.random() < 0.5:
        _write(other, mine)
    return f"put {os.path.relpath(other, folder)} in the place of {os.path.relpath(path, folder)}"


def cut(chance, path):
    content = _read(path)
    _write(path, content[: chance.randrange(len(content) + 1)])
    return "cut"


def flip(chance, path):
    content = bytearray(_read(path) or b"\0")
    for _ in range(chance.choice((1, 1, 4, 64))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    _write(path, bytes(content))
    return "flipped bits of"


def overwrite(chance, path):
    content = bytearray(_read(path) or b"\0")
    at = chance.randrange(len(content))
    junk = chance.choice((b"\xff" * 8, bytes(8), struct.pack("<q", -1), struct.pack("<i", 2**31 - 1), b"\x80" * 16))
    content[at : at + len(junk)] = junk
    _write(path, bytes(content))
    return "overwrote a word of"


def empty(chance, path):
    _write(path, chance.choice((b"", b"\n", b"null", b"[]", b"{}", b"\xff\xfe{", DEEP, bytes(4096))))
    return "emptied"


def grow(chance, path):
    _write(path, _read(path) + chance.choice((b"}", bytes(100), b"PAR1", chance.randbytes(64))))
    return "lengthened"


def vanish(_, path):
    os.unlink(path)
    return "removed"


def turn_into_folder(_, path):
    os.unlink(path)
    os.mkdir(path)
    return "made a folder of"


def name_oddly(chance, path):
    shutil.copy(path, os.path.join(os.path.dirname(path).encode(), chance.choice(NAMES)))
    return "copied to an odd name"


def _other_values(chance, path):
    """One value somewhere in a JSON file becomes another one; or its keys do."""
    try:
        content = json.loads(_read(path))
        places = list(_places(content))
    except (ValueError, TypeError, RecursionError):
        return None
    if not places:
        return None
    text, done = _changed(chance, content, places)
    _write(path, text.encode(errors="surrogatepass"))
    return f"{done} in"


def _changed(chance, content, places):
    holder, key = chance.choice(places)
    way = chance.random()
    if way < 0.15:
        del holder[key]
        return json.dumps(content), f"took '{key}' out"
    if way < 0.25 and isinstance(content, dict):
        first = next(iter(content), "x")
        return f"{{{json.dumps(first)}: {json.dumps(chance.choice(WORDS))}, {json.dumps(content)[1:]}", "doubled a key"
    holder[key] = chance.choice(WORDS)
    return json.dumps(content), f"changed '{key}' to {holder[key]!a:.40}"


def _other_lines(chance, path):
    """One line of a file of JSON lines becomes another one."""
    lines = _read(path).split(b"\n")
    at = chance.randrange(len(lines))
    try:
        content = json.loads(lines[at])
        text, done = _changed(chance, content, list(_places(content)))
        lines[at] = text.encode(errors="surrogatepass")
    except (ValueError, TypeError, IndexError, RecursionError):
        lines[at], done = chance.choice((b"", b"\0", b"null", b"[]", b"\xff", b"{", DEEP)), "replaced a line"
    if chance.random() < 0.2:
        lines *= 50
    _write(path, b"\n".join(lines))
    return f"{done} in"


def _places(content):
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], (dict, list)):
            yield from _places(content[key])


def _read(path):
    with open(path, "rb") as file:
        return file.read()


def _write(path, content):
    with open(path, "wb") as file:
        file.write(content)
