"""What one process that trains on everybody's batches sees, and how a run of several ranks is compared with it."""

import copy
import os
from pathlib import Path

import numpy as np
import torch
import toys

import vario
from releases import runs_here, skip_unless_it_runs
from starting import run_ranks

HERE = Path(__file__).parent
STATISTICS = ("norm", "mean", "min", "max", "count", "nans")
HELD = ("weight", "gradient", "gradient_applied", "moment")


def torchrun(folder, script, *arguments, ranks=2, environment=None, ready=()):
    """Run a script of this folder, or `-m` a module, on several ranks; its output is in the error when it fails."""
    paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    words = [script if script == "-m" else str(HERE / script), *filter(runs_here, arguments)]
    done = run_ranks(words, ranks, cwd=folder, env=variables, ready=ready)
    # The ranks' lines are marked.
    told = [line for line in done.stderr.splitlines() if line.startswith("[rank")] or done.stderr.splitlines()
    assert done.returncode == 0, done.stdout[-3000:] + "\n".join(told[-60:])
    return done


class Oracle:
    """One-process training on the batches of all ranks: whole parameters, and each rank's own gradients.

    `zeros` names parameters whose gradients are zero instead of none: optimizers decay and count those. With
    `empty_update` the optimizer has made its state by an update with no gradients before the first step.
    """

    def __init__(
        self,
        world_size=2,
        accumulation=1,
        dtype=torch.float32,
        clip=True,
        zeros=(),
        groups=1,
        empty_update=False,
        length=None,
        **options,
    ):
        self.length = length
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the ranks have: in bfloat16 the order of a sum shows
        try:
            model = toys.make(**options)
            optimizer = toys.adam(model, groups)
            if empty_update:
                for parameter in (held for group in optimizer.param_groups for held in group["params"]):
                    parameter.grad = torch.zeros_like(parameter)
                optimizer.step()
            self._train(model, optimizer, world_size, accumulation, dtype, clip, zeros)
        finally:
            torch.set_num_threads(num_threads)

    def _train(self, model, optimizer, world_size, accumulation, dtype, clip, zeros):
        self.model = model
        self.local: dict[tuple[int, int, int], dict[str, torch.Tensor]] = {}
        self.outputs: dict[tuple[int, int, int], torch.Tensor] = {}
        self.output_gradients: dict[tuple[int, int, int], torch.Tensor] = {}
        self.held: dict[str, dict[tuple[int, str], torch.Tensor]] = {quantity: {} for quantity in HELD}
        named = dict(self.model.named_parameters())
        for step in range(toys.STEPS):
            total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
            for rank in range(world_size):
                for micro_step in range(accumulation):
                    own = self._gradients(step, micro_step, rank, accumulation, dtype)
                    self.local[step, micro_step, rank] = own
                    own.update((name, torch.zeros_like(named[name])) for name in zeros)
                    for name, gradient in own.items():
                        total[name] += gradient / world_size
            reached = {name for own in self.local.values() for name in own}
            for name in reached:
                named[name].grad = total[name]
            self._keep("gradient", step, {name: named[name].grad for name in reached})
            if clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), toys.CLIP)
            self._keep("gradient_applied", step, {name: named[name].grad for name in reached})
            optimizer.step()
            self._keep("weight", step, {name: p for name, p in named.items() if p.requires_grad or step == 0})
            state = {f"{name}:{key}": optimizer.state[named[name]][key] for name in reached for key in _moments}
            self._keep("moment", step, state)
            self.model.zero_grad()

    def seen_by(self, prefix="", first_step=0):
        """The same with names and step numbers as a trainer has them."""
        seen = copy.copy(self)
        seen.held = {
            quantity: {(step + first_step, prefix + name): tensor for (step, name), tensor in tensors.items()}
            for quantity, tensors in self.held.items()
        }
        seen.local = {
            (step + first_step, *rest): {prefix + name: gradient for name, gradient in gradients.items()}
            for (step, *rest), gradients in self.local.items()
        }
        seen.outputs = {(step + first_step, *rest): output for (step, *rest), output in self.outputs.items()}
        return seen

    def _keep(self, quantity, step, tensors):
        for name, tensor in tensors.items():
            self.held[quantity][step, name] = tensor.detach().clone()

    def _gradients(self, step, micro_step, rank, accumulation, dtype):
        self.model.zero_grad()
        key = step, micro_step, rank

        def called(module, args, output):
            self.outputs[key] = output.detach().clone()
            output.register_hook(lambda gradient: self.output_gradients.__setitem__(key, gradient.clone()))

        # Mixed precision computes with a rounded copy of the weights.
        model = self.model if dtype is torch.float32 else copy.deepcopy(self.model).to(dtype)
        handle = model.blocks[1].register_forward_hook(called)
        toys.loss(model, toys.tokens(step, micro_step, rank)[:, : self.length], accumulation).backward()
        handle.remove()
        found = {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}
        self.model.zero_grad()
        return found


