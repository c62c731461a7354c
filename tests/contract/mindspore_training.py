"""The training in MindSpore, in PyNative mode."""

import mindspore
from mindspore import Parameter, Tensor, nn, ops
from perceptron import RATE, first_weights


class Layer(nn.Cell):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = Parameter(Tensor(weight), name="weight"), Parameter(Tensor(bias), name="bias")

    def construct(self, inputs):
        return ops.matmul(inputs, self.weight.T) + self.bias


class Perceptron(nn.Cell):
    def __init__(self):
        super().__init__()
        first = first_weights()
        self.hidden = Layer(first["hidden.weight"], first["hidden.bias"])
        self.head = Layer(first["head.weight"], first["head.bias"])

    def construct(self, inputs):
        return self.head(ops.tanh(self.hidden(inputs)))


class Descent(nn.Optimizer):
    """Subtracts gradients in float64, which the kernels of MindSpore's own optimizers do not know."""

    def __init__(self, parameters, rate):
        super().__init__(rate, parameters)

    def construct(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            ops.assign(parameter, parameter - Tensor(RATE, mindspore.float64) * gradient)
        return True


class Training:
    """A plain loop, in which nothing speaks of vario."""

    def __init__(self):
        self.model = Perceptron()
        self._optimizer = Descent(self.model.trainable_params(), RATE)
        self._gradients = mindspore.value_and_grad(self._loss, None, self._optimizer.parameters)

    def _loss(self, inputs, expected):
        return ops.square(self.model(inputs) - expected).mean()

    def step(self, micro_batches):
        total = None
        for inputs, expected in micro_batches:
            loss, gradients = self._gradients(Tensor(inputs), Tensor(expected))
            total = gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
        self._optimizer(tuple(total))
        return float(loss.asnumpy())

    def arrays(self):
        return {name: parameter.asnumpy().copy() for name, parameter in self.model.parameters_and_names()}

    def traces(self):
        hooks = ("_forward_pre_hook", "_forward_hook", "_backward_pre_hook", "_backward_hook")
        from mindspore.ops.composite import base

        cells = {
            (name, hook): len(getattr(cell, hook)) for name, cell in self.model.cells_and_names() for hook in hooks
        }
        return {**cells, "patched": (base._pynative_func_grad_backward.__name__, "__call__" in vars(nn.Optimizer))}
