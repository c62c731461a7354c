"""What one process sees that trains on everybody's batches, nothing split: megatron_oracle.py CASE:RANKS ...

Read by plain hooks, without vario; what is asked for is written to CASE:RANKS.pt.
"""

import os
import sys

import megatron_toys as toys
import torch

WATCHED = 1
"""The layer whose output and its gradient are kept."""


class Seen:
    """Tensors of whole parameters by (step, name); those of one micro-step by (step, micro-step, rank)."""

    def __init__(self):
        self.held = {quantity: {} for quantity in ("weight", "gradient", "gradient_applied", "moment")}
        self.local, self.outputs, self.output_gradients = {}, {}, {}

    def keep(self, quantity, step, tensors):
        for name, tensor in tensors.items():
            self.held[quantity][step, name] = tensor.detach().clone()


def follow(case, ranks):
    toys.begin(case)
    config = toys.config_of(case)
    (chunk,) = toys.build(case, config)
    optimizer = toys.optimizer_of(case, [chunk])
    model, seen = toys.bare(chunk), Seen()
    named = toys.global_names(model)
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    main = {name: getattr(parameter, "main_param", None) for name, parameter in trained.items()}
    main = {name: trained[name] if held is None else held for name, held in main.items()}
    passes = []

    def now():
        number = len(passes) - 1
        step, at = divmod(number, toys.MICRO_STEPS * ranks)
        return step, at % toys.MICRO_STEPS, at // toys.MICRO_STEPS

    def called(module, args, output):
        output = output[0] if isinstance(output, tuple) else output
        key = now()
        seen.outputs[key] = output.detach().clone()
        output.register_hook(lambda gradient: seen.output_gradients.__setitem__(key, unscaled(gradient * ranks)))

    def unscaled(tensor):
        return tensor.detach().clone().float() / optimizer.get_loss_scale()

    chunk.register_forward_pre_hook(lambda *_: passes.append(None))
    model.decoder.layers[WATCHED].register_forward_hook(called)
    for name, parameter in trained.items():

        def came(gradient, name=name):
            # This process divides by the number of all micro-steps, a rank by that of its own.
            seen.local.setdefault(now(), {})[name] = unscaled(gradient * ranks)

        parameter.register_hook(came)
    members = optimizer.chained_optimizers
    for member in members:

        def began(inner, args, kwargs):
            ours = {id(held) for group in inner.param_groups for held in group["params"]}
            applied = {name: held.grad for name, held in main.items() if id(held) in ours and held.grad is not None}
            seen.keep("gradient_applied", now()[0], applied)

        member.optimizer.register_step_pre_hook(began)
    inner_step = optimizer.step

    def step():
        seen.keep("gradient", now()[0], {name: unscaled(parameter.main_grad) for name, parameter in trained.items()})
        return inner_step()

    optimizer.step = step

    def stepped(number, success):
        if not success:
            return
        seen.keep("weight", number, main if number else {**named, **main})
        for member in members:
            for name, held in main.items():
                kept = member.optimizer.state.get(held, {})
                moments = {f"{name}:{key}": kept[key] for key in ("exp_avg", "exp_avg_sq") if key in kept}
                seen.keep("moment", number, moments)

    def batches(number):
        return toys.batches(case, number, range(ranks))

    toys.train(case, [chunk], optimizer, config, batches, stepped)
    return vars(seen)


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
    with toys.distributed():
        for argument in sys.argv[1:]:
            case, _, ranks = argument.partition(":")
            torch.save(follow(toys.Case(case), int(ranks)), f"{argument}.pt")


if __name__ == "__main__":
    main()
