"""One cause speaks once: grouping, who leads, how urgent, and what is said when."""

import dataclasses
import json

import pytest

from vario.rules import RULES
from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.causes import explain
from vario.rules.api.incidents import Incidents, collect, diagnose
from vario.rules.api.wording import in_a_paragraph, in_one_line
from vario.runs.findings.diagnosis import first_cause

KNOWN = {found.name: found.part for found in RULES}


def alert(rule, step, target="layers.1.weight", **options):
    known = KNOWN[rule]
    severity = {"exact": "page", "limit": "warn", "relative": "note"}[known.kind]
    plain = {"quantity": "gradient", "value": 1.0, "text": f"{rule} at {target}", "rank": None, "stage": 4}
    plain["severity"] = severity
    return Alert(rule=rule, kind=known.kind, step=step, target=target, **{**plain, **options})


def test_alerts_within_ten_steps_are_one_incident():
    alerts, found = collect([alert("grad_spike", step) for step in (50, 58, 66, 90)], KNOWN)
    assert [(incident.step, incident.last_step, len(incident.alerts)) for incident in found] == [
        (50, 66, 3),
        (90, 90, 1),
    ]
    assert [each.incident for each in alerts] == ["step-50", "step-50", "step-50", "step-90"]
    assert [incident.id for incident in found] == ["step-50", "step-90"]


def test_an_incident_is_told_three_steps_after_it_began_and_once():
    book = Incidents(KNOWN)
    told = {}
    for step in range(40, 80):
        told[step] = book.add(step, [alert("grad_spike", step)] if step in (50, 51, 56) else []).told
    assert [step for step, found in told.items() if found] == [53]
    assert book.flush() == []


def test_an_incident_that_turns_out_urgent_is_told_again():
    book = Incidents(KNOWN)
    alerts = {50: [alert("grad_spike", 50)], 55: [alert("replica_desync", 55, stage=6)]}
    told = [found for step in range(50, 70) for found in book.add(step, alerts.get(step, [])).told]
    assert [incident.severity for incident in told] == ["note", "page"]
    assert [incident.id for incident in told] == ["step-50", "step-50"]
    assert [incident.lead.rule for incident in told] == ["grad_spike", "grad_spike"]
    assert told[1].raised_by.rule == "replica_desync"


@pytest.mark.parametrize(("jump", "first"), [(10, 80), (60, 60)], ids=["long before", "right before"])
def test_a_warning_right_before_an_incident_that_became_urgent_comes_first(jump, first):
    note, urgent = alert("drift", 80), alert("zero_grad", 92, severity="page")
    _, found = collect([alert("activation_jump", jump, severity="warn"), note, alert("drift", 86, "b"), urgent], KNOWN)
    assert [(one.step, one.severity) for one in found] == [(jump, "warn"), (80, "page")]
    assert first_cause(tuple(found)).step == first


def test_a_warning_before_what_is_urgent_by_itself_does_not_hide_it():
    _, found = collect([alert("grad_spike", 60, severity="warn"), alert("replica_desync", 80)], KNOWN)
    assert first_cause(tuple(found)).step == 80


def test_what_is_urgent_much_later_raises_the_incident_that_goes_on_and_readers_say_the_same():
    alerts = [alert("grad_spike", step, f"layers.{step}.weight") for step in range(50, 90, 8)]
    alerts.append(alert("non_finite", 91, value=float("nan")))
    book = Incidents(KNOWN)
    told = [found for each in alerts for found in book.add(each.step, [each]).told]
    _, (read,) = collect(alerts, KNOWN)
    assert told[-1].severity == read.severity == "page"
    assert told[-1].raised_by.rule == read.raised_by.rule == "non_finite"
    assert "step 91: non_finite at layers.1.weight [non_finite]. It began at step 50" in in_one_line(read)
    assert "It became urgent at step 91: non_finite" in in_a_paragraph(read)


def test_what_is_known_better_later_is_stored_anew_and_not_told_again():
    book = Incidents(KNOWN)
    later = alert("level_shift", 56, "a:output", quantity="activation", stage=1, since=50)
    alerts = {50: [alert("grad_spike", 50)], 56: [later]}
    found = [book.add(step, alerts.get(step, [])) for step in range(50, 70)]
    assert [incident.lead.rule for each in found for incident in each.told] == ["grad_spike"]
    (revised,) = [incident for each in found for incident in each.revised]
    assert (revised.id, revised.lead.rule, revised.stage) == ("step-50", "level_shift", "forward")


def test_what_is_left_at_the_end_is_told():
    book = Incidents(KNOWN)
    assert book.add(10, [alert("non_finite", 10)]).told == []
    assert [incident.lead.rule for incident in book.flush()] == ["non_finite"]


def test_quiet_rules_begin_nothing_and_come_along():
    alerts, incidents = collect([alert("loss_spike", 50)], KNOWN)
    assert ([each.incident for each in alerts], incidents) == ([""], [])
    _, [incident] = collect([alert("loss_spike", 50), alert("grad_spike", 51)], KNOWN)
    assert incident.lead.rule == "grad_spike"


