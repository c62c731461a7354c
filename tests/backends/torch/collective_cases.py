"""Run by torchrun on two ranks: each case is a step of its own, and says by itself what was there to be seen."""

import gc
import json
import logging
import os
import sys
import warnings
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

import vario
from models import Language, Perceptron, batch, ids, language_loss
from releases import NO_FSDP2, runs_here
from watching import rows, summary

warnings.filterwarnings("ignore", category=FutureWarning)  # what torch 2.13 calls by other names
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()
OTHER = 1 - RANK
WORLD = dist.group.WORLD
FOLDER = Path(sys.argv[1])
ENGINES = Path(__file__).parents[3] / ".peers" / "engines"
OPERATORS = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(("c10d::", "_c10d_functional"))]
WAIT = vars(dist.Work)["wait"]


def own(rank, size=6, seed=0):
    """What a rank contributes: known to all."""
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * seed + rank))


def mine(*args):
    return own(RANK, *args)


def total(*args):
    return own(0, *args) + own(1, *args)


# Each case does something and returns {"operation:side": [tensors it consists of]}.


def all_reduce():
    x = mine()
    dist.all_reduce(x)
    x.zero_()
    return {"all_reduce:input": [mine()], "all_reduce:output": [total()]}


def all_reduce_of_the_largest():
    x = mine()
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return {"all_reduce:input": [mine()], "all_reduce:output": [torch.maximum(own(0), own(1))]}


def reduce_scatter_tensor():
    x = torch.full((3,), float("nan"))
    dist.reduce_scatter_tensor(x, mine())
    x.zero_()
    return {"reduce_scatter_tensor:input": [mine()], "reduce_scatter_tensor:output": [total().chunk(2)[RANK]]}


def reduce_scatter():
    x = torch.full((6,), float("nan"))
    dist.reduce_scatter(x, [mine(6, 1), mine(6, 2)])
    return {"reduce_scatter:input": [mine(6, 1), mine(6, 2)], "reduce_scatter:output": [total(6, 1 + RANK)]}


def all_gather():
    parts = [torch.full((6,), float("nan")) for _ in range(2)]
    dist.all_gather(parts, mine())
    return {"all_gather:input": [mine()], "all_gather:output": [own(0), own(1)]}


def all_gather_into_tensor():
    x = torch.full((12,), float("nan"))
    dist.all_gather_into_tensor(x, mine())
    return {"all_gather_into_tensor:input": [mine()], "all_gather_into_tensor:output": [own(0), own(1)]}


def broadcast():
    x = mine() if RANK == 1 else torch.full((6,), float("nan"))
    dist.broadcast(x, 1)
    x.zero_()
    return {"broadcast:output": [own(1)], **({"broadcast:input": [own(1)]} if RANK == 1 else {})}


def reduce():
    x = mine()
    dist.reduce(x, 1)
    return {"reduce:input": [mine()], **({"reduce:output": [total()]} if RANK == 1 else {})}


def gather():
    parts = [torch.empty(6) for _ in range(2)] if RANK == 0 else None
    dist.gather(mine(), parts)
    return {"gather:input": [mine()], **({"gather:output": [own(0), own(1)]} if RANK == 0 else {})}


def scatter():
    x = torch.full((6,), float("nan"))
    dist.scatter(x, [own(0), own(1)] if RANK == 0 else None)
    return {"scatter:output": [mine()], **({"scatter:input": [own(0), own(1)]} if RANK == 0 else {})}


def all_to_all_single():
    x = torch.full((6,), float("nan"))
    dist.all_to_all_single(x, mine())
    came = [own(rank).chunk(2)[RANK] for rank in (0, 1)]
    return {"all_to_all_single:input": [mine()], "all_to_all_single:output": came}


def send_and_recv():
    if RANK == 0:
        dist.send(mine(), 1)
        return {"send:input": [own(0)]}
    x = torch.full((6,), float("nan"))
    dist.recv(x, 0)
    x.zero_()
    return {"recv:output": [own(0)]}


def recv_from_anybody():
    if RANK == 0:
        dist.send(mine(), 1)
        return {"send:input": [own(0)]}
    x = torch.full((6,), float("nan"))
    dist.recv(x)
    return {"recv:output": [own(0)]}


