"""The snippets of docs/mindspore.md run one after the other, in MindSpore's own environment."""

import re
from pathlib import Path

import pytest

import vario

PAGE = Path(__file__).parents[3] / "docs" / "mindspore.md"


@pytest.mark.slow
def test_the_snippets_of_the_page_run(mindspore, tmp_path):
    snippets = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf8"), flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) == 4
    # Compiled code is read from its file again.
    (tmp_path / "page.py").write_text("\n".join(snippets))
    mindspore("page.py", cwd=tmp_path)
    runs = {run.path.name: run for run in vario.list_runs(tmp_path / "vario_runs")}
    assert sorted(runs) == ["graph", "model-train", "own-loop"]
    assert all(run.state == "finished" for run in runs.values())
    graph = vario.open_run(tmp_path / "vario_runs" / "graph")
    assert graph.steps("activation").tolist() == [0, 10]
    assert graph.steps("gradient").tolist() == list(range(20))
    (folder,) = (tmp_path / "monitor_output").iterdir()
    kinds = ("exp_avg", "exp_avg_sq", "grad_reduced", "grad_unreduced")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{k}_{n}-{n}.csv" for k in kinds for n in range(3))
