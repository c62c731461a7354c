"""Each rule finds what it is for, names the place, and is silent before."""

import re

import numpy as np
import pytest
from courses import BIASES, COUNT, PARAMETERS, Course, number_row, summary

from vario.core.errors import ConfigError
from vario.notices.message import Message
from vario.rules import RULES, Finding, choose, rule, to_options
from vario.rules.api.findings import raised
from vario.rules.api.wording import in_a_paragraph, in_one_line

LAYER = "layers.2.mlp.weight"
MODULES = tuple(f"layers.{number}.mlp:output" for number in range(4))


def fed(course, steps, make):
    """The same kind of step many times; what was said meanwhile."""
    return [alert for _ in range(steps) for alert in course.step(*make())]


def names(alerts):
    return {alert.rule for alert in alerts}


def gradients(course, **special):
    rows = course.healthy("gradient", (*PARAMETERS, *BIASES))
    return ("gradient", rows | special)


def test_non_finite_names_the_first_tensor_of_the_step():
    course = Course(["non_finite"])
    assert not course.step(("activation", course.healthy("activation", MODULES)))
    rows = course.healthy("activation", MODULES)
    rows["layers.1.mlp:output"] = summary(nans=3)
    rows["layers.2.mlp:output"] = summary(nans=4096)
    [alert] = course.step(("activation", rows))
    assert (alert.target, alert.severity, alert.kind) == ("layers.1.mlp:output", "page", "exact")
    assert "3 NaN in 4096" in alert.text


