"""What a report says of a mixture of experts, against what its routers chose."""

import numpy as np
import pytest
import torch
import transformers

import made_runs
import vario
from vario.cli import main
from vario.runs.views.tensors.expert_balance import read_expert_balance

SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "pad_token_id": 0}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
EXPERTS, STEPS = 6, 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and the choices of each router at each step."""
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SMALL, num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=8)
    )
    with torch.no_grad():
        model.model.layers[1].mlp.gate.weight[0] = 0.0
        model.model.layers[0].mlp.gate.weight.mul_(20)
    chosen = {name: [] for name, _ in model.named_modules() if name.endswith(".gate")}
    for name, kept in chosen.items():
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, kept=kept: kept.append(
                output[0].detach().double().topk(2).indices if isinstance(output, tuple) else output.topk(2).indices
            )
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    place = tmp_path_factory.mktemp("balance")
    with vario.watch(
        model, optimizer, directory=str(place), name="mixture", quantities=["expert", "router"]
    ) as monitor:
        for step in range(STEPS):
            ids = torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
    return vario.open_run(monitor.path), chosen


def test_max_vio_is_that_of_the_last_steps(trained):
    run, chosen = trained
    found = read_expert_balance(run)
    assert (found.first_step, found.last_step) == (STEPS - 8, STEPS - 1)
    for name, kept in chosen.items():
        counts = [np.bincount(choices.numpy().ravel(), minlength=EXPERTS) for choices in kept[-8:]]
        assert found.max_vio[name] == pytest.approx(np.mean([each.max() / each.mean() - 1 for each in counts]))
        assert (name in found.starved) == all(each.min() == 0 for each in counts)
    assert not found.dropped_share
    assert 0 < found.entropy_share <= 1


def test_the_report_says_it(trained, capsys):
    run, _ = trained
    assert main(["report", str(run.path)]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "experts MaxVio" in printed
    assert "on average over 2 routers" in printed
    assert "% of its maximum (steps" in printed


def test_a_run_without_routers_has_no_balance(tmp_path):
    made_runs.write_run(tmp_path / "run", [made_runs.record(step) for step in range(3)])
    assert read_expert_balance(vario.open_run(tmp_path / "run")) is None
