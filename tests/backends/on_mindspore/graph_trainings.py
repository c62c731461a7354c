"""The trainings of `trainings.py` in graph mode."""

import json
import logging
from pathlib import Path

import mindspore
from mindspore import Tensor, nn
from trainings import Loop, Losses, Net, batches, dataset, momentum, watch

found = {}


def model_train():
    """`Model.train` alone, and watched in every second step."""
    for name in ("alone", "graph"):
        net, kept = Net(), Losses()
        model = mindspore.train.Model(net, nn.MSELoss(), momentum(net))
        if name == "alone":
            model.train(1, dataset(), callbacks=[kept], dataset_sink_mode=False)
        else:
            quantities = ["gradient", "gradient_local", "gradient_applied", "weight", "moment", "update"]
            quantities += ["activation", "activation_gradient"]
            with watch(model, name=name, every=2, quantities=quantities):
                model.train(1, dataset(), callbacks=[kept], dataset_sink_mode=False)
            found["graphs"] = len(model.train_network.compile_cache)
            found["parameters"] = [one.name for one in model.train_network.get_parameters()]
        found[name] = kept.losses


def own_loop():
    """A compiled gradient function, and the optimizer called from Python."""
    net = Net()
    loop = Loop(net, momentum(net))
    with watch(net, loop.optimizer, name="split") as monitor:
        found["split"] = []
        for x, y in batches():
            loss, gradients = loop.gradients(Tensor(x), Tensor(y))
            loop.optimizer(gradients)
            found["split"].append(float(loss.asnumpy()))
            monitor.log(loss=loss)


def too_late():
    """A training cell that was compiled before it is watched."""
    net = Net()
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), momentum(net))
    pairs = [(Tensor(x), Tensor(y)) for x, y in batches(3)]
    cell(*pairs[0])
    with watch(cell, name="late"):
        for pair in pairs[1:]:
            cell(*pair)


if __name__ == "__main__":
    mindspore.set_device("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    logging.basicConfig(filename="log.txt")
    for part in (model_train, own_loop, too_late):
        part()
    Path("found.json").write_text(json.dumps(found))
