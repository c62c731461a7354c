import string

import pytest

from vario.reports.progress_words import NOTES, WORDS, language_of, say_duration, say_note


def gaps(text):
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)


@pytest.mark.parametrize("spoken", [WORDS, NOTES])
def test_both_languages_say_the_same_things_about_the_same_numbers(spoken):
    assert set(spoken["en"]) == set(spoken["zh"])
    for key, text in spoken["en"].items():
        assert set(gaps(spoken["zh"][key])) <= set(gaps(text)), key


@pytest.mark.parametrize(
    ("locale", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "de_DE", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_language_is_that_of_the_locale(locale, language):
    assert language_of(locale) == language


def test_a_remark_without_words_is_not_lost():
    assert say_note("en", "brand_new", {"count": 3}) == "brand_new: count 3"


@pytest.mark.parametrize(
    ("seconds", "english", "chinese"),
    [
        (0.05, "50 ms", "50 毫秒"),
        (65, "1 min 05 s", "1 分 05 秒"),
        (7200, "2 h 00 min", "2 小时 00 分"),
        (2e5, "2.3 days", "2.3 天"),
    ],
)
def test_durations(seconds, english, chinese):
    assert (say_duration("en", seconds), say_duration("zh", seconds)) == (english, chinese)
