import pytest

from vario.core.errors import ConfigError
from vario.core.selector import Selector, ancestors

MODULES = ["root", "layers.0", "layers.0.attn", "layers.0.norm", "layers.1", "layers.1.attn", "head"]
PARAMETERS = ["layers.0.attn.weight", "layers.0.norm.weight", "layers.1.attn.weight", "head.weight"]


def test_no_pattern_chooses_everything():
    assert Selector().modules(MODULES) == MODULES
    assert Selector().parameters(PARAMETERS) == PARAMETERS


def test_a_plain_name_chooses_itself():
    assert Selector(("head",)).modules(MODULES) == ["head"]


def test_a_glob_chooses_modules():
    assert Selector(("layers.*.attn",)).modules(MODULES) == ["layers.0.attn", "layers.1.attn"]


def test_a_regular_expression_must_match_the_whole_name():
    assert Selector(("re:layers\\.\\d",)).modules(MODULES) == ["layers.0", "layers.1"]


def test_a_module_brings_its_parameters_along():
    assert Selector(("layers.0",)).parameters(PARAMETERS) == ["layers.0.attn.weight", "layers.0.norm.weight"]


def test_invert_chooses_the_rest():
    assert Selector(("layers.*",), invert=True).parameters(PARAMETERS) == ["head.weight"]


def test_a_pattern_that_matches_nothing_is_refused_and_the_nearest_named():
    with pytest.raises(ConfigError, match=r"targets: 'haed' matches nothing in this model\. Did you mean 'head'\?"):
        Selector(("haed",)).check(MODULES, [])


def test_a_broken_regular_expression_is_refused():
    with pytest.raises(ConfigError, match="not a regular expression"):
        Selector(("re:(",)).check(MODULES, [])


def test_ancestors_start_with_the_name_itself():
    assert ancestors("a.b.c") == ["a.b.c", "a.b", "a"]
