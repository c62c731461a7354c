"""Trains small models with MindSpore, watched and not, and leaves runs, arrays and `found.json` in this folder."""

import json
import logging
import sys
from pathlib import Path

import mindspore
import mindspore.dataset
import numpy as np
from mindspore import Tensor, nn

import vario

RATE, STEPS = 0.01, 6
found = {}


class Net(nn.Cell):
    """Two layers with a norm between them; `scale` is frozen."""

    def __init__(self, seed=0):
        super().__init__()
        self.hidden, self.act = nn.Dense(4, 8), nn.ReLU()
        self.norm, self.head = nn.LayerNorm([8], epsilon=1e-5), nn.Dense(8, 2)
        self.scale = mindspore.Parameter(Tensor(np.ones(2, np.float32)), name="scale", requires_grad=False)
        generator = np.random.default_rng(seed)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(generator.normal(scale=0.5, size=parameter.shape).astype(np.float32)))

    def construct(self, inputs):
        return self.head(self.norm(self.act(self.hidden(inputs)))) * self.scale


def batches(count=STEPS, rows=16, seed=1):
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        inputs = generator.normal(size=(rows, 4)).astype(np.float32)
        made.append((inputs, np.tanh(inputs[:, :2] - inputs[:, 2:]).astype(np.float32)))
    return made


def momentum(net, rate=RATE):
    return nn.Momentum(net.trainable_params(), rate, 0.9)


class Loop:
    """An own loop with `value_and_grad`."""

    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.loss_fn = nn.MSELoss()
        self.gradients = mindspore.value_and_grad(self.loss, None, optimizer.parameters)

    def loss(self, inputs, expected):
        return self.loss_fn(self.net(inputs), expected)

    def step(self, inputs, expected):
        loss, self.found = self.gradients(Tensor(inputs), Tensor(expected))
        self.optimizer(self.found)
        return float(loss.asnumpy())


def watch(*args, name, **options):
    return vario.watch(*args, **{"directory": ".", "name": name, "every": 1, "strict": True, **options})


def own_loop():
    """Losses with and without vario, and all tensors of the watched training."""
    net = Net()
    alone = Loop(net, momentum(net))
    expected = [alone.step(*batch) for batch in batches()]
    net = Net()
    loop, arrays = Loop(net, momentum(net)), {}
    seen = {}
    for name, cell in net.cells_and_names():
        if name:
            cell.register_forward_hook(lambda cell, args, output, name=name: seen.update({name: output}))
    arrays.update({f"first/{name}": one.asnumpy().copy() for name, one in net.parameters_and_names()})
    quantities = ("gradient", "gradient_local", "gradient_applied", "weight", "weight_before", "moment", "activation")
    with watch(net, loop.optimizer, name="own", quantities=[*quantities, "activation_gradient", "update"]) as monitor:
        losses = []
        for step, batch in enumerate(batches()):
            arrays.update({f"{step}/weight_before/{n}": p.asnumpy().copy() for n, p in net.parameters_and_names()})
            losses.append(loop.step(*batch))
            monitor.log(loss=losses[-1])
            names = [name for name, one in net.parameters_and_names() if one.requires_grad]
            for name, gradient, state in zip(names, loop.found, loop.optimizer.moments, strict=True):
                arrays[f"{step}/gradient/{name}"] = gradient.asnumpy().copy()
                arrays[f"{step}/moment/{name}:momentum_buffer"] = state.asnumpy().copy()
            arrays.update({f"{step}/weight/{n}": p.asnumpy().copy() for n, p in net.parameters_and_names()})
            arrays.update({f"{step}/activation/{name}:output": one.asnumpy().copy() for name, one in seen.items()})
    np.savez("own.npz", **arrays)
    found["own"] = {"losses": losses, "expected": expected}


def training_cell():
    net = Net()
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), momentum(net))
    cell.set_train()
    with watch(cell, name="cell"):
        found["cell"] = [float(cell(Tensor(x), Tensor(y)).asnumpy()) for x, y in batches()]


class Losses(mindspore.train.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))


def dataset():
    inputs, expected = (np.concatenate(parts) for parts in zip(*batches(), strict=True))
    return mindspore.dataset.NumpySlicesDataset((inputs, expected), ["x", "y"], shuffle=False).batch(16)


def model_train(name="model"):
    net, kept = Net(), Losses()
    model = mindspore.train.Model(net, nn.MSELoss(), momentum(net))
    with watch(model, name=name):
        model.train(1, dataset(), callbacks=[kept], dataset_sink_mode=False)
    found[name] = kept.losses


def sinking():
    """A dataset in the sink: on the CPU MindSpore runs single steps, on a device one call runs many."""
    net, kept = Net(), Losses()
    model = mindspore.train.Model(net, nn.MSELoss(), momentum(net))
    with watch(model, name="sink"):
        model.train(1, dataset(), callbacks=[kept], dataset_sink_mode=True)
        try:
            model._train_dataset_sink_process(1, dataset())  # what a device would run
        except Exception as error:  # noqa: BLE001 - there is no device
            found["sink error"] = type(error).__name__
    found["sink"] = kept.losses


def optimizers():
    """Which state is found, by optimizer."""
    made = {
        "Adam": lambda net: nn.Adam(net.trainable_params(), 1e-3, use_amsgrad=False),
        "AdamWeightDecay": lambda net: nn.AdamWeightDecay(net.trainable_params(), 1e-3),
        "SGD": lambda net: nn.SGD(net.trainable_params(), 1e-3, momentum=0.9),
        "RMSProp": lambda net: nn.RMSProp(net.trainable_params(), 1e-3),
        "experimental.Adam": lambda net: mindspore.experimental.optim.Adam(net.trainable_params(), 1e-3),
        "mint.Adam": lambda net: mindspore.mint.optim.Adam(net.trainable_params(), 1e-3),
    }
    for name, make in made.items():
        net = Net()
        loop = Loop(net, make(net))
        run = f"optimizer-{name}"
        with watch(net, loop.optimizer, name=run):
            for batch in batches(3):
                loop.step(*batch)


