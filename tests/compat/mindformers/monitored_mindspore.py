"""Run in MindSpore's own environment: trains with `mindspore.train.Model` and the callbacks; leaves what numpy says."""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dataset as ds

from vario.compat.mindformers import MFLossMonitor, TopkBiasBalanceCallback, TrainingStateMonitor, callbacks_from

ROWS, STEPS = 4, 6


class Router(nn.Cell):
    """Counts where its tokens go, as the routers of MindSpore Transformers do."""

    def __init__(self):
        super().__init__()
        self.expert_load = Parameter(Tensor(np.zeros(3), ms.float32), name="expert_load", requires_grad=False)

    def construct(self, rows):
        chosen = ops.one_hot(ops.argmax(rows[:, :3], 1), 3, Tensor(1.0), Tensor(0.0))
        ops.assign(self.expert_load, self.expert_load + chosen.mean(0))
        return rows


class Net(nn.Cell):
    def __init__(self, depth):
        super().__init__()
        self.router = Router()
        self.layers = nn.CellList([nn.Dense(6, 6) for _ in range(depth)])
        self.head = nn.Dense(6, 3)

    def construct(self, rows):
        rows = self.router(rows)
        for layer in self.layers:
            rows = rows + ops.tanh(layer(rows))
        return self.head(rows)


def made(depth=11):
    """A net with weights from numpy, and the batches."""
    generator = np.random.default_rng(0)
    net = Net(depth)
    for parameter in net.trainable_params():
        parameter.set_data(Tensor(generator.normal(0, 0.3, parameter.shape), ms.float32))
    inputs = generator.normal(0, 1, (STEPS * ROWS, 6)).astype(np.float32)
    expected = generator.normal(0, 1, (STEPS * ROWS, 3)).astype(np.float32)
    return net, inputs, expected


class Witness(ms.train.Callback):
    """Keeps what the originals of the numbers are, step by step."""

    def __init__(self, net, optimizer, inputs, expected):
        self.seen = []
        self._net, self._optimizer = net, optimizer
        self._batches = [(inputs[at : at + ROWS], expected[at : at + ROWS]) for at in range(0, len(inputs), ROWS)]
        self._gradients = ms.value_and_grad(self._loss, None, optimizer.parameters)

    def _loss(self, inputs, expected):
        return ops.square(self._net(inputs) - expected).mean()

    def on_train_step_begin(self, run_context):
        inputs, expected = self._batches[len(self.seen) % len(self._batches)]
        load = self._net.router.expert_load.asnumpy().copy()
        loss, gradients = self._gradients(Tensor(inputs), Tensor(expected))
        self._net.router.expert_load.set_data(Tensor(load))
        named = zip(self._optimizer.parameters, gradients, strict=True)
        self.now = {"loss": float(loss.asnumpy()), "gradients": {each.name: norm(one) for each, one in named}}
        self.now["load"] = np.bincount(inputs[:, :3].argmax(1), minlength=3).tolist()

    def on_train_step_end(self, run_context):
        optimizer = self._optimizer
        self.now["weights"] = {each.name: norm(each) for each in optimizer.parameters}
        names = [each.name for each in optimizer.parameters]
        self.now["m"] = dict(zip(names, map(norm, optimizer.moment1), strict=True))
        self.now["v"] = dict(zip(names, map(norm, optimizer.moment2), strict=True))
        self.seen.append(self.now)


def norm(tensor):
    return float(np.linalg.norm(tensor.asnumpy().astype(np.float64)))


def train(callbacks, watches=True, epochs=1, depth=11):
    net, inputs, expected = made(depth)
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
    batches = ds.NumpySlicesDataset((inputs, expected), ["inputs", "expected"], shuffle=False).batch(ROWS)
    model = ms.train.Model(net, nn.MSELoss(), optimizer)
    losses = []

    class Losses(ms.train.Callback):
        def on_train_step_end(self, run_context):
            losses.append(run_context.original_args().net_outputs.asnumpy().tobytes().hex())

    witness = [Witness(net, optimizer, inputs, expected)] if watches else []
    model.train(epochs, batches, callbacks=[*witness, *callbacks, Losses()], dataset_sink_mode=False)
    return (witness[0].seen if witness else []), losses, model


