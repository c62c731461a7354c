"""What vario says of a model that torchao quantized, as one line of JSON; run with torchao on PYTHONPATH."""

import json
import sys

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

import vario
from vario.analysis.parameters import get_parameter_breakdown, state_bytes

model = torch.nn.Sequential(torch.nn.Linear(64, 32))
quantize_(model, Int8WeightOnlyConfig())
weight = model[0].weight
entry = next(entry for entry in get_parameter_breakdown(model) if entry["name"] == "0.weight")
try:
    prediction = str(vario.predict_memory(model, torch.zeros(2, 64)))
except vario.ModelError as error:
    prediction = str(error)
found = {
    "params": entry["params"],
    "shape": list(entry["shape"]),
    "dtype": entry["dtype"],
    "packed_bytes": weight.qdata.nbytes + weight.scale.nbytes + weight.zero_point.nbytes,
    "state_bytes": state_bytes(model, "fp16").parameters,
    "prediction": prediction,
}
sys.stdout.write(json.dumps(found) + "\n")
