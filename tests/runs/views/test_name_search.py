import pytest

from vario.runs.views.name_search import matching

NAMES = ("layers.0.attn.weight", "layers.0.attn.bias", "layers.1.mlp.weight", "head[0]+.weight")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", NAMES),
        ("weight", (NAMES[0], NAMES[2], NAMES[3])),
        ("WEIGHT attn", NAMES[:1]),
        ("attn  0", NAMES[:2]),
        ("layers.*.weight", (NAMES[0], NAMES[2])),
        ("*.bias", NAMES[1:2]),
        ("ayers.*.weight", ()),
        ("layers.* mlp", NAMES[2:3]),
        ("head[0]+*", NAMES[3:]),
        ("layers.?.mlp*", NAMES[2:3]),
        ("re:attn|MLP", NAMES[:3]),
        ("re:^layers\\.\\d+\\.attn", NAMES[:2]),
        ("re:layers .*", ()),
        ("re:(", ()),
        ("re:" + "(a*)*" * 20 + "$", NAMES),
    ],
)
def test_names_have_all_words_and_stars_stand_for_anything(text, found):
    assert tuple(matching(NAMES, text)) == found
