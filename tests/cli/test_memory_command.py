"""`vario memory`, as a user types it."""

import json
import subprocess
import sys

import pytest

from vario.cli import main

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}

BUILDERS = """
import torch

def build(batch, seq):
    model = torch.nn.Sequential(torch.nn.Linear(128, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 10))
    return model, (torch.empty(batch, 128),)

def with_a_loss(batch_size):
    model = torch.nn.Linear(16, 16)
    return model, {"input": torch.empty(batch_size, 16)}, lambda outputs, batch: outputs.square().mean()

def branching():
    class Picks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
        def forward(self, x):
            return self.inner(x).repeat_interleave(x[:, 0].long(), dim=0)
    return Picks(), (torch.empty(4, 4),)

def failing():
    raise RuntimeError("no such size")

def forgotten():
    return 3

def with_a_number_as_loss():
    return torch.nn.Linear(4, 4), (torch.empty(2, 4),), 3

def of_other_shapes():
    return torch.nn.Linear(4, 4), (torch.empty(2, 5),)

def with_one_tensor(batch):
    return torch.nn.Linear(16, 16), torch.empty(batch, 16)

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    (tmp_path / "torn.json").write_text('{"model_type": "lla')
    (tmp_path / "unknown.json").write_text('{"model_type": "lllama"}')
    gpt = {"model_type": "gpt2", "n_positions": 128, "n_embd": 64, "n_layer": 1, "n_head": 2}
    for name, changes in {
        "gpt.json": gpt | {"architectures": ["GPT2LMHeadModel"]},
        "typo.json": gpt | {"architectures": ["GPT2LMHaedModel"]},
        "no_model.json": gpt | {"architectures": ["GPT2Config"]},
        "odd.json": LLAMA | {"num_attention_heads": 5},
        "quantized.json": LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "flash.json": LLAMA | {"_attn_implementation": "flash_attention_2"},
    }.items():
        (tmp_path / name).write_text(json.dumps(changes))
    (tmp_path / "memory_builders.py").write_text(BUILDERS)
    (tmp_path / "memory_torn.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("memory_builders", None)


def predicted(capsys, *words):
    assert main(["memory", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_config_of_transformers_is_enough(folder, capsys):
    found = predicted(capsys, "--model", "config.json", "--batch", "4", "--seq", "64", "--optimizer", "adamw_fused")
    parameters = 1000 * 64 * 2 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3 + 2 * 64) + 64
    assert found["kind_peaks"]["gradients"] == parameters * 2
    assert sum(found["kinds"].values()) == found["peak_bytes"]
    assert found["total_bytes"] > found["reserved_bytes"] >= found["peak_bytes"]
    assert predicted(capsys, "--model", ".", "--batch", "4", "--seq", "64", "--optimizer", "adamw_fused") == found


def test_options_change_what_they_say(folder, capsys):
    plain = predicted(capsys, "--model", "config.json", "--batch", "8", "--seq", "256")
    less = predicted(capsys, "--model", "config.json", "--batch", "8", "--seq", "256", "--checkpointing")
    mixed = predicted(capsys, "--model", "config.json", "--batch", "8", "--seq", "256", "--precision", "bf16-mixed")
    shared = predicted(capsys, "--model", "config.json", "--batch", "8", "--gpus", "4", "--strategy", "fsdp")
    assert less["kind_peaks"]["activations"] < plain["kind_peaks"]["activations"]
    assert mixed["kind_peaks"]["weights"] > 1.9 * plain["kind_peaks"]["weights"]
    assert shared["kind_peaks"]["weights"] < plain["kind_peaks"]["weights"] / 3
    assert shared["notes"]


def test_a_function_builds_whatever_there_is(folder, capsys):
    found = predicted(capsys, "--model", "memory_builders:build", "--batch", "32", "--precision", "fp32")
    assert found["kind_peaks"]["weights"] == (128 * 4096 + 4096 + 4096 * 10 + 10) * 4
    assert predicted(capsys, "--model", "memory_builders:with_a_loss", "--batch", "2")["phase"]


def test_the_largest_batch_is_searched(folder, capsys):
    words = ("--model", "memory_builders:build", "--budget", "700MiB", "--gpu", "a100", "--max-batch")
    most = predicted(capsys, *words)["max_batch_size"]
    assert most > 10
    at_most = predicted(capsys, "--model", "memory_builders:build", "--gpu", "a100", "--batch", str(most))
    beyond = predicted(capsys, "--model", "memory_builders:build", "--gpu", "a100", "--batch", str(most + 1))
    assert at_most["total_bytes"] <= 700 << 20 < beyond["total_bytes"]


def test_the_text_says_peak_place_kinds_and_verdict(folder, capsys):
    assert main(["memory", "--model", "config.json", "--batch", "2", "--seq", "64", "--max-batch"]) == 0
    printed = capsys.readouterr().out
    for part in ("LlamaForCausalLM, batch 2", "allocated", "reserved", "by phase", "fits", "h100", "activations"):
        assert part in printed
    assert "largest batch" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model nothing.json", "no config 'nothing.json'"),
        ("--model torn.json", "torn.json cannot be read as JSON"),
        ("--model tokenizer.json", "it has no 'model_type'"),
        ("--model unknown.json", "has no model_type 'lllama'. Did you mean 'llama'?"),
        ("--model no_such_module:build", "No module named 'no_such_module'"),
        ("--model memory_builders:biuld", "has no function 'biuld'. Did you mean 'build'?"),
        ("--model memory_builders:number", "has no function 'number'"),
        ("--model memory_builders:branching", "Picks cannot be simulated"),
        ("--model memory_builders.py", "Give a config.json of transformers"),
        ("--model config.json --optimizer adamm", "optimizer: unknown 'adamm'. Did you mean 'adam'?"),
        ("--model config.json --gpu h300", "unknown 'h300'"),
        ("--model config.json --budget plenty", "budget: 'plenty' is neither a size"),
        ("--model config.json --accumulation 0", "accumulation: expected a whole number above 0, got 0"),
        ("--model gpt.json --seq 129", "sequence_length: GPT2LMHeadModel has 128 positions, got 129"),
        ("--model typo.json", "has no architecture 'GPT2LMHaedModel'. Did you mean 'GPT2LMHeadModel'?"),
        ("--model no_model.json", "has no architecture 'GPT2Config'"),
        ("--model odd.json", "cannot build what odd.json describes"),
        ("--model memory_builders.py:build", "Write it as in an import statement: `memory_builders:build`"),
        ("--model memory_torn:build", "importing 'memory_torn' raised SyntaxError"),
        ("--model memory_builders:failing", "failing() raised RuntimeError: no such size in memory_builders.py, line"),
        ("--model memory_builders:forgotten", "forgotten() returned a int. Expected a torch.nn.Module"),
        ("--model memory_builders:with_a_number_as_loss", "the loss that with_a_number_as_loss() returned is a int"),
        ("--model memory_builders:of_other_shapes", "its forward pass raised RuntimeError"),
        ("--model config.json --batch 0", "batch_size: expected a whole number above 0, got 0"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_code_2(folder, capsys, words, message):
    assert main(["memory", *words.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_its_help_imports_no_torch():
    code = "import sys; from vario.cli import main\ntry: main(['memory', '--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_configuration_asks_for_and_does_not_get_is_noted(folder, capsys):
    plain = predicted(capsys, "--model", "config.json", "--seq", "64")
    quantized = predicted(capsys, "--model", "quantized.json", "--seq", "64")
    assert quantized["peak_bytes"] == plain["peak_bytes"]
    assert plain["notes"] == []
    assert "without quantization" in quantized["notes"][0]
    assert predicted(capsys, "--model", "flash.json", "--seq", "64") == plain


def test_a_builder_may_give_one_tensor_as_the_batch(folder, capsys):
    words = ("--model", "memory_builders:with_one_tensor", "--batch")
    assert predicted(capsys, *words, "4096")["peak_bytes"] > predicted(capsys, *words, "4")["peak_bytes"]


def test_a_search_that_ends_at_its_limit_says_so(folder, capsys):
    assert main(["memory", "--model", "memory_builders:with_one_tensor", "--max-batch"]) == 0
    assert "65536 or more in h100" in capsys.readouterr().out
