"""Names nobody should choose: refused when watching begins, or made safe, and never the end of recording."""

import json

import pytest
import torch

import vario
from vario.config import Config, read_config
from vario.core.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "a/b", "/", ".jobs", "x" * 241, "\u00e9" * 121, "a\nb", "\x1b[2J", "a\0b", "\ud800", 1.5, True],
)
def test_a_name_that_is_no_folder_of_its_own_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=r"^name: "):
        Config(name=name)


@pytest.mark.parametrize("name", ["run", "x" * 240, "\u8bad\u7ec3", "a b.c", ".hidden", "20251115-093000"])
def test_other_names_are_taken(name):
    assert Config(name=name).name == name


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000, b"{" * 100_000, b"a: [" * 50_000])
def test_a_config_that_is_no_text_or_too_deep_is_refused_by_file(tmp_path, suffix, content):
    path = tmp_path / f"watch{suffix}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^.*watch"):
        read_config(path)


@pytest.mark.parametrize("key", ["quantities", "statistics", "sinks", "directory", "name", "engine", "targets"])
def test_a_value_of_another_kind_is_refused_by_key(tmp_path, key):
    path = tmp_path / "watch.json"
    for value in (1.5, [1.5], {"a": 1}, [None], [["x"]]):
        path.write_text(json.dumps({key: value}))
        with pytest.raises(ConfigError, match=key):
            read_config(path)


def test_logged_names_that_are_no_text_or_very_long_are_recorded(tmp_path):
    """Half a character used to switch the whole store off at step 0."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with vario.watch(model, optimizer, directory=str(tmp_path), name="run", quantities=["gradient"]) as monitor:
        for _ in range(3):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(**{"half \ud800": 1.0, "x" * 100_000: 2.0, "": 3.0, "whole": 4.0})
    run = vario.open_run(tmp_path / "run")
    assert run.parts_off == []
    names = run.targets("scalar")
    assert {"half \\ud800", "whole"} <= set(names)
    assert max(map(len, names)) <= 4096
    assert run.series("half \\ud800", "scalar").values.tolist() == [1.0] * 3
    assert run.series("whole", "scalar").values.tolist() == [4.0] * 3
    assert len(run.steps("gradient")) == 3
