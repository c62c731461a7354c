import argparse
import dataclasses

import pytest

from vario.cli import make_parser
from vario.cli.commands import load
from vario.cli.options import PARSERS, config_from, flag
from vario.config import Config
from vario.core.docstrings import field_docs
from vario.core.errors import ConfigError


def config(*words):
    return config_from(arguments(*words))


def arguments(*words):
    return make_parser("run", load("run")).parse_args([*words, "train.py"])


def test_every_field_has_a_flag_a_docstring_and_a_way_to_be_read():
    flags = [name for action in make_parser("run", load("run"))._actions for name in action.option_strings]
    docs = field_docs(Config)
    for item in dataclasses.fields(Config):
        assert flag(item.name) in flags
        assert docs[item.name].endswith(".")
        assert item.type == "bool" or item.type in PARSERS


def test_nothing_given_is_the_default():
    assert config() == Config()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--quantities", "gradient,weight"], {"quantities": ("gradient", "weight")}),
        (["--every", "5"], {"every": 5}),
        (["--every", "activation=50,weight=10"], {"every": {"activation": 50, "weight": 10}}),
        (["--targets", "layers.*,head"], {"targets": ("layers.*", "head")}),
        (["--targets", "re:a{1,2}", "--targets", "head"], {"targets": ("re:a{1,2}", "head")}),
        (["--ranks", "0,4"], {"ranks": (0, 4)}),
        (["--strict", "--eps", "0"], {"strict": True, "eps": 0.0}),
        (["--strict", "--no-strict"], {}),
        (["--name", "first", "--count", "3"], {"name": "first", "count": 3}),
        (["--first-step", "7"], {"first_step": 7}),
        (
            [
                *("--notify", "command=echo a,b=c", "--notify", "email.to=a@b.c", "--notify", "email.host=h"),
                *("--notify", "email.port=26", "--notify", "email.starttls=false", "--notify", "least=page"),
            ],
            {
                "notify": {
                    "command": "echo a,b=c",
                    "email": {"to": "a@b.c", "host": "h", "port": 26, "starttls": False},
                    "least": "page",
                }
            },
        ),
        (
            ["--actions", "page=snapshot,stop", "--actions", "grad_spike=escalate"],
            {"actions": {"page": ["snapshot", "stop"], "grad_spike": ["escalate"]}},
        ),
    ],
)
def test_flags_say_what_keywords_say(words, options):
    assert config(*words) == Config(**options)


def test_a_flag_wins_over_the_file(tmp_path):
    (tmp_path / "vario.toml").write_text("start = 3\ncount = 9\n")
    assert config("--config", str(tmp_path / "vario.toml"), "--start", "5") == Config(start=5, count=9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--every", "often"], "--every: cannot parse 'often'. Expected N | A=N,B=N"),
        (["--start", "x"], "--start: cannot parse 'x'"),
        (["--quantities", "gradiant"], "Did you mean 'gradient'?"),
    ],
)
def test_a_wrong_value_is_refused_by_name(words, message):
    with pytest.raises(ConfigError) as caught:
        config(*words)
    assert message in str(caught.value)


def test_what_follows_the_script_belongs_to_the_script():
    parsed = make_parser("run", load("run")).parse_args(["--every", "5", "train.py", "--every", "9", "-m", "--config"])
    assert parsed.script == ["train.py", "--every", "9", "-m", "--config"]
    assert parsed.is_module is False
    assert parsed.option_every == ["5"]


def test_a_module_takes_its_arguments_too():
    parsed = make_parser("run", load("run")).parse_args(["-m", "package.train", "--epochs", "3"])
    assert parsed.is_module is True
    assert parsed.script == ["package.train", "--epochs", "3"]


def test_a_mistyped_flag_before_the_script_names_the_nearest():
    with pytest.raises(ConfigError, match=r"run: unknown argument '--quantites'\. Did you mean '--quantities'\?"):
        make_parser("run", load("run")).parse_args(["--quantites", "gradient", "train.py"])


def test_no_script_is_refused():
    with pytest.raises(ConfigError, match="run: no script given"):
        load("run").run(argparse.Namespace(script=[]))


def test_live_sinks_are_names_or_options():
    wandb = {"project": "x", "every": 10, "series": ["loss", "gradient|*|norm"]}
    words = ("--live", "wandb.project=x", "--live", "wandb.every=10", "--live", "wandb.series=loss,gradient|*|norm")
    assert config("--live", "tensorboard,wandb", *words).live == {"tensorboard": {}, "wandb": wandb}
    with pytest.raises(ConfigError, match="--live: cannot parse 'wandb='"):
        config("--live", "wandb=")
