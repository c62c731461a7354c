"""The pictures: written, right, and without a missing glyph."""

import json
import os
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
from vario.reports.plot_style import compact, line_look, plot_style
from vario.reports.progress_compare import compare
from vario.reports.progress_compare_plot import draw_comparison
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
    assert "no folder" in refusal(capsys, "nowhere", "-s", tmp_path / "no" / "plot.png")
    assert "cannot write ''" in refusal(capsys, "nowhere", "-s", "")


def test_a_picture_that_turns_out_not_to_be_writable_is_refused_in_one_line(capsys, tmp_path):
    (tmp_path / "folder.png").mkdir()
    words = [sample("normal__checkpoint-24.json"), "-s", tmp_path / "folder.png"]
    assert "folder.png cannot be written: Is a directory" in refusal(capsys, *words)


def test_settings_that_matplotlib_does_not_start_with_are_named(tmp_path):
    command = [sys.executable, "-m", "vario.progress", str(sample("normal__checkpoint-24.json")), "-s", "plot.png"]
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "'nonsense' is not a valid value for backend" in result.stderr


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
    environment = {**os.environ, "DISPLAY": ":0"}
    command = [sys.executable, "-c", code, *words[:2], "--plot"]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (shown.returncode, shown.stderr) == (2, result.stderr)


def test_a_moving_average_is_centred_and_leaves_out_an_end_that_would_follow_each_row():
    history = find_history(sample("normal__checkpoint-24.json"))
    smooth = moving_average(history.loss, 5)
    assert (smooth.steps[0], smooth.steps[-1]) == (1, 23)
    assert smooth.values[10] == pytest.approx(history.loss.values[8:13].mean())
    assert smooth.values[-1] == pytest.approx(history.loss.values[-3:].mean())


def test_wild_rows_are_cut_off_and_said_to_be(tmp_path):
    rows = [{"loss": 400.0 if step == 50 else 2 + 1 / step, "step": step} for step in range(1, 101)]
    loss, _, _, spread = drawn(write_state(tmp_path / "trainer_state.json", rows))
    arrows = lines(loss)["cut off: 1 rows, up to 400"]
    assert arrows.get_xdata().tolist() == [50]
    assert loss.get_ylim()[1] < 10
    (average,) = [line for label, line in lines(loss).items() if label.startswith("moving average")]
    assert average.get_ydata().max() < 4
    assert sum(patch.get_height() for patch in spread.patches) == 99
    assert "cut off: 1 rows, up to 400" in lines(spread)


def test_each_row_that_was_not_finite_is_marked(tmp_path):
    rows = [{"loss": 1.0, "grad_norm": float("inf") if step in (3, 7) else 1.0, "step": step} for step in range(10)]
    loss, _, norm, _ = drawn(write_state(tmp_path / "trainer_state.json", rows))
    for axes in (loss, norm):
        (marks,) = axes.collections
        assert [path.vertices[0, 0] for path in marks.get_paths()] == [3, 7]


def test_steps_are_whole_numbers_even_on_the_axis_of_a_single_one(tmp_path):
    rows = [{"loss": 1.5, "grad_norm": 1.0, "learning_rate": 0.1, "step": 7}]
    for axes in drawn(write_state(tmp_path / "trainer_state.json", rows))[:3]:
        assert [at for at in axes.get_xticks() if 6 <= at <= 8] == [6, 7, 8]


@pytest.mark.parametrize("losses", [[0.1, 0.1 + 2e-17], [0.0, 0.0], [5e-324, 1e-323]])
def test_losses_that_make_no_histogram_do_not_spoil_the_picture(tmp_path, losses):
    rows = [{"loss": loss, "step": step} for step, loss in enumerate(losses)]
    *_, spread = drawn(write_state(tmp_path / "trainer_state.json", rows))
    assert sum(patch.get_height() for patch in spread.patches) == 2


def test_no_number_at_all_can_be_drawn(tmp_path):
    nan = float("nan")
    rows = [{"loss": nan, "grad_norm": nan, "learning_rate": nan, "epoch": nan, "step": step} for step in range(9)]
    path = write_state(tmp_path / "trainer_state.json", rows, epoch=nan)
    assert main(["progress", str(path), "-u", "-s", str(tmp_path / "plot.png")]) == 0


def compared(folder, losses):
    """The axes of the comparison of runs with these losses, one a row."""
    paths = [
        write_state(folder / f"run{index}" / "trainer_state.json", [{"step": at, **row} for at, row in enumerate(rows)])
        for index, rows in enumerate(losses)
    ]
    histories = [find_history(path) for path in paths]
    comparison = compare([path.parent for path in paths], histories)
    with plot_style([]) as fonts:
        figure = Figure(layout="constrained")
        draw_comparison(figure, fonts, comparison, histories, "en")
        figure.draw_without_rendering()
    return figure


def test_twelve_runs_look_different_and_their_legend_covers_none(tmp_path):
    figure = compared(tmp_path, [[{"loss": 5 + index - at / 10} for at in range(10)] for index in range(12)])
    assert len(figure.axes[0].get_lines()) == 12
    assert len({str(line_look(index)) for index in range(40)}) == 40
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 12
    assert legend.get_window_extent().x0 >= figure.axes[0].get_window_extent().x1


def test_in_a_comparison_a_broken_run_says_so_and_a_diverging_one_does_not_press_the_others_flat(tmp_path):
    nan = float("nan")
    broken = [{"loss": 3.0 - at / 10 if at < 6 else 0.0, "grad_norm": 1.0 if at < 6 else nan} for at in range(10)]
    figure = compared(tmp_path, [broken, [{"loss": 3.0 * 2**at} for at in range(10)]])
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert "run0   broken from step 6" in lines(axes)
    cross = next(line for line in axes.get_lines() if line.get_marker() == "X")
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (5, 2.5)


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
