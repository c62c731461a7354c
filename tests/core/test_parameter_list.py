"""Parameters that are described alike: read like a list, written like a list."""

import json

from vario.core.parameter_list import ParameterList, by_kind, json_texts, names_of

ROW, COLUMN = {"shape": [3], "dtype": "float32"}, {"shape": [3, 1], "shared_with": ['"odd"']}
PLAIN = [{"name": "a", **ROW}, {"name": "b.ü", **COLUMN}, {"name": 'c"', **ROW}]


def described():
    parameters = ParameterList()
    for name, kind in (("a", ROW), ("b.ü", COLUMN), ('c"', ROW)):
        parameters.add(name, kind)
    return parameters


def test_it_reads_like_a_list():
    parameters = described()
    assert list(parameters) == parameters[:] == PLAIN
    assert (len(parameters), parameters[-1]) == (3, PLAIN[2])
    assert names_of(parameters) == names_of(PLAIN) == ["a", "b.ü", 'c"']


def test_it_is_written_as_a_list_would_be():
    parameters = described()
    for index in range(10_000):
        parameters.add(f"layer.{index}", COLUMN if index % 3 else ROW)
    for held in (parameters, ParameterList()):
        content = {"modules": [{"name": "root"}], "parameters": held, "engine": "plain"}
        text = "".join(json_texts(content))
        assert text == json.dumps({**content, "parameters": list(held)})
    assert "".join(json_texts({})) == "{}"


def test_kinds_come_with_the_names_of_all_that_are_of_them():
    assert list(by_kind(described())) == [(["a", 'c"'], ROW), (["b.ü"], COLUMN)]
    assert [(list(names), kind["shape"]) for names, kind in by_kind(PLAIN)] == [
        (["a"], [3]),
        (["b.ü"], [3, 1]),
        (['c"'], [3]),
    ]