def isend_and_irecv():
    x = torch.full((6,), float("nan"))
    received, sent = dist.irecv(x, OTHER), dist.isend(mine(), OTHER)
    received.wait()
    x.zero_()
    sent.wait()
    return {"send:input": [mine()], "recv:output": [own(OTHER)]}


def batch_isend_irecv():
    x = torch.full((6,), float("nan"))
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine(), OTHER), dist.P2POp(dist.irecv, x, OTHER)])
    for work in works:
        work.wait()
    return {"send:input": [mine()], "recv:output": [own(OTHER)]}


def async_results_are_overwritten_right_after_the_wait():
    for seed in range(50):
        x = mine(5000, seed)
        dist.all_reduce(x, async_op=True).wait()
        x.fill_(seed)
    seeds = range(50)
    return {
        "all_reduce:input": [mine(5000, seed) for seed in seeds],
        "all_reduce:output": [total(5000, seed) for seed in seeds],
    }


def async_without_a_future():
    for seed in range(20):
        x = torch.full((3,), float("nan"))
        dist.reduce_scatter_tensor(x, mine(6, seed), async_op=True).wait()
        x.fill_(float("inf"))
    shares = [total(6, seed).chunk(2)[RANK] for seed in range(20)]
    return {
        "reduce_scatter_tensor:input": [mine(6, seed) for seed in range(20)],
        "reduce_scatter_tensor:output": shares,
    }


def a_future_with_a_callback_that_overwrites():
    x, store, key = mine(), dist.distributed_c10d._get_default_store(), "the callback was added"
    if RANK == 1:
        store.wait([key])
        dist.all_reduce(x)
    else:
        # Added to a result that has come already, a callback runs at once, in this thread: rank 1 is late on purpose.
        done = dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0].zero_())
        store.set(key, "")
        done.wait()
        assert not x.any()
    return {"all_reduce:input": [mine()], "all_reduce:output": [total()]}


