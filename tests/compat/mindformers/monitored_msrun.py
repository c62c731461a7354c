"""Run by msrun: data-parallel training with the callbacks; each rank has its own batches and leaves its own norms."""

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dataset as ds
from mindspore.communication import get_rank, init
from monitored_mindspore import ROWS, made, norm

from vario.compat.mindformers import callbacks_from

STEPS = 3


def main(folder):
    folder = Path(folder)
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    init()
    rank = get_rank()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    net, inputs, expected = made()
    half = slice(rank * STEPS * ROWS, (rank + 1) * STEPS * ROWS)
    inputs, expected = inputs[half], expected[half]
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
    first = ms.value_and_grad(lambda rows, wanted: ops.square(net(rows) - wanted).mean(), None, optimizer.parameters)
    _, gradients = first(Tensor(inputs[:ROWS]), Tensor(expected[:ROWS]))
    named = {each.name: norm(one) for each, one in zip(optimizer.parameters, gradients, strict=True)}
    net.router.expert_load.set_data(Tensor(np.zeros(3), ms.float32))
    content = {
        "monitor_config": {
            "monitor_on": True,
            "dump_path": str(folder / "dump"),
            "local_norm_format": "tensorboard",
            "device_local_norm_format": "tensorboard",
            "weight_state_format": "tensorboard",
        },
        "tensorboard": {"tensorboard_dir": str(folder / "board"), "log_timers_to_tensorboard": True},
        "callbacks": [{"type": "MFLossMonitor"}],
    }
    batches = ds.NumpySlicesDataset((inputs, expected), ["inputs", "expected"], shuffle=False).batch(ROWS)
    callbacks = callbacks_from(content, name="run", directory=str(folder))
    ms.train.Model(net, nn.MSELoss(), optimizer).train(1, batches, callbacks=callbacks, dataset_sink_mode=False)
    weights = float(np.sqrt(sum(norm(each) ** 2 for each in optimizer.parameters)))
    (folder / f"seen-{rank}.json").write_text(json.dumps({"local": named, "weight_norm": weights}))


if __name__ == "__main__":
    main(sys.argv[1])
