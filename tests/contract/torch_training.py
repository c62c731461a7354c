"""The training in PyTorch."""

import torch
from perceptron import RATE, first_weights


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(3, 4).double(), torch.nn.Linear(4, 2).double()
        for name, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(first_weights()[name])

    def forward(self, inputs):
        return self.head(self.hidden(inputs).tanh())


class Training:
    """A plain loop, in which nothing speaks of vario."""

    def __init__(self):
        self.model = Perceptron()
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def step(self, micro_batches):
        self._optimizer.zero_grad()
        for inputs, expected in micro_batches:
            loss = (self.model(torch.from_numpy(inputs)) - torch.from_numpy(expected)).square().mean()
            loss.backward()
        self._optimizer.step()
        return loss.item()

    def arrays(self):
        return {name: parameter.detach().numpy().copy() for name, parameter in self.model.named_parameters()}

    def traces(self):
        return {
            (name, key): len(value) if isinstance(value, dict) else type(value)
            for name, module in self.model.named_modules()
            for key, value in vars(module).items()
        }
