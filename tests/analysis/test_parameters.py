"""Counting parameters: shared, frozen, sharded, packed, absent."""

import copy
import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from models import Language, Partial, Perceptron
from releases import needs_fsdp2, needs_torchao
from starting import Process, run_warm
from thorough import cases
from vario.analysis.parameters import (
    StateBytes,
    count_parameters,
    format_param_count,
    get_parameter_breakdown,
    state_bytes,
)
from vario.core.errors import ConfigError, ModelError

TORCHAO = Path(__file__).parents[2] / ".peers" / "torchao"


def breakdown(model):
    return {entry["name"]: entry for entry in get_parameter_breakdown(model)}


def test_every_parameter_is_counted_and_listed_in_model_order():
    model = Perceptron()
    assert count_parameters(model) == 4 * 8 + 8 + 8 * 3 + 3 == 67
    entries = get_parameter_breakdown(model)
    assert [entry["name"] for entry in entries] == ["up.weight", "up.bias", "down.weight", "down.bias"]
    assert entries[0] == {
        "name": "up.weight",
        "params": 32,
        "dtype": "float32",
        "shape": (8, 4),
        "trainable": True,
        "device": "cpu",
        "share": 32 / 67,
    }
    assert sum(entry["share"] for entry in entries) == pytest.approx(1)


def test_frozen_parameters_are_told_apart():
    model = Partial()
    assert count_parameters(model) == 20 + 15 + 15
    assert count_parameters(model, trainable_only=True) == 30
    assert [name for name, entry in breakdown(model).items() if not entry["trainable"]] == [
        "frozen.weight",
        "frozen.bias",
    ]


def test_tied_weights_count_once():
    tied, untied = Language(tied=True), Language(tied=False)
    assert count_parameters(untied) - count_parameters(tied) == 16 * 8
    assert "head.weight" not in breakdown(tied)
    # Two Parameter objects over the same memory are tied as well.
    other = Language(tied=False)
    other.head.weight = nn.Parameter(other.embed.weight.detach())
    assert count_parameters(other) == count_parameters(tied)


def test_a_model_on_the_meta_device_counts_as_the_real_one():
    with torch.device("meta"):
        model = Language(tied=True)
        two_alike = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    assert count_parameters(model) == count_parameters(Language(tied=True))
    assert count_parameters(two_alike) == 40, "no address tells meta tensors apart"
    assert {entry["device"] for entry in get_parameter_breakdown(model)} == {"meta"}
    assert state_bytes(model, "fp32") == state_bytes(Language(tied=True), "fp32")


def test_wrappers_change_no_name_and_no_number():
    model = Perceptron()
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        assert count_parameters(wrapped) == 67
        assert list(breakdown(wrapped)) == list(breakdown(model))


def test_an_embedding_heavy_model_shows_where_its_parameters_are():
    model = nn.Sequential(nn.Embedding(10_000, 8), nn.Linear(8, 2))
    assert breakdown(model)["0.weight"]["share"] == pytest.approx(80_000 / 80_018)


def test_lora_adapters_are_all_that_trains():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(Language(), LoraConfig(r=2, target_modules=["up", "down"]))
    base = count_parameters(Language())
    adapters = 2 * 2 * (2 * 8 + 2 * 16)  # two layers, up and down, r x in + out x r
    assert count_parameters(model) == base + adapters
    assert count_parameters(model, trainable_only=True) == adapters
    state = state_bytes(model, "fp16")
    assert state == StateBytes(parameters=2 * (base + adapters), gradients=2 * adapters, optimizer=4 * adapters)


def test_four_bits_per_weight_count_as_the_weights_they_stand_for():
    import bitsandbytes as bnb

    model = nn.Sequential(bnb.nn.Linear4bit(64, 32, quant_type="nf4"))
    assert count_parameters(model) == 64 * 32 + 32, "not packed yet"
    model.to("cpu")  # packs it
    assert model[0].weight.numel() == 64 * 32 // 2
    entry = breakdown(model)["0.weight"]
    assert (entry["params"], entry["shape"], entry["dtype"], entry["trainable"]) == (64 * 32, (32, 64), "nf4", False)
    quantization = model[0].weight.quant_state
    nested = quantization.state2  # the scales have scales
    scales = [quantization.absmax, quantization.code, quantization.offset, nested.absmax, nested.code]
    num_scale_bytes = sum(tensor.nbytes for tensor in scales)
    for precision, bias in (("fp16", 2 * 32), ("fp32", 4 * 32)):
        state = state_bytes(model, precision)
        assert state.parameters == 64 * 32 // 2 + num_scale_bytes + bias, precision
        assert (state.gradients, state.optimizer) == (bias, 2 * bias)


def test_eight_bits_per_weight_keep_their_size():
    import bitsandbytes as bnb

    model = nn.Sequential(bnb.nn.Linear8bitLt(64, 32, bias=False, has_fp16_weights=False)).to("cpu")
    assert breakdown(model)["0.weight"]["dtype"] == "int8"
    assert count_parameters(model) == 64 * 32
    assert state_bytes(model, "fp32") == StateBytes(64 * 32 + 4 * 32, 0, 0)


