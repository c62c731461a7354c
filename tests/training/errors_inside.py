"""Raise inside vario, in one function after the other, while a small model trains; print where training noticed.

    python tests/training/errors_inside.py PHASE PART/PARTS [OPTION=VALUE ...]

PHASE is `attaching`, `training` (with closing) or `writing`, which is what happens on the writer's thread. Functions
that training calls itself are left out, and the guards: there nothing is left that could catch an error.
"""

import json
import logging
import os
import sys
import tempfile
import threading
from collections import Counter

import torch

import vario

OWN = os.path.dirname(vario.__file__) + os.sep
GUARDS = {
    ("core/process/last_guard.py", "failed"),
    ("core/process/last_guard.py", "safely"),
    ("core/process/last_guard.py", "value"),
    ("core/process/last_guard.py", "never_raises.<locals>.run"),
    ("training/costs.py", "Costs.guarded.<locals>.run"),
    ("backends/torch/loop/module_hooks.py", "tell"),
}
STEPS = 12


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(20, 16), torch.nn.LayerNorm(16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.dropout, self.head = torch.nn.Dropout(0.1), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(16, 20))

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x)[0])
        return self.head(self.dropout(x))


class Injection:
    """A profiler that counts the functions of vario, or raises at the n-th call of one of them."""

    def __init__(self, at=None, nth=1):
        self.at, self.nth, self.seen = at, nth, Counter()

    def __call__(self, frame, event, _):
        code, caller = frame.f_code, frame.f_back
        if event != "call" or not code.co_filename.startswith(OWN):
            return
        if caller is None or not caller.f_code.co_filename.startswith(OWN):
            return
        key = code.co_filename[len(OWN) :], name_of(frame)
        if key in GUARDS:
            return
        self.seen[key] += 1
        if key == self.at and self.seen[key] == self.nth:
            raise RuntimeError("injected")


def name_of(frame):
    code = frame.f_code
    return getattr(code, "co_qualname", f"{code.co_name}:{code.co_firstlineno}")  # Python 3.11 has the former


def train(options, phase=None, injection=None):
    """Return the losses; `injection` is at work in this phase."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    tokens = torch.arange(STEPS * 20).reshape(-1, 10) % 20
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=2)
    losses, monitor = [], None
    if phase == "writing":
        threading.setprofile(injection)
    try:
        if options is not None:
            sys.setprofile(injection if phase == "attaching" else None)
            monitor = vario.watch(model, optimizer, **options)
            sys.setprofile(injection if phase == "training" else None)
        for (batch,) in loader:
            loss = torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.roll(1).flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if monitor is not None:
                monitor.log(extra=1.0)
        if monitor is not None:
            monitor.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return losses


def main():
    phase, (part, parts) = sys.argv[1], map(int, sys.argv[2].split("/"))
    options = {key: json.loads(value) for key, value in (each.split("=", 1) for each in sys.argv[3:])}
    logging.getLogger("vario").setLevel(logging.CRITICAL)
    expected, noticed = train(None), []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options["directory"] = folder
        train(options)
        counting = Injection()
        assert train(options, phase, counting) == expected
        functions = sorted(counting.seen)
        for function in functions[part::parts]:
            for nth in {1, (counting.seen[function] + 1) // 2}:
                try:
                    if train(options, phase, Injection(function, nth)) != expected:
                        noticed.append([*function, nth, "other losses"])
                except Exception as error:  # noqa: BLE001 - what this looks for
                    noticed.append([*function, nth, repr(error)])
    sys.stdout.write(json.dumps({"functions": len(functions), "noticed": noticed}) + "\n")


if __name__ == "__main__":
    main()
