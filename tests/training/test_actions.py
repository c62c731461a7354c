"""What is done about incidents: a closer look, saved tensors, a checkpoint, an end; training itself is left alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vario
from incidents import recurring, train
from models import Perceptron
from vario.config import Config, read_config

ALL = ["escalate", "snapshot", "checkpoint", "stop"]


def lines(monitor):
    path = monitor.path / "rank0" / "actions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def snapshots(monitor):
    """{name: (arrays, description)} of a run, the earliest first."""
    found = {}
    for path in sorted((monitor.path / "rank0" / "snapshots").glob("*.npz")):
        with np.load(path) as arrays:
            found[path.stem] = dict(arrays), json.loads(path.with_suffix(".json").read_text())
    return dict(sorted(found.items(), key=lambda item: item[1][1]["step"]))


def steps_with(monitor, quantity):
    run = vario.open_run(monitor.path)
    if quantity not in run.quantities():
        return []
    return run.steps(quantity).tolist()


def test_no_action_changes_a_loss_and_each_is_written_down_once(tmp_path, caplog):
    losses, monitor = train(25, nan_at=10, directory=str(tmp_path), actions={"page": ALL}, escalate_steps=3)
    bare, _ = train(25, nan_at=10, watched=False)
    assert losses[:11] == pytest.approx(bare[:11], rel=0, abs=0, nan_ok=True)
    assert [line["action"] for line in lines(monitor)] == ALL
    for line in lines(monitor):
        assert line["incident"]["rule"] == "non_finite"
        assert line["incident"]["step"] == 10
        assert line["rank"] == 0
        assert 13 <= line["step"] <= 16
    said = [
        record.getMessage() for record in caplog.records if "because of non_finite at step 10" in record.getMessage()
    ]
    assert len(said) == 4


def test_without_actions_nothing_is_done(tmp_path):
    _, monitor = train(20, nan_at=10, directory=str(tmp_path))
    assert lines(monitor) == []
    assert not monitor.should_stop
    assert not monitor.should_checkpoint


def test_a_loop_stops_when_the_monitor_says_so_and_a_wish_for_a_checkpoint_is_read_once(tmp_path):
    wishes = []
    losses, monitor = train(
        40,
        nan_at=10,
        until_stop=True,
        directory=str(tmp_path),
        actions={"non_finite": ["checkpoint", "stop"]},
        each_step=lambda step, monitor, model: wishes.append((monitor.should_checkpoint, monitor.should_checkpoint)),
    )
    assert 13 <= len(losses) <= 17
    assert wishes == [(False, False)] * (len(losses) - 1) + [(True, False)]
    assert monitor.should_stop


@pytest.mark.parametrize(
    ("actions", "severity", "expected"),
    [
        ({"warn": ["checkpoint"]}, "page", True),
        ({"warn": ["checkpoint"]}, "warn", True),
        ({"page": ["checkpoint"]}, "warn", False),
        ({"recurring_finding": "checkpoint"}, "note", True),
        ({"note": []}, "page", False),
    ],
)
def test_a_severity_stands_for_more_urgent_ones_and_a_rule_for_itself(tmp_path, actions, severity, expected):
    _, monitor = train(12, directory=str(tmp_path), rules=[recurring(100, severity)], actions=actions)
    assert monitor.should_checkpoint is expected


def test_escalate_watches_activations_that_nobody_asked_for_and_ends(tmp_path):
    _, monitor = train(
        30,
        directory=str(tmp_path),
        quantities=["gradient"],
        rules=[recurring(100)],
        actions={"page": ["escalate"]},
        escalate_steps=4,
    )
    (line,) = lines(monitor)
    expected = list(range(line["step"] + 1, line["step"] + 5))
    assert line["last_step"] == expected[-1]
    assert steps_with(monitor, "activation") == expected
    assert steps_with(monitor, "activation_gradient") == expected
    assert steps_with(monitor, "gradient") == list(range(30))
    rows = vario.open_run(monitor.path).series("down:output", "activation", "norm")
    assert np.isfinite(rows.values).all()


def test_escalate_adds_to_a_schedule_and_leaves_it_as_it_was(tmp_path):
    _, monitor = train(
        40,
        directory=str(tmp_path),
        every={"activation": 10},
        rules=[recurring(100)],
        actions={"page": ["escalate"]},
        escalate_steps=5,
    )
    (line,) = lines(monitor)
    closer = range(line["step"] + 1, line["step"] + 6)
    assert steps_with(monitor, "activation") == sorted({0, 10, 20, 30, *closer})


def test_incidents_that_go_on_prolong_the_closer_look_at_most_five_times(tmp_path):
    _, monitor = train(
        110,
        directory=str(tmp_path),
        quantities=["gradient"],
        rules=[recurring(12)],
        actions={"page": ["escalate"]},
        escalate_steps=15,
    )
    first = lines(monitor)[0]["step"] + 1
    steps = steps_with(monitor, "activation")
    gap = next(step for step in range(first, 110) if step not in steps)
    assert gap == first + 5 * 15
    assert steps[-1] > gap  # a later incident begins anew


def test_escalate_works_in_compiled_graphs(tmp_path):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    model.compile(backend="aot_eager")
    _, monitor = train(
        16,
        model=model,
        directory=str(tmp_path),
        quantities=["gradient"],
        rules=[recurring(100)],
        actions={"page": ["escalate"]},
        escalate_steps=3,
    )
    (line,) = lines(monitor)
    expected = list(range(line["step"] + 1, line["step"] + 4))
    assert steps_with(monitor, "activation") == expected
    assert steps_with(monitor, "activation_gradient") == expected


def test_a_snapshot_has_all_that_is_kept_of_the_parameter_and_what_came_in(tmp_path):
    seen = {}

    def look(step, monitor, model):
        seen[step] = model.up.weight.detach().clone(), model.up.weight.grad.clone()

    _, monitor = train(
        20,
        directory=str(tmp_path),
        every=1,
        rules=[recurring(100)],
        actions={"page": ["snapshot"]},
        each_step=look,
    )
    ((name, (arrays, description)),) = snapshots(monitor).items()
    (line,) = lines(monitor)
    assert name == f"step-{line['step']}"
    assert line["file"] == f"snapshots/{name}.npz"
    assert set(arrays) == {f"up.weight:{part}" for part in ("weight", "gradient", "exp_avg", "exp_avg_sq")}
    weight, gradient = seen[line["step"]]
    np.testing.assert_array_equal(arrays["up.weight:weight"], weight.numpy())
    np.testing.assert_array_equal(arrays["up.weight:gradient"], gradient.numpy())
    assert description["tensors"]["up.weight:weight"] == {
        "shape": [8, 4],
        "dtype": "float32",
        "saved_as": "float32",
    }
    assert description["left_out"] == []
    assert [found["step"] for found in description["batches"]][-1] <= line["step"]
    inputs = description["batches"][-1]["inputs"]
    assert list(inputs) == ["root:input"]
    assert inputs["root:input"]["nans"] == 0


def test_a_training_that_breaks_at_once_still_leaves_its_snapshot(tmp_path):
    def give_up(step, monitor, model):
        if step == 6:
            raise RuntimeError("the script had enough")

    with pytest.raises(RuntimeError, match="had enough"):
        train(
            20,
            directory=str(tmp_path),
            name="mine",
            rules=[recurring(100)],
            actions={"page": ["snapshot", "stop"]},
            each_step=give_up,
        )
    folder = tmp_path / "mine" / "rank0"
    assert len(list((folder / "snapshots").glob("*.npz"))) == 1
    written = [json.loads(line) for line in (folder / "actions.jsonl").read_text().splitlines()]
    assert [(line["action"], "skipped" in line) for line in written] == [("snapshot", False), ("stop", True)]


def test_an_incident_that_names_no_parameter_saves_all_of_them(tmp_path):
    from vario.rules import Finding, rule

    @rule("exact")
    def of_the_loss(step):
        """The loss at one step."""
        if step.number == 5:
            yield Finding("loss is odd", "scalar", "loss", 1.0, scope="global")

    _, monitor = train(12, directory=str(tmp_path), rules=[of_the_loss], actions={"page": ["snapshot"]})
    ((arrays, _),) = snapshots(monitor).values()
    assert {name.partition(":")[0] for name in arrays} == {"up.weight", "up.bias", "down.weight", "down.bias"}


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8192)

    def forward(self, rows):
        return self.up(rows)


def test_snapshots_stay_within_their_bytes_and_say_what_was_cut(tmp_path):
    limit = 400_000
    torch.manual_seed(0)
    _, monitor = train(
        130,
        model=Wide(),
        directory=str(tmp_path),
        quantities=["gradient"],
        rules=[recurring(11)],
        actions={"page": ["snapshot"]},
        snapshot_bytes=limit,
    )
    files = list((monitor.path / "rank0" / "snapshots").iterdir())
    assert sum(path.stat().st_size for path in files) <= limit
    found = list(snapshots(monitor).values())
    first, description = found[0]
    assert first["up.weight:weight"].shape == (8192, 4)
    assert first["up.weight:gradient"].shape == (8192, 4)
    cut = description["tensors"]["up.weight:exp_avg_sq"]
    assert cut["every_nth_element"] > 1
    assert cut["shape"] == [8192, 4]
    assert first["up.weight:exp_avg_sq"].shape == (-(-8192 * 4 // cut["every_nth_element"]),)
    last = lines(monitor)[-1]
    assert "skipped" in last or last["bytes"] < 131_072


def test_a_run_keeps_at_most_eight_snapshots(tmp_path):
    _, monitor = train(
        130, directory=str(tmp_path), quantities=["gradient"], rules=[recurring(11)], actions={"page": ["snapshot"]}
    )
    assert len(snapshots(monitor)) == 8
    written = lines(monitor)
    assert len(written) == 9  # and once that there are no more
    assert written[-1]["skipped"] == "there are 8 already"


def test_snapshots_of_a_resumed_run_count_as_well(tmp_path):
    options = {
        "directory": str(tmp_path),
        "name": "mine",
        "quantities": ["gradient"],
        "actions": {"page": ["snapshot"]},
    }
    train(60, rules=[recurring(11)], **options)
    _, monitor = train(60, rules=[recurring(11, first=65)], resume=True, **options)
    assert len(snapshots(monitor)) == 8


def test_bfloat16_is_saved_as_float32_and_named(tmp_path):
    torch.manual_seed(0)
    _, monitor = train(
        12,
        model=Perceptron(dropout=0.0).bfloat16(),
        directory=str(tmp_path),
        rules=[recurring(100)],
        actions={"page": ["snapshot"]},
    )
    ((arrays, description),) = snapshots(monitor).values()
    assert arrays["up.weight:weight"].dtype == np.float32
    assert description["tensors"]["up.weight:weight"]["dtype"] == "bfloat16"


def in_the_way(step, monitor, model):
    """A file where the folder of snapshots should be."""
    if step == 0:
        (monitor.path / "rank0" / "snapshots").write_text("")


def test_a_snapshot_that_cannot_be_written_is_listed_and_other_actions_are_done(tmp_path):
    options = {"directory": str(tmp_path), "rules": [recurring(11)], "actions": {"page": ["snapshot", "checkpoint"]}}
    losses, monitor = train(40, strict=False, each_step=in_the_way, **options)
    parts = json.loads((monitor.path / "rank0" / "rank.json").read_text())["parts_off"]
    assert [part["part"] for part in parts] == ["action snapshot"]
    assert [line["action"] for line in lines(monitor)].count("checkpoint") == 4
    assert losses == train(40, watched=False)[0]


def test_strict_raises_what_a_snapshot_failed_with(tmp_path):
    with pytest.raises(OSError, match="snapshots"):
        train(
            20,
            directory=str(tmp_path),
            rules=[recurring(100)],
            actions={"page": ["snapshot"]},
            each_step=in_the_way,
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"actions": {"pge": ["stop"]}}, "actions: unknown 'pge'. Did you mean 'page'?"),
        ({"actions": {"grad_spke": ["stop"]}}, "actions: unknown 'grad_spke'. Did you mean 'grad_spike'?"),
        ({"actions": {"page": ["stp"]}}, "actions.page: unknown 'stp'. Did you mean 'stop'?"),
        ({"actions": {"page": 3}}, "actions.page: expected a list, got 3"),
        ({"actions": ["stop"]}, "actions: expected a table"),
        ({"actions": {"straggler": ["stop"]}}, "actions.straggler: this rule compares ranks"),
        ({"actions": {"page": ["stop"]}, "rules": False}, "actions: has no effect without rules"),
        ({"actions": {"drift": ["stop"]}, "rules": ["non_finite"]}, "actions: unknown 'drift'"),
        ({"actions": {"page": ["snapshot"]}, "sinks": ["in_memory"]}, "actions: 'snapshot' needs a run folder"),
        ({"escalate_steps": 0}, "escalate_steps: expected a whole number of at least 1, got 0"),
        ({"snapshot_bytes": True}, "snapshot_bytes: expected a whole number of at least 1, got True"),
    ],
)
def test_a_wrong_option_is_refused_before_the_first_step(options, said):
    with pytest.raises(vario.ConfigError) as error:
        Config(**options)
    assert said in str(error.value)


def test_without_escalate_no_module_has_a_hook_for_it(tmp_path):
    hooks = []
    options = {"directory": str(tmp_path), "quantities": ["gradient"], "rules": [recurring(100)]}
    for actions in ({}, {"page": ["escalate"]}):
        train(
            1,
            actions=actions,
            each_step=lambda step, monitor, model: hooks.append(len(model.up._forward_hooks)),
            **options,
        )
    assert hooks == [0, 1]


def test_the_config_of_the_documentation_is_one(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf8")
    (tmp_path / "vario.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    config = read_config(tmp_path / "vario.toml")
    assert config.actions_of("page") == ["snapshot", "checkpoint", "stop"]
    assert config.notify["email"]["password"] == "env:SMTP_PASSWORD"
