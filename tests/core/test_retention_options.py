import pytest

from vario.config import Config
from vario.core.errors import ConfigError
from vario.core.retention_options import Tiers, tiers_of


def test_by_default_there_are_tiers_and_plain_numbers_stay_complete():
    assert Config().retention == "tiers"
    assert tiers_of("tiers", "gradient") == Tiers()
    assert tiers_of("tiers", "scalar") is None
    assert tiers_of("all", "gradient") is None
    assert tiers_of(None, "gradient") is None


def test_a_table_is_for_all_quantities_or_for_one():
    options = Config(
        retention={"bytes": "2GB", "gradient": "all", "activation": {"steps": 200}, "scalar": "tiers"}
    ).retention
    assert options["bytes"] == 2_000_000_000
    assert tiers_of(options, "gradient") is None
    assert tiers_of(options, "activation") == Tiers(steps=200, bytes=2_000_000_000)
    assert tiers_of(options, "weight") == tiers_of(options, "scalar") == Tiers(bytes=2_000_000_000)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("some", "retention: expected 'tiers', 'all' or a table"),
        ({"stps": 3}, "retention: unknown 'stps'. Did you mean 'steps'"),
        ({"steps": 0}, "retention.steps: expected a whole number of at least 1, got 0"),
        ({"bytes": "much"}, "retention.bytes: expected a whole number"),
        ({"gradient": 3}, "retention.gradient: expected 'tiers', 'all' or a table"),
        ({"gradient": {"evry": 3}}, "retention.gradient: unknown 'evry'. Did you mean 'every'"),
    ],
)
def test_a_wrong_option_is_named(wanted, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        Config(retention=wanted)
