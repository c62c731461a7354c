"""Updates of Adam and others, worked out by hand in float64: shared by the tests on CPU and on CUDA."""

import torch

from watching import check, rows

BETA2, EPS = 0.99, 1e-6


class Hand:
    """Follows a training by hand: weights around each update, and Adam's second moment in float64."""

    def __init__(self, model, rates):
        self.model, self.rates = model, rates
        self.moments, self.num_updates = {}, {}
        self.steps = []

    def before(self):
        self.weights = {name: p.detach().double().clone() for name, p in self.model.named_parameters()}

    def after(self, gradients=None):
        step = {}
        for name, parameter in self.model.named_parameters():
            gradient = gradients[name] if gradients else parameter.grad
            if gradient is None:
                continue
            old, g = self.weights[name], gradient.detach().double()
            change = parameter.detach().double() - old
            step[f"{name}:change"] = change
            size = old.norm()
            if size:
                step[f"{name}:ratio"] = change.norm() / size
                if self.rates(name):
                    step[f"{name}:pace"] = change.norm() / size / self.rates(name)
            times = self.num_updates.get(name, 0)
            v = self.moments.get(name, torch.zeros_like(g))
            if times:
                step[f"{name}:grad_vs_second_moment"] = g**2 / torch.clamp(v / (1 - BETA2**times), min=EPS**2)
            self.moments[name] = BETA2 * v + (1 - BETA2) * g**2
            self.num_updates[name] = times + 1
            v_hat = self.moments[name] / (1 - BETA2 ** (times + 1))
            step[f"{name}:eps_share"] = EPS / v_hat.mean().sqrt()
        self.steps.append(step)

    def check(self, monitor, kinds, rtol=1e-4):
        found = rows(monitor, "update")
        expected = {
            (step, "update", 0, target): values
            for step, all_values in enumerate(self.steps)
            for target, values in all_values.items()
            if target.rpartition(":")[2] in kinds
        }
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            check(found[key], values.reshape(-1), rtol=rtol, eps=0)


OF_ALL = {"change", "ratio", "pace"}
OF_ADAM = OF_ALL | {"grad_vs_second_moment", "eps_share"}

ADAMS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, BETA2), eps=EPS, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, BETA2), eps=EPS, amsgrad=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, BETA2), eps=EPS, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, BETA2), eps=EPS, fused=True),
    "tensor rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), betas=(0.9, BETA2), eps=EPS),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01, betas=(0.9, BETA2), eps=EPS),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01, betas=(0.9, BETA2), eps=EPS),
}
