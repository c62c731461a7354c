"""The little training that every backend does alike, and the oracle of it."""

import numpy as np

RATE = 0.1
NAMES = ("hidden.weight", "hidden.bias", "head.weight", "head.bias")


def first_weights():
    """Where every training sets out: two layers, in float64."""
    generator = np.random.default_rng(0)
    shapes = ((4, 3), (4,), (2, 4), (2,))
    return {name: generator.normal(size=shape) for name, shape in zip(NAMES, shapes, strict=True)}


def batches(steps, micro_steps=1):
    """Per step, a list of inputs and what is expected of them."""
    generator = np.random.default_rng(1)
    return [
        [(generator.normal(size=(5, 3)), generator.normal(size=(5, 2))) for _ in range(micro_steps)]
        for _ in range(steps)
    ]


def loss_and_gradients(weights, inputs, expected):
    """The oracle: a perceptron and its gradients by hand."""
    hidden = np.tanh(inputs @ weights["hidden.weight"].T + weights["hidden.bias"])
    error = hidden @ weights["head.weight"].T + weights["head.bias"] - expected
    out = 2 * error / error.size
    back = (out @ weights["head.weight"]) * (1 - hidden**2)
    gradients = (back.T @ inputs, back.sum(0), out.T @ hidden, out.sum(0))
    return float(np.square(error).mean()), dict(zip(NAMES, gradients, strict=True))
