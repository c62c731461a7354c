"""Trains tiny cells with MindSpore under a TrainerMon, in its environment: `python mindspore_training.py JOBS.json`.

A job: {"monitor": "msprobe" | "vario", "out", "config", "model", "steps", "accumulate", "optimizer", "start", ...}.
"""

import importlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim


class Perceptron(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3)

    def construct(self, x):
        return self.down(self.act(self.up(x)))


class CoreAttention(nn.Cell):
    """Called with queries, keys and values of shape s,b,h,d; returns two tensors that are both used."""

    def construct(self, query, key, value):
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / q.shape[-1] ** 0.5
        later = Tensor(np.triu(np.ones(scores.shape[-2:], bool), 1))
        weights = ops.softmax(scores.masked_fill(later, -1e9), -1)
        mixed = ops.matmul(weights, v).permute(0, 2, 1, 3)
        mixed = mixed.reshape(*mixed.shape[:2], -1)
        return mixed, mixed.mean(-1, keep_dims=True)


class Layer(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.linear_qkv = nn.LayerNorm([width]), nn.Dense(width, 3 * width)
        self.core_attention, self.proj = CoreAttention(), nn.Dense(width, width)
        self.mlp = nn.SequentialCell(nn.Dense(width, 2 * width), nn.Tanh(), nn.Dense(2 * width, width))

    def construct(self, x, scale=None):
        qkv = self.linear_qkv(self.norm1(x))
        query, key, value = qkv.reshape(*qkv.shape[:2], 3, 2, -1).swapaxes(0, 1).unbind(2)
        mixed, centre = self.core_attention(query, key, value)
        return x + scale * self.mlp(x + self.proj(mixed - centre))


class Decoder(nn.Cell):
    def __init__(self, width, num_layers):
        super().__init__()
        self.layers = nn.CellList([Layer(width) for _ in range(num_layers)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x, scale=Tensor([1.0], mindspore.float32))
        return x


class Gpt(nn.Cell):
    def __init__(self, width=8, num_layers=2):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(17, width), Decoder(width, num_layers)
        self.final_norm = nn.LayerNorm([width])
        self.output_layer = nn.Dense(width, 17, has_bias=False)

    def construct(self, ids):
        return self.output_layer(self.final_norm(self.decoder(self.embedding(ids))))


class Halves(nn.Cell):
    def construct(self, x):
        return x[:, :4], x[:, 4:]


class Hole(nn.Cell):
    """One of its cells returns a tensor that nothing uses, so it has no gradient."""

    def __init__(self):
        super().__init__()
        self.up, self.halves, self.down = nn.Dense(6, 8), Halves(), nn.Dense(4, 3)

    def construct(self, x):
        return self.down(self.halves(self.up(x))[0])


class Chunk(nn.Cell):
    """One stage of a virtual pipeline."""

    def __init__(self, before, after):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(before, after)])

    def construct(self, x):
        return ops.tanh(self.layers[0](x))


def make_model(name):
    """A cell (or its chunks), and what makes its batches."""
    generator = np.random.default_rng(1)
    if name == "gpt":
        return Gpt(), lambda: Tensor(generator.integers(0, 17, (3, 5)).astype(np.int32))
    made = {"chunks": lambda: [Chunk(6, 8), Chunk(8, 3)], "hole": Hole, "perceptron": Perceptron}
    return made[name](), lambda: Tensor(generator.normal(size=(7, 6)).astype(np.float32))


def filled(chunks):
    """All their parameters, with the same numbers in every process."""
    generator = np.random.default_rng(0)
    found = [parameter for chunk in chunks for parameter in chunk.trainable_params()]
    for number, parameter in enumerate(found):
        parameter.name = f"{number}.{parameter.name}"  # chunks have the same names
        parameter.set_data(Tensor((generator.normal(size=parameter.shape) / 2).astype(np.float32)))
    return found


