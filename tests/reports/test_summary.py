import io

import pytest
from rich.console import Console

import golden_files
import synthetic
from vario import open_run
from vario.reports.summary import summarise
from vario.reports.summary_text import onset_sentences, render


def printed(summary):
    stream = io.StringIO()
    Console(file=stream, width=110, no_color=True).print(render(summary))
    return stream.getvalue()


def test_a_healthy_run_is_called_healthy(healthy_run):
    summary = summarise(open_run(healthy_run))
    assert summary.first_bad is None
    assert summary.jump is None
    assert (summary.num_steps, summary.first_step, summary.last_step) == (40, 0, 39)
    assert summary.duration_seconds == pytest.approx(10)
    assert summary.step_seconds == pytest.approx(0.25)
    assert "Healthy: no NaN or Inf" in printed(summary)


def test_the_loss_is_told_by_its_ends_and_its_lowest_point(broken_run):
    loss = summarise(open_run(broken_run)).loss
    assert loss.first == 4.0
    assert loss.lowest == pytest.approx(4 / 3.4)
    assert loss.lowest_step == 24
    assert loss.last != loss.last


def test_the_first_bad_tensor_and_what_jumped_before_it(broken_run):
    summary = summarise(open_run(broken_run))
    assert (summary.first_bad.step, summary.first_bad.target) == (25, "head:input")
    assert (summary.jump.quantity, summary.jump.target) == ("activation", "layers.1:input")
    assert summary.jump.after == 1e20
    sentences = " ".join(onset_sentences(summary.first_bad, summary.jump))
    assert "At step 25 (micro-step 0, rank 0) it contained 50 NaN in 100 elements." in sentences


def test_movers_are_those_before_it_went_bad(broken_run):
    movers = summarise(open_run(broken_run)).movers
    assert [mover.target for mover in movers] == ["head.weight", "embedding.weight", "layers.1.weight"]
    assert movers[0].ratio == pytest.approx(1.9, abs=0.05)


def test_counts_per_quantity(healthy_run):
    counts = {count.quantity: (count.num_targets, count.num_steps) for count in summarise(open_run(healthy_run)).counts}
    assert counts == {"weight": (4, 40), "gradient": (4, 40), "activation": (6, 40), "scalar": (3, 40)}


def test_a_crash_and_parts_that_were_switched_off_are_told(run_folder):
    path = synthetic.write_run(
        run_folder / "crashed",
        num_steps=3,
        state="crashed",
        error="ValueError: no more text",
        parts_off=[{"part": "moment", "step": 2, "error": "KeyError: 'exp_avg'"}],
    )
    golden_files.check("report_crashed", printed(summarise(open_run(path))))


def test_a_run_of_no_steps_is_not_called_healthy(run_folder):
    path = synthetic.write_run(run_folder / "empty", num_steps=0)
    assert "Nothing recorded yet." in printed(summarise(open_run(path)))


def test_a_bad_number_that_no_tensor_explains(run_folder):
    path = synthetic.write_run(run_folder / "vario_runs" / "one", num_steps=2, bad_step=0)
    assert summarise(open_run(path)).first_bad.usual is None