class MixtureStep(nn.TrainOneStepCell):
    """Returns what the training cell of MindSpore Transformers does: loss, overflow, scale, rate and norm."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        gradients = self.grad(self.network, self.weights)(*inputs, self.sens)
        norm = ops.sqrt(ops.stack([ops.reduce_sum(ops.square(each)) for each in gradients]).sum())
        loss = ops.depend(loss, self.optimizer(gradients))
        return loss, False, Tensor(1.0, ms.float32), self.optimizer.get_lr(), norm


class WithLoss(nn.Cell):
    """A net and its loss; as a mixture of experts there, it returns the loads and sets them to zero."""

    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net, self.loss = net, nn.MSELoss()

    def construct(self, inputs, expected):
        return self.loss(self.net(inputs), expected)

    def update_topk_bias(self, num_steps):
        load = self.net.router.expert_load
        taken = load.value().copy()
        load.set_data(Tensor(np.zeros(3), ms.float32))
        return [("router", taken)]


def train_step_cell(callbacks, kind):
    """Train with a training cell of one's own."""
    net, inputs, expected = made()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
    batches = ds.NumpySlicesDataset((inputs, expected), ["inputs", "expected"], shuffle=False).batch(ROWS)
    cell = kind(WithLoss(net), optimizer)
    cell.set_train()
    ms.train.Model(cell).train(1, batches, callbacks=callbacks, dataset_sink_mode=False)


def compare(folder):
    """Train as made_with_original.py does, with our callbacks."""
    board = {"tensorboard_dir": str(folder / "original" / "board"), "log_timers_to_tensorboard": True}
    board |= {"log_loss_scale_to_tensorboard": True, "log_expert_load_to_tensorboard": True}
    config = {"target": ["layers.1", "head"], "optimizer_state_format": "tensorboard", "throughput_baseline": 10}
    config["weight_state_format"] = "tensorboard"
    common = {"origin_epochs": 1, "dataset_size": 6, "global_batch_size": 4, "tensorboard": board}
    train_step_cell(
        [
            MFLossMonitor(**common),
            TrainingStateMonitor(config=config, options={"name": "original", "directory": str(folder)}, **common),
            TopkBiasBalanceCallback(tensorboard=board),
        ],
        MixtureStep,
    )


def watched_by(folder, name="run"):
    """All three callbacks, with files below a folder."""
    board = {"tensorboard_dir": str(folder / "board"), "log_timers_to_tensorboard": True}
    board["log_expert_load_to_tensorboard"] = True
    both = ["log", "tensorboard"]
    formats = ("local_norm", "device_local_norm", "local_loss", "device_local_loss", "optimizer_state", "weight_state")
    config = {f"{kind}_format": both for kind in formats}
    config |= {"target": ["layers.1", "head"], "dump_path": str(folder / "dump"), "throughput_baseline": 10}
    callbacks = [
        MFLossMonitor(tensorboard=board, seed=1),
        TrainingStateMonitor(config=config, tensorboard=board, options={"name": name, "directory": str(folder)}),
        TopkBiasBalanceCallback(tensorboard=board),
    ]
    assert all(isinstance(each, ms.train.Callback) for each in callbacks)
    return callbacks, board, config


def main(folder):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    folder = Path(folder)
    callbacks, board, config = watched_by(folder)
    # A training of its own: gradients computed by the witness would be watched too.
    seen, bare, _ = train([])
    _, watched, _ = train(callbacks, watches=False)

    file = {"monitor_config": {"monitor_on": True, **config}, "tensorboard": board}
    file["tensorboard"] = {**board, "tensorboard_dir": str(folder / "from_file" / "board")}
    file["callbacks"] = [{"type": "MFLossMonitor", "per_print_times": 2}]
    train(callbacks_from(file, name="file", directory=str(folder)), watches=False)

    listing = TrainingStateMonitor(config={"print_struct": True}, options={"directory": str(folder)})
    _, listed, _ = train([listing], watches=False)
    alone = {"tensorboard_dir": str(folder / "alone" / "board")}
    train([MFLossMonitor(tensorboard=alone)], watches=False)
    compare(folder)

    # Compiling takes its time, so these are shallow.
    train(watched_by(folder / "pynative")[0], watches=False, depth=2)
    ms.set_context(mode=ms.GRAPH_MODE)
    _, bare_graph, _ = train([], watches=False, depth=2)
    _, watched_graph, _ = train(watched_by(folder / "graph")[0], watches=False, depth=2)
    found = {"steps": seen, "watched": watched, "bare": bare, "num_listed": len(listed)}
    found |= {"watched_graph": watched_graph, "bare_graph": bare_graph}
    (folder / "seen.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
