"""The pictures: written, right, and without a missing glyph."""

import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from hatchling.builders.wheel import WheelBuilder
from matplotlib.figure import Figure

from trainer_outputs import put, refusal, sample, write_state
from vario.cli import main
from vario.logs.finding import find_history
from vario.reports.plot_fonts import BUNDLED, MISSING, PlotFonts
from vario.reports.plot_style import compact, plot_style
from vario.reports.progress_plot import draw_progress, moving_average
from vario.reports.progress_words import NOTES, WORDS, say_duration

ROOT = Path(__file__).parents[2]
HEADS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def drawn(path, language="en"):
    """The axes of the picture of a log."""
    with plot_style([str(path)]) as fonts:
        figure = Figure(layout="constrained")
        draw_progress(figure, fonts, find_history(path), language)
        figure.draw_without_rendering()
    return figure.axes


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("ending", HEADS)
def test_each_kind_of_picture_in_each_language_has_all_its_glyphs(capsys, tmp_path, ending, language):
    # Warnings are errors here, and matplotlib warns of every glyph it does not find.
    path = tmp_path / f"plot.{ending}"
    words = ["progress", str(sample("eval_best__root_after_evaluate.json")), "--lang", language]
    assert main([*words, "--save-plot", str(path)]) == 0
    assert path.read_bytes().startswith(HEADS[ending])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(path) in captured.err


def test_matplotlib_really_warns_of_a_glyph_that_is_missing(tmp_path):
    figure = Figure()
    figure.suptitle("\u4e2d")
    with pytest.warns(UserWarning, match="missing from font"):
        figure.savefig(tmp_path / "x.png")


def test_every_character_of_the_chinese_words_is_in_the_bundled_font():
    glyphs = set(TTFont(BUNDLED).getBestCmap())
    spoken = [*WORDS["zh"].values(), *NOTES["zh"].values()]
    spoken += [say_duration("zh", seconds) for seconds in (0.1, 5, 100, 5000, 1e6)]
    missing = {
        character for text in spoken for character in text if ord(character) > 127 and ord(character) not in glyphs
    }
    assert not missing, "run tools/make_font.py"


def test_the_bundled_font_is_small_and_its_license_lies_beside_it():
    assert BUNDLED.stat().st_size < 100_000
    assert "SIL OPEN FONT LICENSE" in (BUNDLED.parent / "OFL.txt").read_text()