def schedules():
    """Learning rates that change by themselves, and a group with its own."""
    net = Net()
    head = net.head.trainable_params()
    rest = [one for one in net.trainable_params() if not any(one is other for other in head)]
    groups = [{"params": head, "lr": 0.007}, {"params": rest}]
    with watch(net, name="rates"):
        loop = Loop(net, nn.Momentum(groups, [0.001, 0.002, 0.003, 0.004, 0.005, 0.006], 0.9))
        for batch in batches():
            loop.step(*batch)


class ScaledCell(nn.TrainOneStepWithLossScaleCell):
    """Looks for overflows itself: the operator of its base is not there on the CPU."""

    def get_overflow_status(self, status, compute_output):
        return mindspore.ops.logical_not(mindspore.amp.all_finite(compute_output))


def loss_scale():
    """A training cell with a loss scale, which skips its third update; and a loop that scales its loss itself."""
    net = Net()
    manager = nn.DynamicLossScaleUpdateCell(2.0**10, 2, 100)
    cell = ScaledCell(nn.WithLossCell(net, nn.MSELoss()), momentum(net), manager)
    cell.set_train()
    with watch(cell, name="scaled"):
        for step, (x, y) in enumerate(batches()):
            cell(Tensor(x * np.float32(np.inf) if step == 2 else x), Tensor(y))
    net = Net()
    loop = Loop(net, momentum(net))
    scaler = mindspore.amp.StaticLossScaler(512.0)
    gradients = mindspore.value_and_grad(lambda x, y: scaler.scale(loop.loss(x, y)), None, loop.optimizer.parameters)
    with watch(net, loop.optimizer, scaler=scaler, name="scaled-loop"):
        for x, y in batches():
            loop.optimizer(scaler.unscale(gradients(Tensor(x), Tensor(y))[1]))


def accumulation():
    net = Net()
    loop = Loop(net, momentum(net))
    with watch(net, loop.optimizer, name="accumulated", quantities=["gradient", "gradient_local"]):
        for first, second in zip(batches()[::2], batches()[1::2], strict=True):
            (_, one), (_, two) = (loop.gradients(*map(Tensor, batch)) for batch in (first, second))
            loop.optimizer(tuple((a + b) / 2 for a, b in zip(one, two, strict=True)))


def faults():
    """The basic faults, each in a run of its own."""

    def train(name, at=None, data=None, make=momentum):
        net = Net()
        loop = Loop(net, make(net))
        with watch(net, loop.optimizer, name=name) as monitor:
            for step, batch in enumerate(data or batches(16, 32)):
                if at is not None:
                    at(step, loop, batch)
                monitor.log(loss=loop.step(*batch))

    def nan(step, loop, batch):
        if step == 9:
            batch[0][3, 1] = np.nan

    def jump(step, loop, batch):
        if step == 12:
            mindspore.ops.assign(loop.optimizer.learning_rate, Tensor(np.float32(RATE * 30)))

    def without_head(net):
        own = net.head.trainable_params()
        return nn.Momentum([one for one in net.trainable_params() if not any(one is o for o in own)], 0.01, 0.9)

    train("fault-nan", at=nan)
    train("fault-rate", at=jump)
    repeated = batches(10, 32)
    train("fault-repeat", data=[*repeated, *([repeated[3]] * 6)])
    net = Net()
    loop = Loop(net, without_head(net))
    loop.gradients = mindspore.value_and_grad(loop.loss, None, mindspore.ParameterTuple(net.trainable_params()))
    with watch(net, loop.optimizer, name="fault-frozen"):
        for x, y in batches(8, 32):
            _, every = loop.gradients(Tensor(x), Tensor(y))
            known = {id(one): gradient for one, gradient in zip(net.trainable_params(), every, strict=True)}
            loop.optimizer(tuple(known[id(one)] for one in loop.optimizer.parameters))


def on_device():
    """The operations that a device would run, here on the host, beside NumPy."""
    from vario.backends.mindspore.summaries import MindSporeSummaries
    from vario.backends.numpy import summarise

    generator = np.random.default_rng(5)
    arrays = [generator.normal(size=shape).astype(np.float32) for shape in ((3, 4), (7,), (2, 3, 5), (64, 33))]
    arrays[0][0, 0], arrays[2][0, 0, :3] = np.nan, (np.inf, -np.inf, 0.0)
    arrays.append(np.full((4,), np.nan, np.float32))
    rows = MindSporeSummaries(1e-8, frozenset({"min", "max", "zeros"}))
    rows._is_on_host = False
    rows.observe_many([Tensor(array) for array in arrays])
    found["device"] = rows.collect()().tolist()
    found["numpy"] = [summarise(array, 1e-8).tolist() for array in arrays]


def main():
    mindspore.set_device("CPU")
    logging.basicConfig(filename="log.txt")
    for part in (
        own_loop,
        training_cell,
        model_train,
        sinking,
        loss_scale,
        accumulation,
        on_device,
        mindspore.runtime.launch_blocking,  # from here on without its pipeline: it takes three times as long
        optimizers,
        schedules,
        faults,
    ):
        part()
        sys.stdout.write(f"{part.__name__}\n")
    Path("found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
