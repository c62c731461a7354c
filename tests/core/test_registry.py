import sys

import pytest

from vario.core.errors import ConfigError
from vario.core.registry import Registry
from vario.statistics import STATISTICS


def test_a_file_in_the_folder_is_a_part(tmp_path, monkeypatch):
    folder = tmp_path / "some_parts"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text("class First:\n    'The first.'\n    part_name = 'first'\n")
    (folder / "second.py").write_text(
        "from some_parts.first import First\nclass Second:\n    'The second.'\n    part_name = 'second'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("parts", "some_parts", lambda part: getattr(part, "part_name", None))
    assert registry.names() == ["first", "second"]
    assert [found.origin for found in registry] == ["some_parts.first", "some_parts.second"]
    for name in [name for name in sys.modules if name.startswith("some_parts")]:
        del sys.modules[name]


def test_so_is_one_in_a_room_of_the_folder(tmp_path, monkeypatch):
    room = tmp_path / "parts_in_rooms" / "room"
    room.mkdir(parents=True)
    for folder in (room.parent, room):
        (folder / "__init__.py").write_text("")
    (room / "first.py").write_text("class First:\n    part_name = 'first'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("parts", "parts_in_rooms", lambda part: getattr(part, "part_name", None))
    assert [found.origin for found in registry] == ["parts_in_rooms.room.first"]
    for name in [name for name in sys.modules if name.startswith("parts_in_rooms")]:
        del sys.modules[name]


def test_an_unknown_part_names_the_nearest():
    with pytest.raises(ConfigError, match=r"statistics: unknown 'nrom'\. Did you mean 'norm'\?"):
        STATISTICS.get("nrom")


def test_the_key_a_user_wrote_is_the_one_in_the_error():
    with pytest.raises(ConfigError, match=r"^--statistic: unknown"):
        STATISTICS.get("nrom", "--statistic")


def test_the_entry_point_group_is_the_package():
    assert STATISTICS.group == "vario.statistics"


def test_membership():
    assert "norm" in STATISTICS
    assert "nrom" not in STATISTICS
