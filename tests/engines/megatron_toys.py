"""A tiny GPT on Megatron-core whose weights hang on their names alone, however it is split; and how it trains.

A case is a word, then what is special about it: `fp32-tp-distopt` is tensor parallelism under a DistributedOptimizer.
"""

import contextlib
import zlib

import megatron_on_cpu
import torch
import torch.distributed as dist

megatron_on_cpu.install()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

moe_utils.te_general_gemm = None  # without TransformerEngine the name is missing

STEPS = 3
LAYERS, WIDTH, VOCABULARY, LENGTH = 4, 12, 16, 6
POSITIONS = 30
"""More than there are tokens, so that the end of a rank's piece of the buffers falls into some parameter."""
MICRO_STEPS = 2
SKIPPED = 1
"""The step that overflows where one is asked to."""


class Case:
    """How one training is split, and in what precision."""

    def __init__(self, name):
        self.name = name
        precision, *self.traits = name.split("-")
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        self.tensor = 2 if "tp" in self.traits else 1
        self.pipeline = 2 if "pp" in self.traits or "vpp" in self.traits else 1
        self.chunks = 2 if "vpp" in self.traits else 1
        self.expert = 2 if "ep" in self.traits else 1

    def __contains__(self, trait):
        return trait in self.traits


def begin(case):
    """The process groups of a case."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        case.tensor,
        case.pipeline,
        virtual_pipeline_model_parallel_size=case.chunks if case.chunks > 1 else None,
        expert_model_parallel_size=case.expert,
    )
    model_parallel_cuda_manual_seed(1)


def config_of(case):
    more = {}
    if "moe" in case:
        more = {"num_moe_experts": 2, "moe_router_topk": 1, "moe_router_pre_softmax": True}
        more |= {"moe_router_load_balancing_type": "none", "add_bias_linear": False}
        more |= {"moe_token_dispatcher_type": "allgather", "moe_ffn_hidden_size": 2 * WIDTH}
    if "recompute" in case:
        more |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if case.chunks > 1:
        more |= {"virtual_pipeline_model_parallel_size": case.chunks}
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=2,
        ffn_hidden_size=2 * WIDTH,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion="fused" in case,
        bf16=case.dtype is torch.bfloat16,
        fp16=case.dtype is torch.float16,
        params_dtype=case.dtype,
        pipeline_dtype=case.dtype,
        tensor_model_parallel_size=case.tensor,
        pipeline_model_parallel_size=case.pipeline,
        expert_model_parallel_size=case.expert,
        batch_p2p_comm=False,
        deallocate_pipeline_outputs="dealloc" in case,
        **more,
    )


def global_names(model):
    """Parameters by the names that they have in the unsplit model."""
    found = {}
    for name, parameter in model.named_parameters():
        segments = name.split(".")
        if name.startswith("decoder.layers."):
            segments[2] = str(model.decoder.layers[int(segments[2])].layer_number - 1)
        if "local_experts" in segments:
            at = segments.index("local_experts") + 1
            held = len(model.decoder.layers[0].mlp.experts.local_experts)
            first = parallel_state.get_expert_model_parallel_rank() * held
            segments[at] = str(int(segments[at]) + first)
        found[".".join(segments)] = parameter
    return found


def initial(name, shape):
    """A parameter's weights before training: the same wherever, and however much of it, is held."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator, device="cpu") * 0.2
    return values + 1 if "layernorm.weight" in name else values


def fill(case, model):
    with torch.no_grad():
        for name, parameter in global_names(model).items():
            if "tied" in case and name == "output_layer.weight":
                name = "embedding.word_embeddings.weight"
            shape, at = list(parameter.shape), getattr(parameter, "partition_dim", -1)
            is_split = case.tensor > 1 and getattr(parameter, "tensor_model_parallel", False)
            if is_split:
                shape[at] *= case.tensor
            whole = initial(name, shape)
            if is_split:
                size = parameter.shape[at]
                whole = whole.narrow(at, parallel_state.get_tensor_model_parallel_rank() * size, size)
            parameter.copy_(whole)