@needs_torchao
def test_weights_that_torchao_quantized_count_in_full_and_keep_their_packed_size():
    # In a process of its own: where torchao is to be found, transformers imports it and warns.
    if not TORCHAO.is_dir():
        pytest.fail(f"torchao is not there ({TORCHAO}): run `make peers`")
    script = Path(__file__).with_name("torchao_weights.py")
    environment = {**os.environ, "PYTHONPATH": str(TORCHAO)}
    ran = run_warm([script], env=environment)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["params"], found["shape"], found["dtype"]) == (64 * 32, [32, 64], "int8")
    assert found["packed_bytes"] < 64 * 32 * 2
    assert found["state_bytes"] == found["packed_bytes"] + 2 * 32
    assert "its weights are quantized ('0.weight')" in found["prediction"]


def test_parameters_that_zero_3_partitioned_count_in_full():
    # As DeepSpeed's zero.Init leaves them: an empty tensor, its true form beside it, and this rank's part.
    model = Perceptron()
    for parameter in model.parameters():
        parameter.ds_shape, parameter.ds_numel = parameter.shape, parameter.numel()
        parameter.ds_tensor = torch.zeros(math.ceil(parameter.numel() / 2))
        parameter.data = torch.empty(0)
    assert count_parameters(model) == 67
    assert breakdown(model)["up.weight"]["shape"] == (8, 4)
    assert state_bytes(model, "fp32").parameters == 4 * (16 + 4 + 12 + 2)


SHARDED = """
import sys, torch, vario
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from vario.analysis.health import check_gradient_health
from vario.analysis.parameters import count_parameters, get_parameter_breakdown, state_bytes
rank, world, port = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
entry = get_parameter_breakdown(model)[0]
print(count_parameters(model), entry["params"], entry["shape"], state_bytes(model, "fp32").parameters)
model(torch.ones(2, 4)).sum().backward()
stats = check_gradient_health(model)["stats"]
print(stats["num_with_gradient"], stats["missing"], stats["norm"] > 0)
vario.print_model_info(model)
dist.destroy_process_group()
"""


@needs_fsdp2
@pytest.mark.parametrize("world", cases([1, 2], [2]))
def test_a_sharded_model_counts_in_full_and_weighs_what_this_rank_holds(world):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        Process(["-W", "error", "-c", SHARDED, str(rank), str(world), str(port)], stdout=subprocess.PIPE)
        for rank in range(world)
    ]
    for rank in ranks:
        said = rank.communicate()[0].splitlines()
        # Before torch 2.9 gloo says here that it is connected.
        counted, gradients, *printed = (line for line in said if not line.startswith("[Gloo]"))
        assert rank.returncode == 0
        assert counted == f"76 32 (8, 4) {76 * 4 // world}"
        assert gradients == "4 [] True"
        assert any(line.startswith("Memory on this rank") for line in printed) == (world > 1)


def test_state_follows_the_precision():
    model = Partial()
    for parameter in (model.used.weight, model.used.bias):
        parameter.data = parameter.data.to(torch.float64)
    assert state_bytes(model, "fp32") == StateBytes(parameters=200, gradients=120, optimizer=240)
    assert state_bytes(model, "bf16") == state_bytes(model, "fp16") == StateBytes(100, 60, 120)
    assert state_bytes(model, "bf16-mixed") == state_bytes(model, "fp16-mixed") == state_bytes(model, "fp32")
    assert state_bytes(model, "fp16").total == 280
    with pytest.raises(ConfigError, match=r"precision: unknown 'fp61'. Did you mean 'fp16'\?"):
        state_bytes(model, "fp61")


def test_whole_numbers_keep_their_size():
    model = nn.Module()
    model.table = nn.Parameter(torch.zeros(10, dtype=torch.int8), requires_grad=False)
    assert state_bytes(model, "fp32") == StateBytes(10, 0, 0)


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ModelError, match=r"expected a torch.nn.Module, got str"):
        count_parameters("gpt2")
    with pytest.raises(ModelError, match=r"'0.weight' of Sequential has no shape yet. Run the model once"):
        count_parameters(nn.Sequential(nn.LazyLinear(3)))
    assert count_parameters(nn.ReLU()) == 0
    assert get_parameter_breakdown(nn.ReLU()) == []


def test_counting_leaves_the_model_alone():
    model = Partial()
    before = copy.deepcopy(model.state_dict())
    get_parameter_breakdown(model)
    state_bytes(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1_500_000_000, "1.50B"),
        (7_000_000, "7.00M"),
        (3_000, "3.00K"),
        (999, "999"),
        (0, "0"),
        (999_999, "1.00M"),
        (999_994_999, "999.99M"),
        (999_995_001, "1.00B"),
        (1_000, "1.00K"),
        (1_500_000_000_000, "1.50T"),
    ],
)
def test_a_number_of_parameters_in_short(count, text):
    assert format_param_count(count) == text
