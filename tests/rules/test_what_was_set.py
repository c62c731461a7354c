"""What somebody sets during training is named with its old and new value; what a schedule sets is not an alarm;
what stands still after it always varied is named."""

import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

import vario


def trained(folder, before, steps=60, optimizer=None, schedule=None, **options):
    """Train a small network; `before(step, model, optimizer)` may do something to it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    used = torch.optim.AdamW(model.parameters(), lr=1e-3) if optimizer is None else optimizer(model.parameters())
    made = None if schedule is None else schedule(used)
    with vario.watch(model, used, directory=str(folder), name="run", every=1, strict=True, **options) as monitor:
        for step in range(steps):
            before(step, model, used)
            x = torch.randn(32, 6)
            loss = (model(x).squeeze(1) - x[:, 0]).square().mean()
            used.zero_grad()
            loss.backward()
            used.step()
            if made is not None:
                made.step()
            monitor.log(loss=loss.item())
    return vario.open_run(folder / "run")


def nothing(step, model, optimizer):
    pass


def texts(run, rule):
    return [alert.text for alert in run.alerts if alert.rule == rule]


def test_a_changed_eps_of_a_module_is_named_with_both_values(tmp_path):
    def before(step, model, optimizer):
        if step == 30:
            model[1].eps = 0.5

    run = trained(tmp_path, before, rules=["settings_change"])
    assert texts(run, "settings_change") == ["'eps' of '1' changed from 1e-05 to 0.5"]
    (incident,) = run.incidents
    assert (incident.step, incident.place, incident.severity) == (30, "1", "warn")


def test_counters_and_schedules_of_a_module_are_not_settings(tmp_path):
    def before(step, model, optimizer):
        model[1].calls = getattr(model[1], "calls", 0) + 1
        model[3].p = 0.1 + 0.001 * step

    assert not texts(trained(tmp_path, before, rules=["settings_change"]), "settings_change")


def test_an_option_of_the_second_group_is_named(tmp_path):
    def groups(parameters):
        first, *rest = parameters
        return torch.optim.AdamW([{"params": [first]}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)

    def before(step, model, optimizer):
        if step == 20:
            optimizer.param_groups[1]["weight_decay"] = 0.1
        if step == 40:
            optimizer.param_groups[0]["betas"] = (0.9, 0.5)

    run = trained(tmp_path, before, optimizer=groups, rules=["settings_change"])
    assert texts(run, "settings_change") == [
        "weight decay of group 1 changed from 0 to 0.1",
        "beta2 changed from 0.999 to 0.5",
    ]


def test_what_a_scheduler_sets_is_a_mark_and_what_somebody_sets_is_an_alert(tmp_path):
    run = trained(tmp_path / "milestones", nothing, 80, schedule=lambda used: schedules.MultiStepLR(used, [40], 0.1))
    assert not texts(run, "lr_change")
    assert run.series("lr_scheduled", "scalar").values.tolist() == [1.0]

    def before(step, model, optimizer):
        if step == 40:
            optimizer.param_groups[0]["lr"] = 0.1

    run = trained(tmp_path / "by_hand", before, 50)
    assert texts(run, "lr_change") == ["learning rate went from 0.001 to 0.1 in one step"]


def test_momentum_that_a_schedule_cycles_is_not_a_changed_setting(tmp_path):
    run = trained(
        tmp_path,
        nothing,
        60,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        schedule=lambda used: schedules.OneCycleLR(used, 0.05, total_steps=61),
        rules=["settings_change", "lr_change"],
    )
    assert not run.alerts


def test_a_rate_far_too_high_is_told_within_the_first_steps(tmp_path):
    run = trained(tmp_path, nothing, 12, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.5))
    (incident,) = [found for found in run.incidents if any(alert.rule == "update_high" for alert in found.alerts)]
    assert incident.lead.rule == "start_settings"
    assert incident.step <= 4
    assert "learning rate" in incident.cause


def test_the_first_updates_are_watched_by_default(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(model, sgd, directory=str(tmp_path), name="run", overhead="off"):
        for _ in range(40):
            sgd.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            sgd.step()
    steps = vario.open_run(tmp_path / "run").series("weight:ratio", "update", "max").steps
    assert steps.tolist() == [*range(12), 20, 30]


def test_a_gradient_that_is_no_longer_written_is_named(tmp_path):
    kept = {}

    def stale(gradient):
        if kept["step"] >= 30:
            return kept.setdefault("gradient", gradient.clone()).clone()
        return gradient

    def before(step, model, optimizer):
        kept["step"] = step
        if step == 0:
            model[0].weight.register_hook(stale)

    run = trained(tmp_path, before, 50, rules=["stuck_gradient"])
    (incident,) = run.incidents
    assert (incident.place, incident.lead.began, incident.severity) == ("0.weight", 30, "warn")


def test_a_gradient_that_is_a_constant_of_the_loss_is_not_stuck(tmp_path):
    model = nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(model, sgd, directory=str(tmp_path), name="run", every=1, rules=["stuck_gradient"]) as monitor:
        for _ in range(40):
            sgd.zero_grad()
            model(torch.randn(8, 4)).mean().backward()
            sgd.step()
        monitor.wait()
    assert not vario.open_run(tmp_path / "run").alerts


def test_what_was_not_looked_at_is_not_denied(tmp_path):
    for watched, denial in (
        (["gradient", "activation"], "the model itself behaves as before"),
        (["gradient"], "no activation"),
    ):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
        folder = tmp_path / watched[-1]
        with vario.watch(
            model, sgd, directory=str(folder), name="run", every=1, quantities=watched, rules=["loss_shift"]
        ) as monitor:
            for step in range(90):
                sgd.zero_grad()
                target = 5.0 if step >= 70 else 1.0
                loss = (model(torch.randn(64, 4)) - target).square().mean()
                loss.backward()
                sgd.step()
                monitor.log(loss=loss.item())
        (incident,) = vario.open_run(folder / "run").incidents
        assert denial in incident.cause


def test_a_number_in_a_table_of_a_module_is_named(tmp_path):
    """Adapters keep a scale for each name."""

    def before(step, model, optimizer):
        if step == 0:
            model[0].scaling["default"] = 2.0
        if step == 30:
            model[0].scaling["default"] = 16.0

    class Scaled(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.scaling = {"default": 2.0}

        def forward(self, x):
            return super().forward(x) * self.scaling["default"]

    torch.manual_seed(0)
    model = nn.Sequential(Scaled(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=str(tmp_path), name="run", every=1, strict=True) as monitor:
        for step in range(40):
            before(step, model, optimizer)
            loss = model(torch.randn(32, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (alert,) = [found for found in vario.open_run(monitor.path).alerts if found.rule == "settings_change"]
    assert (alert.step, alert.target, alert.severity) == (30, "0", "warn")
    assert "'scaling/default' of '0' changed from 2 to 16" in alert.text
    assert "the scale of what it computes" in alert.cause


def test_a_parameter_that_is_frozen_is_named(tmp_path):
    def before(step, model, optimizer):
        if step == 30:
            model[0].weight.requires_grad_(False)

    run = trained(tmp_path, before, rules=["settings_change"])
    (alert,) = [found for found in run.alerts if found.rule == "settings_change"]
    assert (alert.step, alert.target) == (30, "0.weight")
    assert "no longer requires a gradient" in alert.text


def test_a_setting_leads_what_it_may_have_caused_before_anybody_looked(tmp_path):
    """In short steps the model's settings are looked at now and then; what was found meanwhile is a consequence."""

    def before(step, model, optimizer):
        if step == 203:
            model[0].weight.requires_grad_(False)
            model[0].bias.requires_grad_(False)

    run = trained(tmp_path, before, steps=260, overhead=0.01)
    incident = next(found for found in run.incidents if any(alert.rule == "settings_change" for alert in found.alerts))
    assert incident.lead.rule == "settings_change"
    assert "frozen during training" in incident.cause