def coalesced():
    x, y = mine(6, 1), mine(4, 2)
    with dist._coalescing_manager(group=WORLD, async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_reduce(y)
    manager.wait()
    return {
        "all_reduce_coalesced:input": [mine(6, 1), mine(4, 2)],
        "all_reduce_coalesced:output": [total(6, 1), total(4, 2)],
    }


def coalesced_reduce_scatter():
    x, y = torch.empty(3), torch.empty(2)
    with dist._coalescing_manager(group=WORLD, async_ops=True) as manager:
        dist.reduce_scatter_tensor(x, mine(6, 1))
        dist.reduce_scatter_tensor(y, mine(4, 2))
    manager.wait()
    return {
        "reduce_scatter_tensor_coalesced:input": [mine(6, 1), mine(4, 2)],
        "reduce_scatter_tensor_coalesced:output": [total(6, 1).chunk(2)[RANK], total(4, 2).chunk(2)[RANK]],
    }


def functional_all_reduce():
    functional.wait_tensor(functional.all_reduce(mine(), "sum", WORLD)).zero_()
    return {"all_reduce:input": [mine()], "all_reduce:output": [total()]}


def functional_reduce_scatter():
    functional.wait_tensor(functional.reduce_scatter_tensor(mine(), "sum", 0, WORLD)).zero_()
    share = total().chunk(2)[RANK]
    return {
        "reduce_scatter_tensor_coalesced:input": [mine()],
        "reduce_scatter_tensor_coalesced:output": [share],
    }


def a_compiled_graph():
    def reduced(x):
        return functional.reduce_scatter_tensor(functional.all_reduce(2 * x, "sum", WORLD), "sum", 0, WORLD) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(reduced, backend="aot_eager")(mine())
    return {
        "all_reduce:input": [2 * mine()],
        "all_reduce:output": [2 * total()],
        "reduce_scatter_tensor_coalesced:input": [2 * total()],
        "reduce_scatter_tensor_coalesced:output": [4 * total().chunk(2)[RANK]],
    }


def objects():
    answers = [None, None]
    dist.all_gather_object(answers, {"rank": RANK})
    return {}


def barrier():
    dist.barrier()
    return {"barrier:seconds": []}


def reduced_gradients(model, loss, seeds):
    """Of both ranks together, by a model that is not wrapped."""
    gradients = []
    for seed in seeds:
        model.zero_grad()
        loss(model, seed).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    return [sum(parts) / len(seeds) for parts in zip(*gradients, strict=True)]


def ddp_whose_gradients_are_overwritten_right_after_backward():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    expected = reduced_gradients(model, lambda model, seed: model(batch(seed)).square().mean(), [0, 1])
    model.zero_grad()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped(batch(RANK)).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad.fill_(float("nan"))
    return {"all_reduce:output": expected}


def ddp_with_a_comm_hook():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    expected = reduced_gradients(model, lambda model, seed: model(batch(seed)).square().mean(), [0, 1])
    model.zero_grad()
    wrapped = DistributedDataParallel(model)

    def hook(_, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        # Not in place: a `then` that is added after the result came may run before vario has read it.
        return future.then(lambda done: done.value()[0].div(2))

    wrapped.register_comm_hook(None, hook)
    wrapped(batch(RANK)).square().mean().backward()
    return {"all_reduce:output": [2 * gradient for gradient in expected]}


def fsdp2():
    torch.manual_seed(0)
    model = Language(tied=False)
    expected = reduced_gradients(model, lambda model, seed: language_loss(model, ids(seed)), [0, 1])
    norm = torch.cat([gradient.flatten() for gradient in expected]).double().norm()
    model.zero_grad()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    language_loss(model, ids(RANK)).backward()
    shards = [parameter.grad.to_local() for parameter in model.parameters()]
    whole = torch.stack([shard.double().square().sum() for shard in shards]).sum()
    dist.all_reduce(whole)
    assert torch.allclose(whole.sqrt(), norm, rtol=1e-5)
    return {"reduce_scatter_tensor:output": shards}


def fsdp1():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    expected = reduced_gradients(model, lambda model, seed: model(batch(seed)).square().mean(), [0, 1])
    model.zero_grad()
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    wrapped(batch(RANK)).square().mean().backward()
    # 67 elements, and one of padding.
    flat = torch.cat([*(gradient.flatten() for gradient in expected), torch.zeros(1)])
    return {"reduce_scatter_tensor:output": [flat.chunk(2)[RANK]]}


def dtensor():
    mesh = dist.init_device_mesh("cpu", (2,))
    partial = DTensor.from_local(mine(), mesh, [Partial()])
    partial.full_tensor().zero_()
    return {"all_reduce:input": [mine()], "all_reduce:output": [total()]}


def deepspeed_zero():
    """What is gathered after the update are the new weights."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    sys.path.append(str(ENGINES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its build takes minutes and serves inference
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    expected = reduced_gradients(model, lambda model, seed: model(batch(seed)).square().mean(), [0, 1])
    with torch.no_grad():
        updated = [p - 0.1 * gradient for p, gradient in zip(model.parameters(), expected, strict=True)]
    model.zero_grad()
    config = {
        "train_micro_batch_size_per_gpu": 6,
        "zero_optimization": {"stage": 2},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        engine.backward(engine(batch(RANK)).square().mean())
        engine.step()
    # Two ranks share 67 elements: one is padding.
    return {"all_gather_into_tensor:output": [*updated, torch.zeros(1)]}


def two_dtypes_and_two_groups_at_one_place():
    for x, group in ((mine(), WORLD), (mine().double(), WORLD), (mine(), SECOND), (mine(3), WORLD)):
        dist.all_reduce(x, group=group)
    return {
        "all_reduce:output": [total(), total(3)],
        "all_reduce#2:output": [total().double()],
        "all_reduce#3:output": [total()],
    }


def a_collective_that_fails():
    said["failures"] = []
    for is_async in (False, True):
        try:
            work = dist.all_reduce(mine(), dist.ReduceOp.BAND, async_op=is_async)
            said["failures"].append("not at the call")
            work.wait()
        except RuntimeError as error:
            said["failures"].append(str(error).partition("\n")[0])
    return {"all_reduce:input": [mine(), mine()], "all_reduce:output": None, "all_reduce:seconds": None}


def handles_that_nobody_waits_for():
    """A future brings its result by itself; of the others nothing is kept, neither result nor memory."""
    dist.all_reduce(mine(), async_op=True)
    if RANK == 0:
        tensors = [torch.full((4,), float(number)) for number in range(30)]
        works = [dist.isend(tensor, 1) for tensor in tensors]
    else:
        works, tensors = [], [torch.empty(4) for _ in range(30)]
        for tensor in tensors:
            dist.recv(tensor, 0)
    dist.barrier()
    kept = [weakref.ref(tensor) for tensor in tensors]
    tensor = None  # the loop's
    tensors.clear()
    works.clear()
    dist.isend(mine(), 1).wait() if RANK == 0 else dist.recv(torch.empty(6), 0)
    gc.collect()
    said["still alive"] = sum(reference() is not None for reference in kept)
    return {"all_reduce:input": [mine()], "all_reduce:output": [total()]}


def a_result_that_comes_in_the_next_step():
    global pending
    x = torch.full((6,), float("nan"))
    pending = dist.irecv(x, OTHER), x
    dist.isend(mine(), OTHER).wait()
    return {"send:input": [mine()], "recv:output": [own(OTHER)]}


def the_next_step():
    pending[0].wait()
    return {"recv:output": None}


def train_with(quantities):
    torch.manual_seed(0)
    model = DistributedDataParallel(Perceptron(dropout=0.25))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    watching = vario.watch(model, optimizer, quantities=quantities, every=1, sinks=["in_memory"], strict=True)
    with watching as monitor:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch(10 * step + RANK)).square().mean()
            loss.backward()
            optimizer.step()
            shown = loss.detach().clone()
            dist.all_reduce(shown)  # after the update, and of the same step
            monitor.log(loss=shown)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), monitor


CASES = [
    all_reduce,
    all_reduce_of_the_largest,
    reduce_scatter_tensor,
    reduce_scatter,
    all_gather,
    all_gather_into_tensor,
    broadcast,
    reduce,
    gather,
    scatter,
    all_to_all_single,
    send_and_recv,
    recv_from_anybody,
    isend_and_irecv,
    batch_isend_irecv,
    async_results_are_overwritten_right_after_the_wait,
    async_without_a_future,
    a_future_with_a_callback_that_overwrites,
    coalesced,
    coalesced_reduce_scatter,
    functional_all_reduce,
    functional_reduce_scatter,
    a_compiled_graph,
    objects,
    barrier,
    ddp_whose_gradients_are_overwritten_right_after_backward,
    ddp_with_a_comm_hook,
    fsdp2,
    fsdp1,
    dtensor,
    deepspeed_zero,
    two_dtypes_and_two_groups_at_one_place,
    a_collective_that_fails,
    handles_that_nobody_waits_for,
    a_result_that_comes_in_the_next_step,
    the_next_step,
]

LACKED = ["ProcessGroupGloo does not support reduce_scatter"]  # said on all ranks alike: torch before 2.7
if not ENGINES.exists():
    LACKED.append("No module named 'deepspeed'")  # `make peers` has not run, as it has for `make test`


def registered():
    return [name for name in OPERATORS if torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect")]


SECOND = dist.new_group([0, 1])
said = {"registered before": registered()}
pending = None
logging.getLogger("vario").setLevel(logging.INFO)
logging.getLogger("vario").addHandler(logging.FileHandler(FOLDER / f"log{RANK}.txt"))


def main():
    options = {"directory": str(FOLDER), "quantities": ["communication"], "every": 1, "strict": True}
    monitor = vario.watch(nn.Linear(1, 1), name="all", **options)
    line = all_gather.__code__.co_firstlineno + 2
    places = [f"collective_cases.py[{line}]", "re:_cases.py.[0-9]+. broadcast"]
    filtered = vario.watch(nn.Linear(1, 1), name="some", communication=places, **options)
    said["registered meanwhile"] = len(registered())
    expected = {}
    lacking = {}
    for case in CASES:
        found = {}
        if not runs_here(case.__name__):
            lacking[case.__name__] = NO_FSDP2
        else:
            try:
                found = case()
            except (RuntimeError, ModuleNotFoundError) as error:
                if str(error) not in LACKED:
                    raise
                lacking[case.__name__] = str(error)
        expected[case.__name__] = {
            name: None if tensors is None else summary(*tensors).tolist() if tensors else []
            for name, tensors in found.items()
        }
        monitor.step()
        filtered.step()
    monitor.close()
    said["registered while one follows"] = len(registered())
    filtered.close()
    said["registered after"] = registered()
    said["wait is torch's own"] = vars(dist.Work)["wait"] is WAIT
    watched, training = train_with(["communication"])
    alone, _ = train_with([])
    said["trained alike"] = torch.equal(watched, alone)
    said["rows of the training"] = sorted({(step, target) for step, _, _, target in rows(training)})
    (FOLDER / f"said{RANK}.json").write_text(json.dumps({"expected": expected, "lacking": lacking, **said}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
