"""Training scripts that do not know vario: `Model.train`, or an own loop (`loop`), in either mode (`graph`)."""

import sys

import mindspore
from mindspore import nn
from trainings import Loop, Losses, Net, batches, dataset, momentum

if "graph" in sys.argv:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
net = Net()
optimizer = momentum(net)
if "loop" in sys.argv:
    loop = Loop(net, optimizer)
    losses = [loop.step(*batch) for batch in batches()]
else:
    kept = Losses()
    model = mindspore.train.Model(net, nn.MSELoss(), optimizer)
    model.train(1, dataset(), callbacks=[kept], dataset_sink_mode=False)
    losses = kept.losses
sys.stdout.write(" ".join(loss.hex() for loss in losses) + "\n")
