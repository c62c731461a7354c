"""Pictures of each expert and each head, in a real browser, against the numbers of the run."""

import re

import numpy as np
import pytest
import torch
import transformers
from playwright.sync_api import expect

import vario

pytestmark = pytest.mark.slow

SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
STEPS = 5


@pytest.fixture
def run(tmp_path):
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, num_local_experts=6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"quantities": ["expert", "attention"], "each": ["expert", "attention"], "every": 1}
    with vario.watch(model, optimizer, directory=str(tmp_path), name="mixture", **options) as monitor:
        for step in range(STEPS):
            ids = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
    return vario.open_run(monitor.path)


def shown(picture):
    """{(module, part): number} of all cells."""
    labels = [cell.get_attribute("aria-label") for cell in picture.get_by_role("table").get_by_role("button").all()]
    found = [re.fullmatch(r"(\S+), (?:expert|head) (\d+): (\S+)", label) for label in labels]
    return {(each[1], int(each[2])): float(each[3]) for each in found}


def recorded(run, quantity, what, step):
    values = {}
    for target in run.targets(quantity):
        module, _, part = target.partition(f":{what}.")
        if part:
            series = run.series(target, quantity, "mean")
            values[module, int(part)] = series.values[list(series.steps).index(step)]
    return values


def check(picture, run, quantity, what, step, number):
    expected = recorded(run, quantity, what, step)
    assert len(expected) == number
    found = shown(picture)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=5e-3, abs=1e-6)


def test_the_model_screen_shows_each_expert_and_each_head_at_any_step(run, visit_below):
    page = visit_below("?run=mixture&screen=model")
    experts = page.get_by_role("region", name="Experts")
    expect(experts.get_by_role("heading")).to_contain_text(f"step {STEPS - 1}")
    check(experts, run, "expert", "load", STEPS - 1, 2 * 6)
    experts.get_by_role("slider").fill("1")
    expect(experts.get_by_role("heading")).to_contain_text("step 1")
    check(experts, run, "expert", "load", 1, 2 * 6)
    heads = page.get_by_role("region", name="Attention heads")
    check(heads, run, "attention", "head_entropy", STEPS - 1, 2 * 4)
    heads.get_by_role("button", name="Largest logit").click()
    expect(heads.get_by_role("table")).to_have_attribute("aria-label", "Attention heads: largest logit")
    check(heads, run, "attention", "max_logit", STEPS - 1, 2 * 4)
    heads.get_by_role("table").get_by_role("button").first.click()
    page.wait_for_url(re.compile("max_logit.0"))
    assert np.isfinite(run.series("model.layers.0.self_attn:max_logit.0", "attention", "mean").values).all()
