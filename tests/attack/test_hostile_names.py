"""Names of any kind, of runs, tensors and plain numbers: refused by name or made safe, and never an escape."""

import contextlib
import io
import os
import re

from cases import batches, run_batch

import made_runs
import vario
from vario.cli import main
from vario.config import Config
from vario.core.errors import ConfigError, VarioError

PIECES = (
    *("a", "head", ".", "..", "/", "\\", " ", "|", ":", "*", "[", "re:(", "%s", "{x}", "[red]", '"', "'", "-", "--"),
    *("\n", "\r", "\t", "\0", "\x1b[2J", "\x1b]0;x\x07", "\x9b31m", "\x7f", "\u202e", "\u2028", "\ufeff", "\u200b"),
    *("\ud800", "\udfff", "\U0001f600", "\u00e9", "\u8bad", "x" * 250, "y" * 5000, "; drop table", "$(id)", "`id`"),
)
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal takes as an order."""


def some_name(chance):
    return "".join(chance.choice(PIECES) for _ in range(chance.choice((1, 1, 2, 3, 6))))


def shown(words):
    answer = io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(answer):
        main([str(word) for word in words])
    return answer.getvalue()


@batches("name")
def test_a_name_is_refused_or_recorded_and_never_steers_a_terminal(tmp_path, batch, request):
    def attempt(chance, story):
        name, other = some_name(chance), some_name(chance)
        story.append(f"{name!a:.80} and {other!a:.80}")
        with contextlib.suppress(ConfigError):
            given = Config(name=name).name
            assert (tmp_path / given).parent == tmp_path, "a run of that name lies elsewhere"
            assert len(given.encode()) <= 255
        place = tmp_path / f"run{batch}-{len(list(tmp_path.iterdir()))}"
        clean = [text.encode("utf8", "backslashreplace").decode() for text in (name, other)]
        frames = [made_runs.frame(step, targets=tuple(dict.fromkeys(clean))) for step in range(2)]
        records = [made_runs.record(step, frames[step], **dict.fromkeys(clean, 1.0)) for step in range(2)]
        made_runs.write_run(place, records, command=name)
        run = vario.open_run(place)
        # Longer ones are shortened.
        known, short = run.targets("gradient"), {text for text in clean if len(text.encode()) < 4000}
        assert len(known) == len(set(clean))
        assert short <= set(known)
        assert all(run.series(text, "scalar").values.tolist() == [1.0, 1.0] for text in short)
        with contextlib.suppress(VarioError):
            run.targets(None, name)
        commands = (("show", place, name), ("show", place, "*"), ("report", place))
        if not os.path.isdir(name):
            # A folder of this machine, such as "..", would be looked through.
            commands += (("ls", name), ("progress", name), (name, "x"))
        words = chance.choice(commands)
        if words[0] not in ("serve", "demo", "run") and not str(words[0]).startswith("-"):
            story.append(f"{words[0]!a:.40}")
            assert not STEERING.search(shown(words)), "an escape is shown as it is"

    run_batch("name", batch, request, attempt)