OPTIMIZERS = {
    "adam": lambda found: optim.Adam(found, lr=0.01),
    "sgd": lambda found: optim.SGD(found, lr=0.01, momentum=0.9),
    "nn.Adam": lambda found: nn.Adam(found, 0.01),
    "nn.Momentum": lambda found: nn.Momentum(found, 0.01, 0.9),
}


def make_optimizer(name, parameters):
    optimizer = OPTIMIZERS[name](parameters)
    # msprobe replaces a method of the class and never puts it back: the next job has another class.
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    return optimizer


def train(job):
    """Train one model under one monitor; returns the losses."""
    os.environ["MONITOR_OUTPUT_DIR"] = job["out"]
    Path(job["out"]).mkdir(parents=True, exist_ok=True)
    config = Path(job["out"] + ".json")
    config.write_text(json.dumps(job["config"]))
    if job.get("dynamic"):
        os.environ["DYNAMIC_MONITOR"] = "True"
    try:
        if job.get("continues"):
            train_there(job, config)
            (folder,) = Path(job["out"]).glob("*-rank0-*")
            tag = folder.name.partition("-rank")[0]
            config.write_text(json.dumps({**job["config"], "append_output": [tag, tag]}))
            job = {**job, "start": job["continues"]}
        return train_there(job, config)
    finally:
        os.environ.pop("DYNAMIC_MONITOR", None)


def train_there(job, config):
    model, batch = make_model(job.get("model", "perceptron"))
    chunks = model if isinstance(model, list) else [model]
    for chunk in chunks:
        chunk.set_train()
    optimizer = make_optimizer(job.get("optimizer", "adam"), filled(chunks))
    parameters, accumulate = optimizer.parameters, job.get("accumulate", 1)
    module = {"msprobe": "msprobe.mindspore", "vario": "vario.compat.msprobe"}.get(job["monitor"])
    monitor = None
    if module is not None:
        monitor = importlib.import_module(module).TrainerMon(str(config), params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=accumulate, optimizer=optimizer, start_iteration=job.get("start", 0))

    def loss_of(inputs):
        for chunk in chunks:
            inputs = chunk(inputs)
        return inputs.square().mean() / accumulate

    compute = mindspore.value_and_grad(loss_of, None, parameters)
    losses, asked = [], []
    for step in range(job.get("steps", 3)):
        if str(step) in job.get("changes", {}):
            config.write_text(json.dumps(job["changes"][str(step)]))
            os.utime(config, (step + 1, step + 1))
        gradients = None
        for _ in range(accumulate):
            loss, found = compute(batch())
            gradients = found if gradients is None else tuple(a + b for a, b in zip(gradients, found, strict=True))
        losses.append(float(loss.asnumpy()).hex())
        if job.get("asks"):
            asked.append(ask(monitor))
        if job["monitor"] == "msprobe":
            # As in Megatron's loop, which it was made for; MindSpore's own parameters have no gradients.
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        optimizer(gradients)
    if job["monitor"] == "vario":
        monitor.close()
    if asked:
        Path(job["out"] + ".asked.json").write_text(json.dumps(asked))
    return losses


def ask(monitor):
    """What the API answers between backward and the update."""
    answers = [*monitor.generate_wgrad_metrics(), *monitor.generate_xy_metrics()]
    return [
        {tag: {op: float(value.asnumpy()) for op, value in found.items()} for tag, found in one.items()}
        for one in answers
    ]


def main():
    mindspore.set_device("CPU")
    losses = {}
    for job in json.loads(Path(sys.argv[1]).read_text()):
        try:
            losses[job["out"]] = train(job)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            Path(job["out"] + ".error").write_text(traceback.format_exc())
    Path(sys.argv[1]).with_suffix(".losses.json").write_text(json.dumps(losses))
    shutil.rmtree("rank_0", ignore_errors=True)  # what MindSpore leaves of a failed compilation


if __name__ == "__main__":
    main()
