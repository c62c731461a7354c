"""Words for a diagnosis: what is likely to have happened, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from vario.rules.api.alerts import Alert
from vario.rules.api.rule import Rule

GLOBAL = {
    "grad_spike": "all gradients moved together: the loss scale, how the loss or the micro-steps are averaged, "
    "gradients that are not zeroed, or a batch unlike the others",
    "grad_underflow": "gradients underflow everywhere: the loss scale is too small for this dtype",
    "drift": "all tensors drift together: the optimizer (its learning rate or weight decay) or the loss scale",
    "update_jump": "the optimizer changed: its state, weight decay, eps or betas (the learning rate is accounted for)",
    "update_high": "the learning rate is too high for these weights, or has no warm-up",
    "update_low": "the learning rate is next to nothing, or the optimizer's eps swallows the gradients",
    "eps_dominates": "too large an optimizer eps, or tiny gradients",
    "stale_second_moment": "the optimizer's second moment does not fit the gradients: its state was lost or is out of "
    "date, or the batch is unlike all before it",
    "unexplained_change": "the weights were changed behind the optimizer's back: a checkpoint was loaded, or other "
    "code writes them",
    "reduce_mismatch": "gradients are summed over ranks or micro-steps where they should be averaged",
    "skipped_updates": "the loss scale never fits: gradients overflow at any scale",
    "frozen_param": "the optimizer does not update the weights",
    "zero_grad": "the loss is cut off from the model, or the gradients are zeroed before the update",
    "state_lost": "the optimizer's state is gone: it was made anew, cleared, or not loaded",
    "not_zeroed": "zero_grad is skipped, so gradients add up over updates",
    "lost_updates": "the optimizer's updates are too small for 16-bit weights and round to nothing",
    "activation_jump": "what goes into the model changed, or all weights did",
    "level_shift": "something all tensors share changed for good: a scale, a mask, an option",
    "stalled": "a rank, a file system or a worker process that is slow or hung",
}
"""For causes that all tensors share."""

LOCAL = {
    "non_finite": "the forward or the backward pass made it: an overflow, a division by zero, or what came in",
    "grad_spike": "the gradient of this place left its past: a batch that hits it, or a layer becoming unstable",
    "activation_jump": "what this module computes changed at once: its weights, its input, or its code path",
    "drift": "this layer is unstable or decays",
    "update_jump": "the optimizer treats this parameter differently than before: its state or its param group changed",
    "unexplained_change": "something other than the optimizer wrote this weight: corrupted memory, a partial load, "
    "other code",
    "replica_desync": "this rank's copy went its own way: a missed reduction, a device that computes wrongly, or code "
    "that only it runs",
    "frozen_param": "this parameter is not trained: it is in no optimizer, has no learning rate, or its updates "
    "round to zero",
    "zero_grad": "it is unused, fed zeros or cut from the loss",
    "stale_second_moment": "the optimizer's second moment of this parameter is out of date or was lost",
    "rank_outlier": "this rank alone sees something else: its data, or its device",
    "state_lost": "its optimizer state was cleared or not loaded",
    "near_overflow": "a missing normalisation or a growing residual",
    "dead_units": "a bias or input too low",
    "attn_logit": "the query or key weights grew, or their input",
    "attn_entropy": "logits so large that softmax saturates",
    "expert_imbalance": "the router's balance loss or bias is too weak for its logits",
    "grad_underflow": "a layer going silent, or gradients too small",
    "level_shift": "its code path, its input or its weights are different since then",
    "reduce_mismatch": "its gradient is summed, scaled or left out of the reduction",
    "straggler": "a slow host, throttled clocks, or data that is loaded slowly",
    "update_uneven": "its group's learning rate is low, or eps high",
}

SETTINGS = "somebody turned a switch of the model or its optimizer: training mode, what is trained, an option"
LOSS_ONLY = "the data, its labels or a term of the loss changed; the model computes as before"
BATCH = "a stuck or reset data loader"


def explain(lead: Alert, alerts: Sequence[Alert], rule: Rule | None) -> tuple[str, str]:
    """The likely cause, and the next thing to do."""
    advice = rule.next if rule is not None and rule.next else "Look at the place named, in the steps around this one."
    if lead.cause:
        return lead.cause, advice
    if lead.rule == "settings_change":
        return SETTINGS, advice
    if lead.rule == "lr_change":
        return "the learning rate scheduler is set, loaded or stepped wrongly", advice
    if lead.quantity == "scalar" and (lead.target or "").startswith("batch"):
        return BATCH if lead.scope == "batch" else "the sampling ignores the rank", advice
    if lead.quantity == "scalar" and (lead.target or "").startswith("loss"):
        return LOSS_ONLY if lead.scope == "batch" else LOCAL.get(lead.rule, lead.text), advice
    if lead.scope == "batch" and lead.quantity in ("gradient", "update"):
        return "the batch asks for rows of this embedding as none did before: the data, or how it is prepared", advice
    if lead.scope == "batch":
        return "what comes into the model changed: the data, or how it is prepared", advice
    words = GLOBAL if lead.scope == "global" else LOCAL
    return words.get(lead.rule) or (_as_clause(rule.summary) if rule is not None else lead.text), advice


def _as_clause(sentence: str) -> str:
    """A sentence without its capital and its period."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")
