"""What is stored of a run has no secrets in it."""

import pytest

from vario.core.masking import MASK, masked, masked_arguments, secret_values


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuvwx",
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrst1234",
        "glpat-abcdefghij_klmnop12",
        "xoxb-1234567890-abcdef",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def",
    ],
)
def test_keys_are_known_by_their_looks(secret):
    assert masked(f"login({secret}) ok") == f"login({MASK}) ok"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://me:pass@host/x.git", "https://***@host/x.git"),
        ("password=hunter22 x", "password=*** x"),
        ('{"api_key": "abcdefgh"}', '{"api_key": "***"}'),
        ("WANDB_API_KEY: abcdefgh", "WANDB_API_KEY: ***"),
        ("eos_token=151643", "eos_token=151643"),
        ("tokens: 4096 token: 12", "tokens: 4096 token: 12"),
        ("risk-averse tokenizer, task-specific", "risk-averse tokenizer, task-specific"),
        ("a // b @ c", "a // b @ c"),
    ],
)
def test_texts_keep_what_is_no_secret(text, found):
    assert masked(text) == found


def test_values_of_secret_variables_are_masked_wherever_they_are():
    environment = {"MY_TOKEN": "correcthorse", "PWD": "/home/someone", "SHORT_TOKEN": "abc", "NAME": "correct"}
    assert secret_values(environment) == ["correcthorse"]
    assert masked("a correcthorse battery", secret_values(environment)) == "a *** battery"


def test_a_command_line_has_no_secrets():
    words = ["train.py", "--api-key", "k", "--token=k", "--hub_token", "--lr", "3", "--max_tokens", "5", "password=k"]
    found = ["train.py", "--api-key", MASK, f"--token={MASK}", "--hub_token", "--lr", "3", "--max_tokens", "5"]
    assert masked_arguments(words) == [*found, f"password={MASK}"]
