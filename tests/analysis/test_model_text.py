"""What print_model_info prints."""

import torch

import golden_files
import vario
from models import Language, Partial


def test_the_printed_text(capsys):
    vario.print_model_info(Partial(), show_breakdown=True)
    golden_files.check("model_info", capsys.readouterr().out)


def test_the_breakdown_is_printed_only_when_asked_for(capsys):
    vario.print_model_info(Language())
    assert "embed.weight" not in capsys.readouterr().out


def test_the_memory_of_an_adapter_on_seven_billion_parameters_adds_up(capsys):
    with torch.device("meta"):
        model = torch.nn.ModuleDict(
            {"base": torch.nn.Linear(70_000, 100_000, bias=False), "adapter": torch.nn.Linear(1000, 999)}
        )
    model["base"].requires_grad_(False)
    vario.print_model_info(model)
    lines = capsys.readouterr().out.splitlines()
    printed = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines if ":" in line}
    assert printed["Total parameters"] == ["7,000,999,999", "(7.00B)"]
    assert printed["Trainable parameters"] == ["999,999", "(1.00M)"]
    assert printed["Trainable ratio"] == ["0.01%"]
    assert printed["Parameters"] == ["13.0", "GiB", "26.1", "GiB"]
    assert printed["Gradients"] == ["1.9", "MiB", "3.8", "MiB"]
    assert printed["Optimizer (AdamW)"] == ["3.8", "MiB", "7.6", "MiB"]
