"""Trains cells with attention and experts, and leaves runs, what they computed (`inside.npz`) and `inside.json`."""

import json
import logging
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from trainings import watch

from vario.compat.mindformers import TrainingStateMonitor

STEPS = 3
arrays, found = {}, {}


class CoreAttention(nn.Cell):
    """Called with queries, keys and values: s,b,h,d."""

    def construct(self, query, key, value):
        arrays.setdefault("query", query.asnumpy().copy())
        arrays.setdefault("key", key.asnumpy().copy())
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / q.shape[-1] ** 0.5
        later = Tensor(np.triu(np.ones(scores.shape[-2:], bool), 1))
        return ops.matmul(ops.softmax(scores.masked_fill(later, -1e9), -1), v).permute(0, 2, 1, 3)


class Mixture(nn.Cell):
    """Two of four experts for each token."""

    def __init__(self, width):
        super().__init__()
        self.gate, self.top_k = nn.Dense(width, 4), 2
        self.experts = nn.CellList([nn.Dense(width, width) for _ in range(4)])

    def construct(self, x):
        logits = self.gate(x)
        arrays.setdefault("logits", logits.asnumpy().copy())
        weights = ops.softmax(logits, -1)
        return sum(expert(x) * weights[..., at : at + 1] for at, expert in enumerate(self.experts))


class Net(nn.Cell):
    def __init__(self, width=8):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.qkv, self.core_attention = nn.Dense(width, 3 * width), CoreAttention()
        self.mixture = Mixture(width)
        generator = np.random.default_rng(0)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(generator.normal(scale=0.4, size=parameter.shape).astype(np.float32)))

    def construct(self, x):
        x = x + self.attention(x, x, x)[0]
        qkv = self.qkv(x)
        query, key, value = qkv.reshape(*qkv.shape[:2], 3, 2, -1).swapaxes(0, 1).unbind(2)
        x = x + self.core_attention(query, key, value).reshape(x.shape)
        return self.mixture(x)


class Loop:
    def __init__(self):
        self.net = Net()
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.01, 0.9)
        self.compute = mindspore.value_and_grad(lambda x: self.net(x).square().mean(), None, self.optimizer.parameters)
        self.generator = np.random.default_rng(1)

    def train(self):
        losses = []
        for _ in range(STEPS):
            loss, gradients = self.compute(Tensor(self.generator.normal(size=(3, 5, 8)).astype(np.float32)))
            self.optimizer(gradients)
            losses.append(float(loss.asnumpy()))
        return losses


def main():
    mindspore.set_device("CPU")
    logging.basicConfig(filename="log.txt", level=logging.INFO)
    found["alone"] = Loop().train()
    arrays.clear()
    quantities = ["attention", "spectrum", "expert"]
    loop = Loop()
    arrays.update({f"weight/{name}": one.asnumpy().copy() for name, one in loop.net.parameters_and_names()})
    each = ["attention", "expert"]
    with watch(loop.net, loop.optimizer, name="found", quantities=quantities, each=each):
        found["watched"] = loop.train()
    loop = Loop()
    order = {"attention_order": "s,b,h,d", "each": each}
    with watch(loop.net, loop.optimizer, name="named", quantities=["attention"], attention=["core_attention"], **order):
        loop.train()
    monitored()
    np.savez("inside.npz", **arrays)
    Path("inside.json").write_text(json.dumps(found))


def monitored():
    """The same by the blocks of MindSpore Transformers."""
    from mindspore import dataset as ds
    from mindspore.train import Model

    net = Net()
    rows = np.random.default_rng(1).normal(size=(9, 5, 8)).astype(np.float32)
    data = ds.NumpySlicesDataset((rows, rows), ["x", "y"], shuffle=False).batch(3)
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
    monitor = TrainingStateMonitor(
        origin_epochs=1,
        config={
            "monitor_on": True,
            "max_attention_logit_format": "log",
            "stable_rank_config": {"format": "log", "step_interval": 1},
        },
        step_interval=1,
        dataset_size=3,
    )
    model.train(1, data, callbacks=[monitor], dataset_sink_mode=False)


if __name__ == "__main__":
    main()
