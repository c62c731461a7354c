"""Two ranks of data parallelism, started by msrun, in the mode that is named: each has its half of every batch."""

import json
import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import get_rank, init
from trainings import Net, batches, momentum, watch

if __name__ == "__main__":
    mindspore.set_device("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE if sys.argv[2] == "graph" else mindspore.PYNATIVE_MODE)
    init()
    mindspore.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=2)
    net = Net()
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), momentum(net))
    cell.set_train()
    rank = get_rank()
    quantities = ["gradient", "gradient_local", "gradient_accumulated", "weight"]
    with watch(cell, directory=sys.argv[1], name="ranks", quantities=quantities):
        losses = [float(cell(Tensor(x[rank::2]), Tensor(y[rank::2])).asnumpy()) for x, y in batches()]
    weights = {name: np.linalg.norm(one.asnumpy()).item() for name, one in net.parameters_and_names()}
    Path(sys.argv[1], f"found-{rank}.json").write_text(json.dumps({"losses": losses, "weights": weights}))
