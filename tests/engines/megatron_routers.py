"""Routers of Megatron-core and DeepSpeed that drop tokens: what vario recorded, and what the routers themselves did.

Run as `megatron_routers.py OUT`; OUT is a file of tensors, with the rows that were recorded.
"""

import sys

import megatron_toys as toys
import torch
from megatron.core.transformer.transformer_config import TransformerConfig

import vario

EXPERTS, TOP_K, CAPACITY = 4, 2, 0.75


def trained(out):
    """One process, one step of two micro-batches: every layer's logits, choices, and how many were kept."""
    case = toys.Case("fp32-moe")
    toys.begin(case)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=toys.WIDTH,
        num_attention_heads=2,
        ffn_hidden_size=2 * toys.WIDTH,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K,
        moe_expert_capacity_factor=CAPACITY,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
        add_bias_linear=False,
        moe_token_dispatcher_type="alltoall",
        moe_ffn_hidden_size=2 * toys.WIDTH,
        batch_p2p_comm=False,
    )
    chunks = toys.build(case, config)
    optimizer = toys.optimizer_of(case, chunks)
    kept = []
    for name, module in chunks[0].named_modules():
        if type(module).__name__ == "TopKRouter":
            module.register_forward_hook(
                lambda module, args, output, name=name: kept.append(
                    (
                        f"0.{name.removeprefix('module.')}",
                        args[0].detach().clone(),
                        module.weight.detach().clone(),
                        output[1].clone(),
                    )
                )
            )
    options = {"quantities": ["expert", "router"], "every": 1, "sinks": ["in_memory"], "strict": True}
    with vario.watch(chunks, optimizer, each=["expert"], **options) as monitor:
        toys.train(case, chunks, optimizer, config, lambda step: toys.batches(case, step, [0]))
        records = monitor.sinks["in_memory"].records
    rows = {
        (record.step, frame.micro_step, target): row
        for record in records
        for frame in record.frames
        for target, row in zip(frame.targets, frame.summaries.tolist(), strict=True)
    }
    torch.save({"rows": rows, "kept": kept}, out)


with toys.distributed():
    trained(sys.argv[1])
