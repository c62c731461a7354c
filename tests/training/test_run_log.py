"""`vario.start`: runs without a model."""

import logging
import subprocess
import sys
import threading

import numpy as np
import pytest

import vario


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def numbers(run, target):
    found = vario.open_run(run.path).series(target, "scalar")
    return dict(zip(found.steps.tolist(), found.values.tolist(), strict=True))


def test_each_call_is_a_step_and_the_run_is_like_any_other():
    with vario.start("eval", params={"split": "test"}) as run:
        for number in range(5):
            run.log({"eval/accuracy": number / 4}, loss=np.float32(2.5))
    read = vario.open_run("vario_runs/eval")
    assert numbers(run, "eval/accuracy") == {number: number / 4 for number in range(5)}
    assert read.series("loss", "scalar").values.tolist() == [2.5] * 5
    assert (read.state, read.quantities(), read.params) == ("finished", ["scalar"], {"split": "test"})
    assert read.not_offered == []
    assert read.parts_off == []


def test_numbers_of_one_step_belong_together_and_steps_may_be_skipped(caplog):
    with vario.start("steps") as run:
        run.log(a=1, step=10)
        run.log(b=2, step=10)
        run.log(a=3, step=20)
        with caplog.at_level(logging.WARNING, logger="vario"):
            run.log(a=4, step=15)
            run.log(a=4, step=16)
        run.log(a=5)
        run.log(a=6)
    assert numbers(run, "a") == {10: 1, 20: 5, 21: 6}
    assert numbers(run, "b") == {10: 2}
    assert [record.message for record in caplog.records] == [
        "log: step 15 has ended, so its numbers are dropped; the current step is 20"
    ]


def test_a_run_can_be_resumed_and_goes_on_with_the_next_step():
    with vario.start("job") as run:
        run.log(a=1)
        run.log(a=2)
    with vario.start("job", resume=True) as run:
        assert run.step_number == 2
        run.log(a=3)
    assert numbers(run, "a") == {0: 1, 1: 2, 2: 3}


def test_an_exception_is_how_the_run_ended_and_stop_may_be_called_twice():
    def fail():
        with vario.start("crash") as run:
            run.log(a=1)
            raise ValueError("went wrong")

    with pytest.raises(ValueError, match="went wrong"):
        fail()
    read = vario.open_run("vario_runs/crash")
    assert (read.state, read.error) == ("crashed", "ValueError: went wrong")
    run = vario.start("twice")
    run.log(a=1)
    run.stop()
    run.stop()
    run.log(a=2)
    assert numbers(run, "a") == {0: 1}


def test_what_is_not_a_number_is_left_out_and_nothing_raises(caplog):
    with vario.start("odd") as run:
        run.log(a="high", b=1)
        run.log(a="low", b=2)
    assert numbers(run, "b") == {0: 1, 1: 2}
    assert [part.part for part in vario.open_run(run.path).parts_off] == ["log a"]
    assert caplog.text.count("'log a' failed") == 1


def test_threads_may_log_at_the_same_time():
    with vario.start("actors") as run:
        threads = [
            threading.Thread(target=lambda name=f"actor{n}": [run.log({name: 1}) for _ in range(50)]) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [numbers(run, f"actor{n}") for n in range(4)]
    assert sorted(step for each in found for step in each) == list(range(200))


def test_rules_check_the_numbers():
    with vario.start("rules") as run:
        for step in range(30):
            run.log(loss=float("nan") if step == 20 else 1 / (step + 1))
    alert = vario.open_run(run.path).alerts[0]
    assert (alert.rule, alert.step, alert.target) == ("non_finite", 20, "loss")


def test_a_wrong_option_raises_and_a_switched_off_run_does_nothing(tmp_path):
    with pytest.raises(vario.ConfigError, match="nmae"):
        vario.start(nmae="x")
    with vario.start("off", enabled=False) as run:
        run.log({"a": 1}, step=3)
        run.log_figure("f", None)
        run.log_table("t", None)
        run.stop()
    assert run.path is None
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_ends_without_stop_ends_its_run():
    script = "import vario, sys\nrun = vario.start('script')\nrun.log(a=1)\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", script], check=True)
    read = vario.open_run("vario_runs/script")
    assert (read.state, read.series("a", "scalar").values.tolist()) == ("finished", [1.0])


def test_a_loop_gets_runs_of_its_own_and_they_form_a_group():
    runs = []
    for _ in range(2):
        with vario.start("again") as run:
            run.log(a=1)
        runs.append(vario.open_run(run.path))
    assert [run.name for run in runs] == ["again", "again-2"]
    assert runs[0].group == runs[1].group