@pytest.mark.parametrize("name", ["实验结果", "\u0e01\u0e32\u0e23", "\U0001f680", "a\nb"])
def test_a_folder_of_any_name_is_drawn_without_a_missing_glyph(tmp_path, name):
    path = put(tmp_path / name, "checkpoint-8", "normal__checkpoint-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["progress", str(path), "-s", str(tmp_path / "plot.png"), "--lang", "zh"]) == 0


def test_a_character_that_no_font_has_becomes_a_square():
    assert PlotFonts(["\U000f0000"]).drawable("a\U000f0000中") in (f"a{MISSING}中", f"a{MISSING}{MISSING}")


def test_the_four_panels_show_what_was_logged():
    path = sample("eval_best__root_after_evaluate.json")
    state = json.loads(path.read_text())["log_history"]
    loss, rate, norm, spread = drawn(path)
    train = [row for row in state if "loss" in row]
    assert lines(loss)["each row"].get_ydata().tolist() == [row["loss"] for row in train]
    assert lines(loss)["eval_loss"].get_xdata()[0] == 0
    assert any(label.startswith("moving average") for label in lines(loss))
    assert rate.get_lines()[0].get_ydata().tolist() == [row["learning_rate"] for row in train]
    assert norm.get_yscale() == "log"
    assert norm.get_lines()[0].get_ydata().tolist() == [row["grad_norm"] for row in train]
    assert sum(patch.get_height() for patch in spread.patches) == len(train)


def test_a_filtered_loss_is_not_drawn_and_the_break_is():
    loss, _, norm, spread = drawn(sample("nan__filter_on.json"))
    values = lines(loss)["each row"].get_ydata()
    assert np.isnan(values[7:]).all()
    assert np.isfinite(values[:7]).all()
    for axes in (loss, norm):
        assert "broken from step 8" in axes.get_legend_handles_labels()[1]
    assert sum(patch.get_height() for patch in spread.patches) == 7


def test_what_was_not_logged_is_said_in_its_panel():
    for axes in drawn(sample("empty_history__checkpoint-3.json")):
        assert [text.get_text() for text in axes.texts] == ["not logged"]


@pytest.mark.parametrize("norms", [[0.0, 0.0], [float("nan")] * 2, [1.0, 0.0]])
def test_norms_that_no_log_axis_can_show_do_not_spoil_the_picture(tmp_path, norms):
    rows = [{"loss": 1.0, "grad_norm": norm, "learning_rate": 0.0, "step": step} for step, norm in enumerate(norms)]
    path = write_state(tmp_path / "trainer_state.json", rows)
    assert main(["progress", str(path), "-s", str(tmp_path / "plot.svg")]) == 0


def test_one_row_is_enough_for_a_picture(tmp_path):
    path = write_state(tmp_path / "trainer_state.json", [{"loss": 1.0, "step": 1}])
    assert main(["progress", str(path), "-s", str(tmp_path / "plot.png")]) == 0


def test_a_picture_made_again_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        assert main(["progress", str(sample("normal__checkpoint-24.json")), "-s", str(tmp_path / name)]) == 0
    for ending in ("svg", "png"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_comparison_is_drawn(tmp_path, language):
    names = ("normal__checkpoint-8.json", "normal__checkpoint-24.json", "restart_same_dir__stale_checkpoint-30.json")
    path = tmp_path / "comparison.png"
    words = ["progress", "--compare", *(str(sample(name)) for name in names), "--lang", language]
    assert main([*words, "--save-plot", str(path)]) == 0
    assert path.stat().st_size > 10_000


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_read(capsys, tmp_path):
    assert "cannot write 'plot.jpeg'" in refusal(capsys, "nowhere", "-s", tmp_path / "plot.jpeg")
    assert "there is no folder" in refusal(capsys, "nowhere", "-s", tmp_path / "no" / "plot.png")


def test_matplotlibs_settings_stay_as_they_were(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert main(["progress", str(sample("normal__checkpoint-24.json")), "-s", str(tmp_path / "plot.png")]) == 0
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_error_is_its_install_line(tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from vario.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["progress", str(sample("normal__checkpoint-24.json")), "-s", str(tmp_path / "plot.png")]
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "vario: a plot needs an extra: pip install 'vario[plot]'\n"
    plain = subprocess.run([sys.executable, "-c", code, *words[:2], "--plot"], capture_output=True, text=True)
    assert plain.returncode == 0
    assert "┤" in plain.stdout


def test_a_moving_average_is_centred_and_as_long_as_its_curve():
    history = find_history(sample("normal__checkpoint-24.json"))
    smooth = moving_average(history.loss, 5)
    assert len(smooth) == 24
    assert smooth.values[10] == pytest.approx(history.loss.values[8:13].mean())
    assert (smooth.values[0], smooth.values[-1]) == pytest.approx((history.loss.values[0], history.loss.values[-1]))


@pytest.mark.parametrize(
    ("value", "text"), [(5e-05, "5e-05"), (0, "0"), (9999, "9999"), (12_000, "12k"), (1.5e6, "1.5M")]
)
def test_ticks_are_short(value, text):
    assert compact(value) == text


def test_the_font_travels_with_the_package(tmp_path):
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        packed = [name for name in archive.namelist() if name.startswith("vario/reports/fonts/")]
    assert sorted(Path(name).name for name in packed) == ["OFL.txt", BUNDLED.name]