def build(case, config):
    """The chunks of this rank's pipeline stage, wrapped."""
    chunks = []
    for chunk in range(case.chunks):
        stage = {"vp_stage": chunk} if case.chunks > 1 else {}
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, **stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, **stage)
        spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
        model = GPTModel(
            config,
            spec,
            vocab_size=VOCABULARY,
            max_sequence_length=POSITIONS,
            share_embeddings_and_output_weights="tied" in case,
            pre_process=first,
            post_process=last,
            **stage,
        )
        fill(case, model)
        if last:
            model.decoder.final_layernorm.bias.requires_grad_(False)
        if first and "grouped" in case:
            # What all experts of a rank have in one tensor, as grouped matrix products need it.
            model.grouped = torch.nn.Parameter(torch.ones(3, 2, device="cpu"))
            model.grouped.allreduce = False
        if first and "spare" in case:
            model.spare = torch.nn.Parameter(torch.ones(7, dtype=case.dtype, device="cpu"))  # nobody uses it
        options = DistributedDataParallelConfig(
            use_distributed_optimizer="distopt" in case,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce="overlap" in case,
            overlap_param_gather="overlap" in case and "distopt" in case,
            bucket_size=900 if "overlap" in case else None,
        )
        bare = model if case.dtype is torch.float32 else Float16Module(config, model)
        chunks.append(DistributedDataParallel(config, options, bare))
    return chunks


def optimizer_of(case, chunks):
    """As Megatron gives it: a chain, of one member or more."""
    options = OptimizerConfig(
        optimizer="adam",
        lr=0.01,
        adam_eps=1e-3,  # large, so that updates of tiny gradients do not hang on the last bits of a sum over ranks
        bf16=case.dtype is torch.bfloat16,
        fp16=case.dtype is torch.float16,
        params_dtype=case.dtype,
        use_distributed_optimizer="distopt" in case,
        overlap_param_gather="overlap" in case and "distopt" in case,
        clip_grad=0.5,
        loss_scale=1024.0 if "scaled" in case else None,
        initial_loss_scale=2.0**10,
        min_loss_scale=1.0,
        hysteresis=1,
    )
    return get_megatron_optimizer(options, chunks)


def tokens(step, micro_step, rank):
    generator = torch.Generator().manual_seed(10_000 * step + 100 * micro_step + rank)
    return torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator, device="cpu")


def batches(case, step, ranks):
    """The batches of these ranks one after the other, each with a factor of its loss; one that overflows, if asked."""
    factor = float("inf") if "skip" in case and step == SKIPPED else 1.0
    return [(tokens(step, micro_step, rank), factor) for rank in ranks for micro_step in range(MICRO_STEPS)]


def forward(batches, model):
    ids, factor = next(batches)
    positions = torch.arange(LENGTH, device="cpu").expand(2, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, device="cpu").tril() < 0.5
    output = model(ids, positions, mask, labels=ids)

    def loss(losses):
        value = losses.float().mean() * factor
        return value, {"loss": value.detach()}

    return output, loss


def train(case, chunks, optimizer, config, batches_of, stepped=None):
    """Megatron's own loop; `batches_of(step)` are this rank's batches, each with a factor of its loss."""
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    config.no_sync_func = [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    if "overlap" in case:
        config.grad_sync_func = chunks[0].start_grad_sync
        config.param_sync_func = chunks[0].start_param_sync
    losses = []
    for step in range(STEPS):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        of_step = batches_of(step)
        batches = [iter(of_step) for _ in chunks]
        found = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=batches if len(chunks) > 1 else batches[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=len(of_step),
            seq_length=LENGTH,
            micro_batch_size=2,
            forward_only=False,
        )
        losses += [float(value["loss"]) for value in found]
        success, norm, _ = optimizer.step()
        losses.append(float(norm) if success else -1.0)
        if stepped is not None:
            stepped(step, success)
    return losses


def bare(chunk):
    return chunk.module.module if isinstance(chunk.module, Float16Module) else chunk.module


@contextlib.contextmanager
def distributed():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()
