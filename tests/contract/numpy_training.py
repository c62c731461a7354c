"""The training in NumPy."""

import numpy as np
from perceptron import RATE, first_weights, loss_and_gradients

from vario.backends.numpy import NumpyModel


class Training:
    """A loop that tells of its events."""

    def __init__(self):
        self.weights = first_weights()
        self.model = NumpyModel(self.weights)

    def step(self, micro_batches):
        """One update after these passes; the loss of the last."""
        total = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        for inputs, expected in micro_batches:
            self.model.forward_began(inputs)
            loss, gradients = loss_and_gradients(self.weights, inputs, expected)
            for name, gradient in gradients.items():
                total[name] += gradient
            self.model.backward_ended(total)
        self.model.update_began()
        for name, gradient in total.items():
            self.weights[name] -= RATE * gradient
        self.model.update_ended()
        return loss

    def arrays(self):
        return {name: weight.copy() for name, weight in self.weights.items()}

    def traces(self):
        """What watching could leave behind."""
        return dict(self.model._listeners)