@pytest.mark.parametrize(
    ("first", "second", "leads"),
    [
        # what is certain before what came earlier
        (("grad_spike", 50, {}), ("replica_desync", 52, {"stage": 6}), "replica_desync"),
        # the earlier of two that are alike
        (("grad_spike", 51, {}), ("activation_jump", 50, {"stage": 1, "quantity": "activation"}), "activation_jump"),
        # in one step, what comes first in a step
        (("grad_spike", 50, {}), ("activation_jump", 50, {"stage": 1, "quantity": "activation"}), "activation_jump"),
        # a rule that waited is as early as what it saw
        (("grad_spike", 50, {}), ("level_shift", 52, {"since": 49, "stage": 1}), "level_shift"),
        # the loss is the last to know
        (("loss_shift", 50, {"quantity": "scalar", "target": "loss", "stage": 2}), ("zero_grad", 52, {}), "zero_grad"),
    ],
)
def test_the_alert_nearest_to_the_cause_leads(first, second, leads):
    alerts = [alert(rule, step, **{"target": "layers.1.weight", **more}) for rule, step, more in (first, second)]
    alerts.sort(key=lambda found: found.step)
    assert diagnose(alerts, KNOWN).lead.rule == leads


def test_a_nan_out_of_the_blue_leads_and_one_that_was_foretold_does_not():
    nan = alert("non_finite", 52, value=float("nan"))
    drift = alert("drift", 50)
    growth = alert("activation_jump", 51, quantity="activation", stage=1)
    assert diagnose([drift, nan], KNOWN).lead.rule == "non_finite"
    assert diagnose([drift, growth, nan], KNOWN).lead.rule == "drift"


def test_a_tensor_that_exploded_just_before_the_nan_in_the_same_step_leads():
    nan = alert("non_finite", 50, "b:output", quantity="activation", stage=1, order=9, value=float("nan"))
    explosion = alert("activation_jump", 50, "a:output", quantity="activation", stage=1, order=5, strength=80.0)
    later = dataclasses.replace(explosion, order=12)
    assert diagnose([explosion, nan], KNOWN).place == "a"
    assert diagnose([nan, later], KNOWN).place == "b"


def test_two_families_that_agree_make_a_note_a_warning():
    assert diagnose([alert("grad_spike", 50)], KNOWN).severity == "note"
    both = [alert("grad_spike", 50), alert("activation_jump", 51, quantity="activation", stage=1)]
    assert diagnose(both, KNOWN).severity == "warn"


def test_several_parts_of_one_block_are_the_block_and_all_layers_are_no_place():
    block = [alert("grad_spike", 50, f"layers.1.{part}.weight") for part in ("q", "k", "v")]
    assert diagnose(block, KNOWN).place == "layers.1"
    spread = [alert("grad_spike", 50, f"layers.{number}.q.weight", order=number) for number in range(3)]
    assert diagnose(spread, KNOWN).place == "layers.0.q.weight"


def test_a_rank_is_named_where_only_one_is_off():
    one = [alert("activation_jump", 50, "a:output", quantity="activation", rank=2)]
    assert (diagnose(one, KNOWN).rank, diagnose(one, KNOWN).scope) == (2, "rank")
    all_of_them = [alert("activation_jump", 50, "a:output", quantity="activation", rank=rank) for rank in range(4)]
    assert diagnose(all_of_them, KNOWN).rank is None


def test_a_bad_input_points_at_the_module_that_made_it():
    nan = alert("non_finite", 50, "blocks.1.drop:input", quantity="activation", stage=1, value=float("nan"))
    assert diagnose([nan], KNOWN).place == "blocks.1"


def test_alerts_and_incidents_come_back_from_strict_json():
    found = alert("non_finite", 3, value=float("inf"), low=float("nan"), others=("a", "b"), since=2)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    again = Alert.from_json(plain)
    assert dataclasses.replace(again, low=None) == dataclasses.replace(found, low=None)
    assert again.low != again.low
    incident = diagnose([alert("grad_spike", 5), alert("drift", 6)], KNOWN)
    assert Incident.from_json(json.loads(json.dumps(incident.to_json(), allow_nan=False))) == incident


def test_a_likely_cause_says_more_than_what_was_seen_and_reads_on_after_a_colon():
    for name, rule in KNOWN.items():
        if rule.is_quiet:
            continue
        of_numbers = {
            "data_repeat": "batch_repeated",
            "data_shared": "batch_checksum",
            "data_stuck_rows": "batch_stuck",
        }
        target = of_numbers.get(name, "loss" if name.startswith("loss") else "layers.1.weight")
        quantity = "gradient" if target == "layers.1.weight" else "scalar"
        scopes = ("batch", "rank") if quantity == "scalar" else ("tensor", "global")
        found = [alert(name, 50, target, quantity=quantity, scope=scope) for scope in scopes]
        causes = [explain(each, rule)[0] for each in found]
        seen = (rule.summary[:1].lower() + rule.summary[1:].rstrip("."), found[0].text)
        assert any(cause not in seen for cause in causes), name
        assert not any(cause.endswith(".") or cause[:1].isupper() for cause in causes), causes


def test_a_rule_without_advice_still_gets_a_sentence():
    cause, advice = explain(alert("grad_spike", 50), None)
    assert advice == "Look at the module or parameter named, in the steps around this one."
    assert cause


def test_what_nobody_watched_when_it_began_may_be_the_cause():
    shifted = alert("loss_shift", 155, "loss", quantity="scalar", stage=2, since=151)
    # Activations were watched in step 150 and, because of the incident, in step 156.
    moved = alert("activation_jump", 156, "blocks.0:output", quantity="activation", stage=1, unseen_from=151)
    assert diagnose([shifted, moved], KNOWN).place == "blocks.0"
    late = dataclasses.replace(moved, unseen_from=154)
    assert diagnose([shifted, late], KNOWN).place is None
    assert Alert.from_json(moved.to_json()) == moved