_moments = ("exp_avg", "exp_avg_sq")


def statistics(tensor):
    values = tensor.detach().double().numpy()
    return {
        "norm": np.linalg.norm(values),
        "mean": values.mean(),
        "min": values.min(),
        "max": values.max(),
        "count": values.size,
        "nans": 0,
    }


def check_target(run, target, quantity, expected, rank="all", rtol=1e-5, micro_step=None):
    """One target's curves are those of the expected tensors, {step: tensor}."""
    for statistic in STATISTICS:
        series = run.series(target, quantity, statistic, rank=rank, micro_steps=micro_step is not None)
        chosen = slice(None) if micro_step is None else series.micro_steps == micro_step
        steps = series.steps[chosen].tolist()
        assert steps == sorted(expected), f"{quantity} of {target}: steps {steps}"
        for step, value in zip(steps, series.values[chosen], strict=True):
            wanted = statistics(expected[step])
            # A mean or an extreme near zero is small against the elements, not against itself; the rest is relative.
            slack = rtol * wanted["norm"] / wanted["count"] ** 0.5 if statistic in ("mean", "min", "max") else 0.0
            note = f"{statistic} of {quantity} of {target} at step {step}, rank {rank}"
            np.testing.assert_allclose(value, wanted[statistic], rtol=rtol, atol=slack, err_msg=note)


def check_names(found, expected, extra=()):
    """All that are expected are there, and nothing else but what may be."""
    missing, more = set(expected) - set(found), set(found) - set(expected) - set(extra)
    assert not missing, f"missing: {sorted(missing)}"
    assert not more, f"not expected: {sorted(more)}"


def check_held(run, oracle, quantity, rtol=1e-5, without=()):
    """Shards merged and replicas counted once, every parameter is that of the one process."""
    expected: dict[str, dict[int, torch.Tensor]] = {}
    for (step, name), tensor in oracle.held[quantity].items():
        expected.setdefault(name, {})[step] = tensor
    check_names(run.targets(quantity), expected, without)
    for name, tensors in expected.items():
        check_target(run, name, quantity, tensors, rtol=rtol)


def check_local(run, oracle, ranks, rtol=1e-5, without=(), quantity="gradient_local"):
    """Each rank's own gradients are those of its own batch."""
    for rank in ranks:
        own = {key[:2]: value for key, value in oracle.local.items() if key[2] == rank}
        names = {name for tensors in own.values() for name in tensors}
        check_names(run.targets(quantity, rank=rank), names, without)
        for name in names:
            for micro_step in {micro for _, micro in own}:
                tensors = {step: gradients[name] for (step, micro), gradients in own.items() if micro == micro_step}
                check_target(run, name, quantity, tensors, rank, rtol, micro_step)


def check_accumulated(run, oracle, ranks, rtol=1e-5, without=()):
    """What each rank's micro-steps add up to is the sum of its own gradients."""
    for rank in ranks:
        sums: dict[str, dict[int, torch.Tensor]] = {}
        for (step, _, owner), gradients in oracle.local.items():
            for name, gradient in gradients.items() if owner == rank else ():
                of_name = sums.setdefault(name, {})
                of_name[step] = of_name.get(step, 0) + gradient
        check_names(run.targets("gradient_accumulated", rank=rank), sums, without)
        for name, tensors in sums.items():
            check_target(run, name, "gradient_accumulated", tensors, rank, rtol)


def open_case(folder, case):
    skip_unless_it_runs(case)
    return vario.open_run(folder / "runs" / case)
