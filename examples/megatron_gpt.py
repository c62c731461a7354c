"""Watch Megatron-core's GPT on two GPUs, with a distributed optimizer and two micro-batches per step.

torchrun --standalone --nproc-per-node 2 examples/megatron_gpt.py && vario report
"""

import os
from collections.abc import Callable, Iterator

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

import vario

LENGTH, BATCH, BF16 = 16, 4, torch.bfloat16


def forward_step(batches: Iterator[torch.Tensor], model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., object]]:
    ids = next(batches)
    positions = torch.arange(LENGTH, device=ids.device).expand(BATCH, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, device=ids.device).tril() < 0.5
    return model(ids, positions, mask, labels=ids), lambda output: (output.float().mean(), {"loss": output.mean()})


def main() -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group()
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(num_layers=2, hidden_size=32, num_attention_heads=4, bf16=True, params_dtype=BF16)
    config.gradient_accumulation_fusion, config.finalize_model_grads_func = False, finalize_model_grads
    gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=LENGTH).cuda()
    buffers = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, buffers, Float16Module(config, gpt))
    options = OptimizerConfig(lr=0.01, bf16=True, params_dtype=BF16, use_distributed_optimizer=True, clip_grad=1.0)
    optimizer = get_megatron_optimizer(options, [model])
    run_step, shape = get_forward_backward_func(), {"seq_length": LENGTH, "micro_batch_size": BATCH}
    torch.manual_seed(torch.distributed.get_rank())
    with vario.watch(model, optimizer, every=1) as monitor:
        for _ in range(20):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            batches = iter(torch.randint(0, 64, (2, BATCH, LENGTH), device="cuda"))
            step = {"forward_step_func": forward_step, "data_iterator": batches, "model": model, "num_microbatches": 2}
            losses = run_step(**step, **shape, forward_only=False)
            optimizer.step()
            monitor.log(loss=losses[-1]["loss"])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
