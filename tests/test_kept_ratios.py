"""Figures of the benchmark that are kept: a later run fails if it is worse by more than the noise."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import kept_ratios


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_ratios, "KEPT", tmp_path / "kept.json")


def test_a_ratio_within_the_noise_of_both_runs_passes(capsys):
    kept_ratios.keep("CPU", {"default": [1.1, 1.2, 1.14]})
    kept_ratios.check("CPU", {"default": [1.21, 1.2, 1.19], "new": [9.0]})
    assert "default: 1.200, kept 1.140, allowed 1.220" in capsys.readouterr().out


def test_a_worse_ratio_fails_and_is_named():
    kept_ratios.keep("CPU", {"default": [1.1], "gradients": [1.1]})
    with pytest.raises(SystemExit, match=r"worse than the kept ratios: gradients: 1\.200"):
        kept_ratios.check("CPU", {"default": [1.1], "gradients": [1.2]})


def test_without_kept_ratios_of_the_machine_it_says_so():
    kept_ratios.keep("CPU", {"default": [1.1]})
    with pytest.raises(SystemExit, match="no ratios are kept for 'NVIDIA H200': run with --keep first"):
        kept_ratios.check("NVIDIA H200", {"default": [1.1]})
