import json

import pytest

from vario.config import Config, make_config, read_config
from vario.core.errors import ConfigError


def test_keywords_make_a_config():
    config = make_config({"quantities": ["gradient"], "every": 5})
    assert config.quantities == ("gradient",)
    assert config.schedule("gradient").every == 5


def test_readings_of_the_machine_are_chosen_by_an_interval_a_table_or_off():
    assert Config(machine=True).machine == {"seconds": 1.0}
    assert Config(machine=5).machine == Config(machine="5").machine == {"seconds": 5.0}
    assert Config(machine={"price": 0.3}).machine == {"seconds": 1.0, "price": 0.3}
    assert Config(machine="off").machine is Config(machine=False).machine is Config(machine=None).machine is None
    assert make_config({}, Config(machine={"carbon": 400})).machine == {"seconds": 1.0, "carbon": 400.0}


def test_the_environment_says_what_is_read_of_the_machine_by_default(monkeypatch):
    monkeypatch.delenv("VARIO_MACHINE")
    assert Config().machine == {"seconds": 1.0}
    monkeypatch.setenv("VARIO_MACHINE", "10")
    assert Config().machine == {"seconds": 10.0}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("fast", "machine: expected seconds, a table of seconds, price, carbon or 'off', got 'fast'"),
        ({"second": 1}, "machine: unknown 'second'. Did you mean 'seconds'?"),
        (0, "machine.seconds: expected a number of at least 0.1, got 0"),
        ({"price": -1}, "machine.price: expected a number of at least 0, got -1"),
    ],
)
def test_wrong_readings_of_the_machine_are_refused(wanted, message):
    with pytest.raises(ConfigError) as error:
        Config(machine=wanted)
    assert str(error.value) == message


def test_one_word_stands_for_a_list_of_one():
    assert Config(quantities="gradient").quantities == ("gradient",)


def test_dear_quantities_are_watched_rarer_unless_said_otherwise():
    assert Config().schedule("gradient").every == 1
    assert Config().schedule("activation").every == 10
    assert Config(every={"activation": 50}).schedule("activation").every == 50
    assert Config(every={"activation": 50}).schedule("gradient").every == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantites": ["gradient"]}, "unknown 'quantites'. Did you mean 'quantities'?"),
        ({"quantities": ["gradients"]}, "quantities: unknown 'gradients'. Did you mean 'gradient'?"),
        ({"quantities": ["scalar"]}, "quantities: unknown 'scalar'"),
        ({"statistics": ["nrom"]}, "statistics: unknown 'nrom'. Did you mean 'norm'?"),
        ({"every": 0}, "every: expected a whole number of at least 1, got 0"),
        ({"every": {"activaton": 2}}, "every: unknown 'activaton'. Did you mean 'activation'?"),
        ({"start": -1}, "start: expected a whole number of at least 0, got -1"),
        ({"count": True}, "count: expected a whole number"),
        ({"strict": "yes"}, "strict: expected true or false, got 'yes'"),
        ({"eps": float("nan")}, "eps: expected a number of at least 0"),
        ({"ranks": ["0"]}, "ranks: expected whole numbers"),
        ({"targets": ["re:("]}, "not a regular expression"),
        ({"targets": [3]}, "targets: expected names or patterns, got 3"),
        ({"quantities": {"gradient": 1}}, "quantities: expected a list"),
        ({"resume": True}, "resume: needs the name"),
        ({"name": "a/b"}, "name: 'a/b' is not a plain folder name"),
        ({"name": ""}, "name: '' is not a plain folder name"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    with pytest.raises(ConfigError) as caught:
        make_config(options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vario.toml", 'quantities = ["gradient"]\n[every]\ngradient = 2\n'),
        ("vario.yaml", "quantities: [gradient]\nevery: {gradient: 2}\n"),
        ("vario.yml", "quantities: [gradient]\nevery: {gradient: 2}\n"),
        ("vario.json", '{"quantities": ["gradient"], "every": {"gradient": 2}}'),
    ],
)
def test_every_kind_of_file_says_the_same(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_config(tmp_path / name) == Config(quantities=("gradient",), every={"gradient": 2})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "quantities = [", "not valid TOML"),
        ("a.json", "{", "not valid JSON"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.ini", "", "unknown kind of config file '.ini'"),
        ("a.json", "[1]", "expected a table of options, got list"),
        ("a.toml", "everi = 2", "a.toml: unknown 'everi'. Did you mean 'every'?"),
        ("a.toml", "every = 0", "a.toml: every: expected"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / name)
    assert message in str(caught.value)


def test_what_is_no_config_is_refused_by_its_type():
    with pytest.raises(ConfigError, match=r"config: expected a vario.Config, got str"):
        make_config({}, "vario.toml")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml")


def test_an_empty_yaml_file_changes_nothing(tmp_path):
    (tmp_path / "a.yaml").write_text("")
    assert read_config(tmp_path / "a.yaml") == Config()


def test_plain_values_survive_json():
    plain = Config(quantities=("gradient", "weight"), ranks=(0, 1)).to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["every"] == {"gradient": 1, "weight": 10}
