"""Runs that nobody means to start like this, through the front door."""

import pytest
import torch

import vario

ADAMW = {"lr": 1e-3}


class Adapter(torch.nn.Module):
    """A frozen layer with a product of two matrices beside it."""

    def __init__(self, std):
        super().__init__()
        self.base = torch.nn.Linear(8, 4).requires_grad_(False)
        self.down, self.up = (torch.nn.Linear(*shape, bias=False) for shape in ((8, 2), (2, 4)))
        torch.nn.init.normal_(self.down.weight, std=std)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def train(tmp_path, model=None, prepare=lambda model: None, options=ADAMW, steps=12):
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 4))
    prepare(model)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], **options)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for _ in range(steps):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            (model(x) - x[:, :4]).square().mean().backward()
            optimizer.step()
    rules = "start_settings", "start_in_eval", "start_without_gradient"
    return [alert for alert in vario.open_run(monitor.path).alerts if alert.rule in rules]


def test_a_usual_start_is_silent(tmp_path):
    assert not train(tmp_path)
    assert not train(tmp_path / "adapter", Adapter(std=0.3))
    assert not train(tmp_path / "decay", options={"lr": 1e-3, "weight_decay": 0.1, "betas": (0.0, 0.9)})


def test_two_matrices_of_zeros_get_no_gradient(tmp_path):
    [alert] = train(tmp_path, Adapter(std=0.0))
    assert (alert.rule, alert.severity, alert.began) == ("start_without_gradient", "warn", 0)
    assert "both matrices of an adapter" in vario.diagnose(vario.open_run(tmp_path / "run")).first.cause


def test_a_model_that_stays_in_evaluation_mode(tmp_path):
    [alert] = train(tmp_path, prepare=torch.nn.Module.eval)
    assert alert.rule == "start_in_eval"
    assert "1 of its modules" in alert.text


def test_without_dropout_or_batch_norm_the_mode_decides_nothing(tmp_path):
    assert not train(tmp_path, torch.nn.Linear(8, 4), torch.nn.Module.eval)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lr": 1.0}, "learning rate is 1"),
        ({"lr": 1e-2, "weight_decay": 10.0}, "takes 10 %"),
        ({"lr": 1e-3, "betas": (0.9999, 0.9)}, "beta1 is 0.9999"),
        ({"lr": 1e-3, "betas": (0.9, 0.1)}, "beta2 is 0.1"),
        ({"lr": 1e-3, "eps": 1.0}, "eps is 1"),
        ({"lr": 1e-4, "weight_decay": 30.0}, "weight decay is 30"),
    ],
)
def test_an_option_that_slipped_is_named(tmp_path, options, word):
    alerts = train(tmp_path, options=options)
    assert [alert.rule for alert in alerts] == ["start_settings"]
    assert word in alerts[0].text
    assert alerts[0].severity == "note"