def test_non_finite_takes_a_mask_for_what_it_is():
    course = Course(["non_finite"])
    mask = summary(infs=COUNT // 2, low=-np.inf, high=0.0, zeros=0.5)
    bias = summary(infs=COUNT // 2, low=-np.inf, high=0.0, zeros=0.25)
    assert not course.step(("activation", {"attn:input[1]": mask}))
    assert not course.step(("activation", {"attn:input.attn_mask": bias}))
    for bad in (bias, summary(infs=100, low=-np.inf, high=np.inf), summary(nans=1, infs=1, low=-np.inf, high=0.0)):
        assert Course(["non_finite"]).step(("activation", {"attn:input[1]": bad}))
    assert Course(["non_finite"]).step(("activation", {"attn:input.attn_mask": summary(infs=3, high=np.inf)}))


def test_non_finite_leaves_gradients_of_a_skipped_step_to_the_scaler():
    course = Course(["non_finite", "skipped_updates"])
    bad = ("gradient", {LAYER: summary(infs=5)})
    assert not course.step(bad, scalars={"skipped_step": 1.0})
    assert names(course.step(bad, scalars={"skipped_step": 0.0})) == {"non_finite"}


def test_a_scaler_that_never_finds_its_scale_is_told_once():
    course = Course(["skipped_updates"])
    for _ in range(30):
        course.step(scalars={"skipped_step": 0.0})
    said = [alert for _ in range(30) for alert in course.step(scalars={"skipped_step": 1.0})]
    assert [alert.rule for alert in said] == ["skipped_updates"]


def test_unexplained_change_names_the_weight_and_passes_over_what_is_done_by_design():
    course = Course(["unexplained_change"])
    for _ in range(3):
        assert not course.step(("unexpected_change", {"layers.0.mlp.weight": summary(0.1)}))
    for _ in range(20):
        assert not course.step(("unexpected_change", {"layers.0.mlp.weight": summary(0.1)}))
    [alert] = course.step(
        ("unexpected_change", {"layers.0.mlp.weight": summary(0.1), LAYER: summary(0.5, zeros=0.999)})
    )
    assert alert.target == LAYER


def test_unexplained_change_of_most_weights_is_a_common_cause():
    course = Course(["unexplained_change"])
    for _ in range(10):
        course.step()
    [alert] = course.step(("unexpected_change", {name: summary(0.1) for name in (*PARAMETERS, *BIASES)}))
    assert (alert.scope, alert.target) == ("global", None)


def test_unexplained_change_allows_for_updates_that_nobody_watched():
    course = Course(["unexplained_change"])
    still = {f"{LAYER}:{part}": summary(0.0, low=0.0, high=0.0, zeros=1.0) for part in ("change", "ratio")}

    def seen_after(steps, size):
        for _ in range(steps - 1):
            course.step()
        return course.step(("weight", {LAYER: summary(size)}), ("update", still))

    # Watched one step in ten, updates in bf16 are mostly nothing; the weight moves by those in between.
    assert not any(seen_after(10, 1 + 0.02 * nth) for nth in range(10))
    [alert] = seen_after(10, 4.0)
    assert alert.target == LAYER
    # From one step to the next nothing else can have moved it.
    assert not any(seen_after(1, 4.0) for _ in range(20))
    [alert] = seen_after(1, 4.04)
    assert alert.target == LAYER


@pytest.mark.parametrize(("steps", "num"), [(10, 1), (80, 0)])
def test_two_watched_updates_of_very_many_explain_nothing(steps, num):
    course = Course(["unexplained_change"])
    still = {f"{LAYER}:{part}": summary(0.0, low=0.0, high=0.0, zeros=1.0) for part in ("change", "ratio")}
    said = []
    for size in (1.0, 1.0, 9.0):
        said += course.step(("weight", {LAYER: summary(size)}), ("update", still))
        for _ in range(steps - 1):
            said += course.step()
    assert len(said) == num


def changed_at(size, zeros, update=1e-3, weight=1.0, dtype="float32"):
    """What is said of a weight that changes after ten quiet steps, in which its updates were seen."""
    course = Course(["unexplained_change"], dtype=dtype)
    for _ in range(10):
        course.step(("weight", {LAYER: summary(weight)}), ("update", {f"{LAYER}:change": summary(update)}))
    return [
        (alert.target, alert.severity)
        for alert in course.step(("unexpected_change", {LAYER: summary(size, zeros=zeros)}))
    ]


def test_unexplained_change_pages_only_beyond_the_reach_of_updates():
    assert changed_at(0.5, zeros=0.999) == [(LAYER, "page")]
    assert changed_at(5e-3, zeros=0.0) == [(LAYER, "note")]  # clamped, or back by a few updates


def test_unexplained_change_passes_over_rounding():
    assert changed_at(1e-8, zeros=0.99) == []
    assert changed_at(1e-3, zeros=0.99, dtype="bfloat16") == []


def test_unexplained_change_of_what_the_watched_updates_cannot_explain_is_a_hint():
    course = Course(["unexplained_change"])
    for size in (1.0, 4.0):
        found = course.step(("weight", {LAYER: summary(size)}), ("update", {f"{LAYER}:change": summary(1e-3)}))
    assert [alert.severity for alert in found] == ["note"]


def test_unexplained_change_of_all_weights_is_noted():
    course = Course(["unexplained_change"])
    for _ in range(10):
        course.step()
    [alert] = course.step(("unexpected_change", {name: summary(0.5) for name in (*PARAMETERS, *BIASES)}))
    assert alert.severity == "note"


@pytest.mark.parametrize(("kept", "reason"), [(True, "exactly zero"), (False, "no optimizer updates it")])
def test_frozen_param_says_which_and_why(kept, reason):
    course = Course(["frozen_param"])
    change = {f"{name}:change": summary(1e-3) for name in PARAMETERS}
    change[f"{LAYER}:change"] = summary(0.0, low=0.0, high=0.0, zeros=1.0)
    if not kept:
        del change[f"{LAYER}:change"]
    said = fed(course, 12, lambda: [("gradient", course.healthy("", PARAMETERS)), ("update", change)])
    assert [alert.target for alert in said] == [LAYER]
    assert reason in said[0].text
    assert said[0].step == 4


@pytest.mark.parametrize(("end", "says"), [(1e-7, []), (1e-3, [LAYER])])
def test_updates_that_round_to_zero_at_the_end_of_a_schedule_are_expected(end, says):
    course = Course(["frozen_param"])
    change = {f"{name}:change": summary(1e-3) for name in PARAMETERS}
    frames = [("gradient", course.healthy("", PARAMETERS)), ("update", change)]
    for index in range(40):
        assert not course.step(*frames, scalars={"lr": 1e-2 * 0.99**index})
    change[f"{LAYER}:change"] = summary(0.0, low=0.0, high=0.0, zeros=1.0)
    found = [alert.target for _ in range(12) for alert in course.step(*frames, scalars={"lr": end})]
    assert found == says


def test_zero_grad_waits_five_steps():
    course = Course(["zero_grad"])
    said = fed(course, 12, lambda: [gradients(course, **{LAYER: summary(0.0, low=0.0, high=0.0, zeros=1.0)})])
    assert [(alert.target, alert.step) for alert in said] == [(LAYER, 4)]


def test_a_parameter_that_never_gets_a_gradient_is_found():
    course = Course(["zero_grad"])
    said = fed(course, 40, lambda: [("gradient", course.healthy("", [*PARAMETERS, *BIASES[1:]]))])
    assert [alert.target for alert in said] == [BIASES[0]]
    assert "missing" in said[0].text


def test_a_stuck_loader_is_found_and_a_second_epoch_is_not():
    course = Course(["data_repeat"])
    for _ in range(50):
        course.step(scalars={"batch_repeated": 0.0})
    for _ in range(50):
        assert not course.step(scalars={"batch_repeated": 1.0, "batch_distance": 0.97})
    said = [alert for _ in range(10) for alert in course.step(scalars={"batch_repeated": 1.0, "batch_distance": 0.02})]
    assert [(alert.rule, alert.scope) for alert in said] == [("data_repeat", "batch")]


def test_two_ranks_with_one_batch_are_found():
    course = Course(["data_shared"], ranks=4)
    for step in range(5):
        sums = [1000.0 * step + rank for rank in range(4)]
        assert not course.step_of_ranks([[]] * 4, [{"batch_checksum": value} for value in sums])
    said = []
    for step in range(5):
        sums = [5000.0 * step + rank for rank in (0, 1, 2, 1)]
        said += course.step_of_ranks([[]] * 4, [{"batch_checksum": value} for value in sums])
    assert [(alert.rule, alert.rank) for alert in said] == [("data_shared", 3)]


def cosine(step, steps=200, peak=1e-3):
    return peak * 0.5 * (1 + np.cos(np.pi * step / steps))


def warm_up_and_decay(step):
    return 1e-3 * min(1.0, (step + 1) / 20) * (1.0 if step < 150 else max(0.0, (200 - step) / 50))


@pytest.mark.parametrize("schedule", [cosine, warm_up_and_decay, lambda step: 1e-3])
def test_lr_change_is_silent_on_schedules(schedule):
    course = Course(["lr_change"])
    assert not [alert for step in range(200) for alert in course.step(scalars={"lr": schedule(step)})]


@pytest.mark.parametrize(
    ("change", "within"),
    [
        (lambda step: 1e-2, 1),
        (lambda step: 0.0, 1),
        (lambda step: 1e-3 * 1.05 ** (step - 100), 10),
        (lambda step: 1e-3 * 0.9 ** (step - 100), 10),
    ],
)
def test_lr_change_finds_what_no_schedule_does(change, within):
    course = Course(["lr_change"])
    for _ in range(101):
        assert not course.step(scalars={"lr": 1e-3})
    said = [alert for step in range(101, 130) for alert in course.step(scalars={"lr": change(step)})]
    assert said[0].step <= 101 + within
    assert len(said) == 1


def severities_of_rates(*rates, new_optimizer=False):
    course = Course(["lr_change"])
    for _ in range(30):
        course.step(scalars={"lr": 1e-2, "setting/eps": 1e-8})
    said = []
    for place, rate in enumerate(rates):
        fresh = {"setting/1/eps": 1e-8} if new_optimizer and place == 0 else {}
        said += course.step(scalars={"lr": rate, **fresh})
    return [alert.severity for alert in said]


def test_lr_change_pages_above_the_highest_rate_and_at_zero():
    assert severities_of_rates(1.0) == ["page"]
    assert severities_of_rates(0.0) == ["page"]
    assert severities_of_rates(1e-3) == ["note"]  # a milestone
    assert severities_of_rates(1e-4, 1e-4, 1e-2)[:1] == ["note"]  # and a restart
    assert severities_of_rates(1.0, new_optimizer=True) == ["note"]  # the next stage


def test_lr_change_tells_of_groups_that_have_got_each_others_rates():
    course = Course(["lr_change"])
    assert not [alert for _ in range(80) for alert in course.step(scalars={"lr": 1e-3, "lr/1": 1e-4})]
    alerts = course.step(scalars={"lr": 1e-4, "lr/1": 1e-3})
    assert {alert.severity for alert in alerts} == {"note"}
    assert any("from 1.00e-03 to 1.00e-04" in alert.text or "from 0.001 to 0.0001" in alert.text for alert in alerts)


def test_lr_change_knows_the_rates_of_optimizers_that_take_turns():
    course = Course(["lr_change"])
    turns = [{"lr": 1e-3, "lr/1": 1e-4}, {"lr": 1e-3}, {"lr": 1e-4, "lr/1": 1e-3}, {"lr": 1e-4}]
    assert not [alert for step in range(60) for alert in course.step(scalars=turns[step % 4])]
    assert course.step(scalars={"lr": 1e-2, "lr/1": 1e-3})
    late = Course(["lr_change"])
    assert not [alert for _ in range(20) for alert in late.step(scalars={"lr": 1e-3})]
    assert not late.step(scalars={"lr": 1e-4, "lr/1": 1e-3})  # one that is made later updates first
    assert not late.step(scalars={"lr": 1e-3})
    alone = Course(["lr_change"])
    assert not [alert for step in range(60) for alert in alone.step(scalars={"lr": (1e-3, 3e-4)[step // 2 % 2]})]
    assert alone.step(scalars={"lr": 1e-2})


def test_lr_change_tells_of_the_first_of_equal_drops_and_of_another_one():
    course = Course(["lr_change"])
    rates = [0.9, 0.3, 0.1, 0.02]
    said = [alert.step for step in range(120) for alert in course.step(scalars={"lr": rates[step // 30]})]
    assert said == [30, 90]


def test_near_overflow_takes_the_lowest_number_for_a_mask():
    lowest = -3.4028234663852886e38
    course = Course(["near_overflow"])
    assert not course.step(("activation", {MODULES[0]: summary(3e37, low=lowest, high=5.0)}))
    assert course.step(("activation", {MODULES[0]: summary(3e37, low=lowest * 0.9, high=5.0)}))


def test_near_overflow_in_float16_and_not_in_float32():
    for dtype, expected in (("float16", 1), ("float32", 0), ("bfloat16", 0)):
        course = Course(["near_overflow"], dtype=dtype)
        for _ in range(5):
            course.step(("activation", course.healthy("", MODULES)))
        rows = course.healthy("", MODULES) | {MODULES[1]: summary(5000.0)}
        assert len(course.step(("activation", rows))) == expected


@pytest.mark.parametrize(("size", "dtype", "severities"), [(1.0, "float32", []), (1e-6, "float16", ["warn"])])
def test_grad_underflow_warns_where_numbers_are_small_enough_to_vanish(size, dtype, severities):
    course = Course(["grad_underflow"], dtype=dtype)
    names = (*PARAMETERS, *BIASES)
    for _ in range(40):
        course.step(("gradient", {name: summary(size * course.size()) for name in names}))
    said = course.step(("gradient", {name: summary(size, zeros=0.3) for name in names}))
    assert [alert.severity for alert in said] == severities


def test_zero_grad_of_a_bias_beside_a_matrix_that_learns_is_noted_if_it_had_a_gradient():
    nothing = summary(0.0, low=0.0, high=0.0, zeros=1.0)
    for had_one, expected in ((True, [("layers.2.mlp.bias", "note")]), (False, [])):
        course = Course(["zero_grad"])
        assert not fed(course, 8 if had_one else 0, lambda course=course: [gradients(course)])
        said = fed(course, 6, lambda course=course: [gradients(course, **{"layers.2.mlp.bias": nothing})])
        assert [(alert.target, alert.severity) for alert in said] == expected
    course = Course(["zero_grad"])
    said = fed(course, 10, lambda: [gradients(course)])
    said += fed(course, 6, lambda: [gradients(course, **{LAYER: nothing, "layers.2.mlp.bias": nothing})])
    assert {alert.severity for alert in said} == {"page"}


def test_zero_grad_of_what_never_had_a_gradient_is_noted():
    course = Course(["zero_grad"])
    rows = lambda: {name: row for name, row in gradients(course)[1].items() if name != LAYER}  # noqa: E731
    said = fed(course, 25, lambda: [("gradient", rows())])
    assert [(alert.target, alert.severity) for alert in said] == [(LAYER, "note")]


def test_settings_that_thaw_or_grow_are_noted_and_those_that_freeze_are_warned_of():
    for now, severity in ((8.0, "note"), (2.0, "warn")):
        course = Course(["settings_change"])
        course.step(scalars={"setting/trainable_parameters": 4.0})
        fed(course, 4, list)
        [alert] = course.step(scalars={"setting/trainable_parameters": now})
        assert alert.severity == severity


def test_state_lost_to_a_new_optimizer_is_noted():
    change = {f"{name}:change": summary(1e-3) for name in PARAMETERS}
    having = change | {f"{name}:grad_vs_second_moment": summary() for name in PARAMETERS}
    for scalars, severity in (({}, "page"), ({"setting/1/eps": 1e-8}, "note")):
        course = Course(["state_lost"])
        fed(course, 8, lambda: [("update", having)])
        [alert] = course.step(("update", change), scalars=scalars)
        assert alert.severity == severity


def test_grad_underflow_of_most_matrices_is_the_loss_scale():
    course = Course(["grad_underflow"], dtype="float16")
    names = (*PARAMETERS, *BIASES)
    assert not fed(course, 40, lambda: [("gradient", {name: summary(1e-5 * course.size()) for name in names})])
    [alert] = course.step(("gradient", {name: summary(1e-5, zeros=0.3) for name in names}))
    assert alert.scope == "global"
    assert "loss scale" in course.incidents()[0].cause


def updates(**parts):
    return ("update", {f"{name}:{part}": number_row(value) for name in PARAMETERS for part, value in parts.items()})


@pytest.mark.parametrize(("factor", "severity"), [(0.97, "note"), (1.01, "warn")])
def test_large_updates_are_a_note_while_the_loss_falls(factor, severity):
    course = Course(["update_high"])
    losses = iter(10.0 * factor**number for number in range(60))
    step = lambda ratio: course.step(  # noqa: E731
        ("update", {f"{name}:ratio": number_row(ratio) for name in PARAMETERS}), scalars={"loss": next(losses)}
    )
    assert not [alert for _ in range(40) for alert in step(0.001)]
    assert [alert.severity for _ in range(10) for alert in step(0.3)] == [severity]


def test_update_high_and_low_judge_the_median_matrix():
    course = Course(["update_high", "update_low"])
    for _ in range(10):
        assert not course.step(updates(ratio=1e-3), scalars={"lr": 1e-3})
    said = [alert for _ in range(5) for alert in course.step(updates(ratio=0.3), scalars={"lr": 1e-3})]
    assert names(said) == {"update_high"}
    said = [alert for _ in range(8) for alert in course.step(updates(ratio=1e-9), scalars={"lr": 1e-3})]
    assert names(said) == {"update_low"}


def test_small_updates_at_the_end_of_a_schedule_are_as_they_should_be():
    course = Course(["update_low"])
    for _ in range(10):
        course.step(updates(ratio=1e-3), scalars={"lr": 1e-3})
    for _ in range(10):
        assert not course.step(updates(ratio=1e-9), scalars={"lr": 1e-9})


def test_stale_second_moment_of_one_parameter_and_of_all():
    course = Course(["stale_second_moment"])
    healthy = lambda: [  # noqa: E731
        ("update", {f"{name}:grad_vs_second_moment": summary(1.0, mean=course.size()) for name in PARAMETERS})
    ]
    assert not fed(course, 60, healthy)
    rows = healthy()[0][1] | {f"{LAYER}:grad_vs_second_moment": summary(1.0, mean=500.0)}
    [alert] = course.step(("update", rows))
    assert alert.target == f"{LAYER}:grad_vs_second_moment"
    fed(course, 30, healthy)
    [alert] = course.step(
        ("update", {f"{name}:grad_vs_second_moment": summary(1.0, mean=5000.0) for name in PARAMETERS})
    )
    assert alert.scope == "global"


def test_one_element_that_speaks_again_does_not_make_a_second_moment_stale():
    course = Course(["stale_second_moment"])
    healthy = lambda: {f"{name}:grad_vs_second_moment": summary(1.0, mean=course.size()) for name in PARAMETERS}  # noqa: E731
    assert not fed(course, 60, lambda: [("update", healthy())])
    alone = summary(1.0, mean=500.0)
    alone[4] = 0.9 * alone[1]  # its max is most of its sum
    assert not course.step(("update", healthy() | {f"{LAYER}:grad_vs_second_moment": alone}))


def test_eps_dominates():
    course = Course(["eps_dominates"])
    assert not fed(course, 20, lambda: [updates(eps_share=0.01)])
    assert not fed(course, 5, lambda: [updates(eps_share=2.0)])  # layers may start at zero
    assert names(fed(course, 40, lambda: [updates(eps_share=2.0)])) == {"eps_dominates"}


def test_a_share_of_dead_units_near_the_limit_is_told_once():
    course = Course(["dead_units"])
    rows = lambda share: [("unit", {"act:dead": number_row(share)})]  # noqa: E731
    said = [alert.target for share in 3 * (0.65, 0.5) for alert in fed(course, 60, lambda share=share: rows(share))]
    assert said == ["act"]
    fed(course, 60, lambda: rows(0.1))
    assert fed(course, 5, lambda: rows(0.65))


def test_dead_units_names_the_layer():
    course = Course(["dead_units"])
    rows = {"layers.0.act:dead": number_row(0.1), "layers.1.act:dead": number_row(0.9)}
    assert [alert.target for alert in fed(course, 5, lambda: [("unit", rows)])] == ["layers.1.act"]


def test_attn_logit_above_its_limit_and_doubled():
    course = Course(["attn_logit"])
    rows = lambda top: ("attention", {"a:max_logit": summary(1.0, high=8.0), "b:max_logit": summary(1.0, high=top)})  # noqa: E731
    assert not fed(course, 30, lambda: [rows(8.0 + course.size())])
    assert [alert.target for alert in course.step(rows(40.0))] == ["b"]
    fed(course, 30, lambda: [rows(9.0)])
    assert course.step(rows(150.0))


def test_attn_entropy_that_falls_and_stays():
    course = Course(["attn_entropy"])
    rows = lambda low: ("attention", {"a:head_entropy": summary(0.6, mean=0.6, low=low, high=0.8)})  # noqa: E731
    assert not fed(course, 60, lambda: [rows(0.5 + 0.01 * course.size())])
    assert names(fed(course, 4, lambda: [rows(0.05)])) == {"attn_entropy"}


def test_expert_imbalance_that_lasts():
    course = Course(["expert_imbalance"])
    loads = lambda low, high: ("expert", {"router:load": summary(1.0, mean=1.0, low=low, high=high)})  # noqa: E731
    assert not fed(course, 50, lambda: [loads(0.6, 1.4)])
    assert not course.step(loads(0.5, 3.0))
    assert names(fed(course, 20, lambda: [loads(0.3, 3.0)])) == {"expert_imbalance"}


def test_a_load_that_swings_about_its_limit_is_told_once():
    course = Course(["expert_imbalance"])
    loads = lambda high: ("expert", {"router:load": summary(1.0, mean=1.0, low=0.6, high=high)})  # noqa: E731
    for number in range(50):
        assert not course.step(loads(1.8 if number % 2 else 1.6))
    said = [alert for number in range(240) for alert in course.step(loads(1.85 if number // 40 % 2 else 2.2))]
    assert len(said) == 1
    fed(course, 60, lambda: [loads(1.2)])
    assert len(fed(course, 60, lambda: [loads(2.4)])) == 1


def test_a_starved_expert_is_found():
    course = Course(["expert_imbalance"])
    loads = lambda low: ("expert", {"router:load": summary(1.0, mean=1.0, low=low, high=1.5)})  # noqa: E731
    assert not fed(course, 50, lambda: [loads(0.6)])
    assert fed(course, 30, lambda: [loads(0.0)])


def test_straggler_of_a_quarter_more_time():
    course = Course(["straggler"], ranks=4)
    said = []
    for step in range(80):
        slow = 1.25 if step >= 40 else 1.0
        times = [0.1 * course.size(0.02) * (slow if rank == 2 else 1.0) for rank in range(4)]
        said += course.step_of_ranks([[]] * 4, [{"forward_seconds": value} for value in times])
        assert not said or step > 40
    assert [alert.rank for alert in said] == [2]


def late_ranks(course, num_steps, times, collectives=None, every=1):
    """Steps of ranks that take these times, {name: one number a rank} by step; what was said meanwhile."""
    said = []
    for step in range(num_steps):
        found = times(step)
        waits = collectives(step) if collectives is not None and step % every == 0 else [None] * course.ranks
        frames = [[] if wait is None else [("communication", {CALL: number_row(wait)})] for wait in waits]
        scalars = [
            {name: values[rank] * course.size(0.02) for name, values in found.items()} for rank in range(course.ranks)
        ]
        said += course.step_of_ranks(frames, scalars)
    return said


CALL = "all_reduce@train.py[31]:seconds"


@pytest.mark.parametrize("part", ["forward_seconds", "backward_seconds", "update_seconds", "wait_seconds"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_straggler_began_when_it_began(part, ranks):
    usual = {"update_seconds": 0.02, "wait_seconds": 0.05, "forward_seconds": 0.1, "backward_seconds": 0.2}

    def times(step):
        found = {name: [seconds] * ranks for name, seconds in usual.items()} | {"step_seconds": [0.4] * ranks}
        found[part] = [usual[part] + (0.1 if rank == 1 and step >= 43 else 0.0) for rank in range(ranks)]
        return found

    [alert] = late_ranks(Course(["straggler"], ranks=ranks), 100, times)
    assert (alert.rank, alert.target, alert.began) == (1, part, 43)
    assert "since step 43" in alert.text


def test_straggler_of_steps_that_are_longer_for_all_ranks_now_and_then():
    def times(step):
        length = 1.0 + 0.8 * np.sin(step) ** 2
        return {"forward_seconds": [0.1 * length * (1.3 if rank == 2 and step >= 51 else 1.0) for rank in range(4)]}

    [alert] = late_ranks(Course(["straggler"], ranks=4), 110, times)
    assert (alert.rank, alert.began) == (2, 51)


def test_straggler_is_not_who_waits_for_it_inside_a_forward_pass():
    # FSDP gathers weights in forward: all others wait there for the rank that loads slowly.
    def times(step):
        lost = 0.1 if step >= 40 else 0.0
        forward = [0.1 + (0.0 if rank == 0 else lost) for rank in range(4)]
        return {"wait_seconds": [0.01 + lost, 0.01, 0.01, 0.01], "forward_seconds": forward, "step_seconds": [0.3] * 4}

    [alert] = late_ranks(Course(["straggler"], ranks=4), 100, times)
    assert (alert.rank, alert.target, alert.began) == (0, "wait_seconds", 40)


@pytest.mark.parametrize("every", [1, 3])
def test_straggler_that_only_the_others_wait_in_a_collective_shows(every):
    def waits(step):
        return [0.1 if rank != 1 and step >= 45 else 0.002 for rank in range(3)]

    course = Course(["straggler"], ranks=3)
    [alert] = late_ranks(course, 180, lambda step: {"step_seconds": [0.3] * 3}, waits, every)
    assert (alert.rank, alert.target, alert.began) == (1, CALL, 45)


def test_straggler_is_named_once_where_its_own_part_and_a_collective_show_it():
    def times(step):
        lost = 0.1 if step >= 45 else 0.0
        return {"backward_seconds": [0.1, 0.1 + lost], "step_seconds": [0.3] * 2}

    said = late_ranks(Course(["straggler"], ranks=2), 120, times, lambda step: [0.1 if step >= 45 else 0.002, 0.002])
    assert [(alert.rank, alert.target) for alert in said] == [(1, "backward_seconds")]


def test_straggler_says_nothing_of_ranks_of_which_now_this_and_now_that_one_comes_last():
    def waits(step):
        last = (step // 3) % 3
        return [0.002 if rank == last else 0.1 for rank in range(3)]

    course = Course(["straggler"], ranks=3)
    assert not late_ranks(course, 200, lambda step: {"step_seconds": [0.3] * 3}, waits)


def test_rank_outlier_names_rank_and_module():
    course = Course(["rank_outlier"], ranks=4)

    def step(off):
        frames = [[("activation", course.healthy("", MODULES))] for _ in range(4)]
        if off:
            frames[3][0][1][MODULES[2]] = summary(1.0, high=400.0)
        return course.step_of_ranks(frames, [{"loss": course.size(0.02)} for _ in range(4)])

    assert not [alert for _ in range(60) for alert in step(False)]
    [alert] = step(True)
    assert (alert.rank, alert.target, alert.scope) == (3, MODULES[2], "rank")


def test_a_loss_of_one_rank_that_stays_above_the_others():
    course = Course(["rank_outlier"], ranks=4)
    said = []
    for step in range(120):
        losses = [2.0 * course.size(0.02) * (1.3 if rank == 1 and step >= 60 else 1.0) for rank in range(4)]
        said += course.step_of_ranks([[]] * 4, [{"loss": value} for value in losses])
        assert not said or step >= 60
    assert {alert.rank for alert in said} == {1}


@pytest.mark.parametrize(("times", "told"), [(0.1, set()), (10.0, {2})], ids=["an easy batch", "a bad one"])
def test_a_rank_whose_batch_is_easy_is_only_lucky(times, told):
    course = Course(["rank_outlier"], ranks=4)
    said = []
    for step in range(80):
        losses = [0.4 * course.size(0.1) * (times if rank == 2 and step == 70 else 1.0) for rank in range(4)]
        said += course.step_of_ranks([[]] * 4, [{"loss": value} for value in losses])
    assert {alert.rank for alert in said} == told


def test_reduce_mismatch_of_a_sum_in_place_of_a_mean():
    course = Course(["reduce_mismatch"], ranks=4)

    def step(reduced):
        frames = [[("gradient_local", {name: summary(1.0) for name in PARAMETERS})] for _ in range(4)]
        frames[0].append(("gradient", {name: summary(reduced) for name in PARAMETERS}))
        return course.step_of_ranks(frames, [{}] * 4)

    assert not [alert for _ in range(10) for alert in step(0.5)]
    said = [alert for _ in range(4) for alert in step(2.0)]
    assert [(alert.rule, alert.scope) for alert in said] == [("reduce_mismatch", "global")]


def test_replica_desync_names_the_rank_that_is_alone():
    course = Course(["replica_desync"], ranks=4)

    def step(values):
        rows = [{f"{name}:weight": number_row(7.0) for name in PARAMETERS} for _ in range(4)]
        for rank, value in values.items():
            rows[rank][f"{LAYER}:weight"] = number_row(value)
        return course.step_of_ranks([[("checksum", each)] for each in rows], [{}] * 4)

    assert not step({})
    [alert] = step({3: 8.0})
    assert (alert.rank, alert.target, alert.severity) == (3, LAYER, "page")


def test_grad_spike_of_one_tensor_and_of_all():
    course = Course(["grad_spike"])
    assert not fed(course, 60, lambda: [gradients(course)])
    [alert] = course.step(gradients(course, **{LAYER: summary(30.0)}))
    assert alert.target == LAYER
    assert alert.low < 1 < alert.high < 3
    fed(course, 60, lambda: [gradients(course)])
    [alert] = course.step(("gradient", {name: summary(30.0) for name in (*PARAMETERS, *BIASES)}))
    assert (alert.scope, alert.target) == ("global", None)


@pytest.mark.parametrize("moved", [(LAYER,), (*PARAMETERS, *BIASES)], ids=["one", "all"])
def test_a_drop_of_gradients_is_not_called_a_spike(moved):
    course = Course(["grad_spike"])
    fed(course, 60, lambda: [gradients(course)])
    fallen = fed(course, 3, lambda: [gradients(course, **dict.fromkeys(moved, summary(0.01)))])
    assert [(alert.rule, alert.label, alert.since) for alert in fallen] == [("grad_spike", "gradient drop", 60)]
    assert " fell t" in fallen[0].text
    (incident,) = course.incidents()
    said = [in_one_line(incident), in_a_paragraph(incident), Message(incident, "run").title, Message(incident, "").text]
    assert all("gradient drop" in text and "spike" not in text for text in said)
    other = Course(["grad_spike"])
    fed(other, 60, lambda: [gradients(other)])
    [risen] = other.step(gradients(other, **dict.fromkeys(moved, summary(30.0))))
    assert (risen.label, risen.label_or_rule) == ("", "grad_spike")
    assert " fell t" not in risen.text


def test_activation_jump_names_the_first_module():
    course = Course(["activation_jump"])
    assert not fed(course, 60, lambda: [("activation", course.healthy("", MODULES))])
    rows = course.healthy("", MODULES) | dict.fromkeys(MODULES[1:], summary(20.0))
    course.step(("activation", rows))
    assert course.incidents()[0].place == "layers.1.mlp"


def test_update_jump_of_most_matrices_is_the_optimizer():
    course = Course(["update_jump"])
    steady = lambda factor: ("update", {f"{name}:pace": number_row(factor * course.size(0.05)) for name in PARAMETERS})  # noqa: E731
    assert not fed(course, 60, lambda: [steady(1.0)])
    [alert] = course.step(steady(6.0))
    assert alert.scope == "global"
    assert "optimizer" in course.incidents()[0].cause


def test_drift_finds_growth_without_a_jump():
    course = Course(["drift"])
    grown = 1.0
    assert not fed(course, 120, lambda: [("activation", course.healthy("", MODULES, 0.05))])
    said = []
    for _ in range(60):
        grown *= 1.03
        rows = course.healthy("", MODULES, 0.05) | {MODULES[3]: summary(grown)}
        said += course.step(("activation", rows))
    assert {alert.target for alert in said} == {MODULES[3]}


def test_drift_finds_a_mean_that_leaves_before_the_size_shows_it():
    course = Course(["drift"])
    centred = lambda: course.healthy("", MODULES, 0.05)  # noqa: E731
    assert not fed(course, 100, lambda: [("activation", centred())])
    said = []
    for step in range(30):
        said += course.step(("activation", centred() | {MODULES[2]: summary(course.size(0.05), mean=0.05 * step)}))
    assert {(alert.target, alert.statistic) for alert in said} == {(MODULES[2], "mean")}


@pytest.mark.parametrize(("factor", "expected"), [(1.05, 1), (1 / 1.05, 0)])
def test_updates_that_get_smaller_are_no_drift(factor, expected):
    course = Course(["drift"])
    size = 1.0
    rows = lambda: ("update", {f"{name}:pace": number_row(size * course.size(0.02)) for name in PARAMETERS})  # noqa: E731
    assert not fed(course, 120, lambda: [rows()])
    said = []
    for _ in range(60):
        size *= factor
        said += course.step(rows())
    assert len({alert.rule for alert in said}) == expected


def test_a_threshold_grows_with_the_number_of_series():
    assert raised(6.0, 1.0, 3) == raised(6.0, 1.0, 10) == 6.0
    assert raised(6.0, 1.0, 10_000) == pytest.approx(6.0 + np.log(1000))


@pytest.mark.parametrize(("num", "expected"), [(8, 1), (2000, 0)])
def test_one_spike_among_very_many_gradients_must_be_higher(num, expected):
    course = Course(["grad_spike"])
    names = [f"layers.{number}.weight" for number in range(num)]
    fed(course, 60, lambda: [("gradient", course.healthy("", names, 0.12))])
    rows = course.healthy("", names, 0.12) | {names[1]: summary(3.2)}  # between nine and ten spreads
    assert len(course.step(("gradient", rows))) == expected


def test_level_shift_finds_a_third_more_that_stays():
    course = Course(["level_shift"])
    assert not fed(course, 80, lambda: [("activation", course.healthy("", MODULES, 0.02))])
    rows = lambda: course.healthy("", MODULES, 0.02) | {MODULES[1]: summary(1.5 * course.size(0.02))}  # noqa: E731
    assert {alert.target for alert in fed(course, 6, lambda: [("activation", rows())])} == {MODULES[1]}


def test_loss_shift_needs_a_level_that_stays_and_is_not_alarmed_by_learning():
    course = Course(["loss_shift"])
    for step in range(150):
        assert not course.step(scalars={"loss": 3.0 * np.exp(-step / 60) + 1.0 + 0.02 * course.noise.normal()})
    # One bad batch is no level.
    assert not course.step(scalars={"loss": 6.0})
    for _ in range(20):
        assert not course.step(scalars={"loss": 1.25 + 0.02 * course.noise.normal()})
    said = [alert for _ in range(30) for alert in course.step(scalars={"loss": 2.2 + 0.02 * course.noise.normal()})]
    assert names(said) == {"loss_shift"}
    assert "data" in course.incidents()[0].cause


def test_a_loss_that_was_never_negative_is_not_expected_to_be():
    course = Course(["loss_shift"])
    said = []
    for step in range(100):
        said += course.step(scalars={"loss": (4.0 * np.exp(-step / 12) if step < 60 else 9.0) + 0.01})
    [alert] = said
    assert "stays there, expected 0.0" in alert.text


def test_a_fall_that_flattens_is_no_shift():
    course = Course(["loss_shift"])
    for step in range(100):
        fallen = max(4.0 - 0.035 * step, 2.6)
        assert not course.step(scalars={"loss": fallen + 0.05 * course.noise.normal()})


def test_an_optimizer_that_forgets_its_state_is_found():
    course = Course(["state_lost"])
    change = {f"{name}:change": summary(1e-3) for name in PARAMETERS}
    surprise = {f"{name}:grad_vs_second_moment": summary(1.0, mean=1.0) for name in PARAMETERS}
    assert not course.step(("update", change))
    assert not fed(course, 10, lambda: [("update", change | surprise)])
    [alert] = course.step(("update", change))
    assert (alert.scope, alert.kind) == ("global", "exact")
    fed(course, 20, lambda: [("update", change | surprise)])
    del surprise[f"{LAYER}:grad_vs_second_moment"]
    [alert] = course.step(("update", change | surprise))
    assert alert.target == LAYER


def test_a_loss_that_swings_more_widely_is_told_and_a_noisy_one_is_not():
    course = Course(["loss_swings"])
    for _ in range(150):
        assert not course.step(scalars={"loss": 2.0 + 0.1 * course.noise.normal()})
    said = [
        alert
        for step in range(40)
        for alert in course.step(scalars={"loss": 2.0 + 0.6 * (-1) ** step + 0.1 * course.noise.normal()})
    ]
    assert [alert.rule for alert in said] == ["loss_swings"]


def test_a_stalled_step_is_told():
    course = Course(["stalled"])
    for _ in range(20):
        assert not course.step(scalars={"step_seconds": 1.0})
    assert not course.step(scalars={"step_seconds": 30.0})
    assert course.step(scalars={"step_seconds": 90.0})


def test_settings_that_change_are_told_by_name():
    course = Course(["settings_change"])
    course.step(scalars={"setting/modules_in_eval": 0.0})
    for _ in range(10):
        assert not course.step()
    [alert] = course.step(scalars={"setting/modules_in_eval": 12.0})
    assert "modules in eval changed from 0 to 12" in alert.text


def test_quiet_rules_begin_no_incident():
    course = Course(["plateau", "loss_spike"])
    said = [alert for _ in range(700) for alert in course.step(scalars={"loss": 1.0})]
    said += course.step(scalars={"loss": 50.0})
    assert names(said) == {"plateau", "loss_spike"}
    assert course.incidents() == []


def test_overfitting_and_clipping_and_memory_growth_are_noticed():
    course = Course(["overfitting", "clipping_often", "memory_growth"])
    said = []
    for step in range(1200):
        scalars = {"loss": 2.0 - step / 1000, "process_memory_bytes": 1e9 * (1 + step / 1000)}
        if step % 100 == 99:
            scalars["eval_loss"] = 1.0 + abs(step - 400) / 400
        clipped = {name: summary(0.5) for name in PARAMETERS}
        said += course.step(
            ("gradient", {n: summary(1.0) for n in PARAMETERS}), ("gradient_applied", clipped), scalars=scalars
        )
    assert names(said) == {"overfitting", "clipping_often", "memory_growth"}


def test_every_rule_says_what_why_and_what_next():
    for found in RULES:
        assert found.part.summary.endswith(".")
        assert found.part.why, found.name
        assert found.part.next, found.name


VERBS = "Call|Check|Find|Go|Keep|Look|Lower|Raise"


def test_a_gradient_norm_at_its_limit_is_told_after_that_many_steps():
    course = Course({"gradient_norm_limit": {"limit": 10.0, "steps": 2}})
    norms = [1.0, 10.0, 1.0, 11.0, float("nan"), 12.0, 1.0, 20.0]
    told = [names(course.step(scalars={"gradient_norm": norm})) for norm in norms]
    assert [step for step, found in enumerate(told) if "gradient_norm_limit" in found] == [4]


def test_without_a_limit_no_norm_is_too_large():
    course = Course(["gradient_norm_limit", "embedding_norm_limit"])
    assert not course.step(("gradient", {LAYER: summary(rms=1e9)}), scalars={"gradient_norm": 1e9})


def test_what_to_do_next_is_one_or_two_sentences_that_begin_with_a_verb():
    for found in RULES:
        assert re.match(rf"({VERBS}) ", found.part.next), found.name
        assert found.part.next.endswith("."), found.name
        assert len(re.findall(r"\.(?= [A-Z]|$)", found.part.next)) <= 2, found.name


def test_all_rules_are_silent_on_an_empty_step_and_on_healthy_noise():
    course = Course(ranks=2)
    for _ in range(3):
        assert not course.step()
    for step in range(300):
        assert not course.step(
            gradients(course),
            ("weight", {name: summary(1.0 + step / 5000) for name in PARAMETERS}),
            ("activation", course.healthy("", MODULES)),
            ("activation_gradient", course.healthy("", MODULES)),
            scalars={"loss": 2.0 * np.exp(-step / 100) + 1 + 0.03 * course.noise.normal(), "lr": cosine(step, 300)},
        )


def test_a_rule_of_ones_own_is_a_function():
    @rule("limit")
    def too_big(step, most: float = 5.0):
        """Too big.

        Why: because.

        Next: look.
        """
        rows = step.rows("gradient")
        for target, value in zip(rows.targets, rows.statistic("rms"), strict=True):
            if value > most:
                yield Finding(f"{target} is {value}", "gradient", target, value)

    course = Course([too_big])
    assert [alert.target for alert in course.step(gradients(course, **{LAYER: summary(6.0)}))] == [LAYER]
    assert choose([too_big])[0].rule.options == {"most": 5.0}


@pytest.mark.parametrize(
    "wanted", [True, False, ["non_finite", "drift"], {"grad_spike": {"threshold": 10}, "drift": False}, "NonFinite"]
)
def test_a_choice_of_rules_comes_back_from_plain_values(wanted):
    chosen = choose(wanted)
    again = choose(to_options(chosen))
    assert sorted((found.rule.name, dict(found.options)) for found in again) == sorted(
        (found.rule.name, dict(found.options)) for found in chosen
    )


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["non_finit"], "rules: unknown 'non_finit'. Did you mean 'non_finite'?"),
        ({"grad_spike": {"treshold": 1}}, "rules.grad_spike: unknown 'treshold'. Did you mean 'threshold'?"),
        ({"grad_spike": {"threshold": "high"}}, "rules.grad_spike.threshold: expected a number, got 'high'"),
        ({"zero_grad": {"steps": 2.5}}, "rules.zero_grad.steps: expected a whole number, got 2.5"),
        ({"drift": 3}, "rules.drift: expected a table of its options, true or false, got 3"),
        ([print], "expected a name or a rule"),
        (7, "rules: expected names, a table of options, true or false, got 7"),
    ],
)
def test_a_wrong_choice_of_rules_says_what_is_wrong(wanted, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        choose(wanted)
