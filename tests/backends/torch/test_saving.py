"""Saving a whole model while it is watched, as scripts do that never heard of vario."""

import subprocess
import sys
import textwrap

import torch

import vario


def watched_model(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, vario.watch(model, optimizer, every=1, strict=True, sinks=["in_memory"])


def train_step(model, optimizer):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_watched_model_can_be_saved_whole_and_opened_where_vario_is_not_installed(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    train_step(model, optimizer)
    torch.save(model, tmp_path / "model.pt")
    expected = model(torch.ones(1, 4)).tolist()
    monitor.close()

    script = f"""
        import sys
        sys.modules["vario"] = None  # importing it fails
        import torch
        model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
        assert model(torch.ones(1, 4)).tolist() == {expected!r}
        print("opened")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "opened\n", done.stderr


def test_a_model_saved_while_watched_can_be_watched_again_when_loaded(tmp_path):
    model, optimizer, monitor = watched_model(tmp_path)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    with vario.watch(loaded, optimizer, every=1, strict=True, sinks=["in_memory"]) as second:
        train_step(loaded, optimizer)
    monitor.close()
    (record,) = second.sinks["in_memory"].records
    assert {frame.quantity for frame in record.frames} == {
        "gradient",
        "weight",
        "activation",
        "activation_gradient",
        "update",
    }
    assert monitor.sinks["in_memory"].records == []
