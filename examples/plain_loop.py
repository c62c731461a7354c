"""Watch a plain PyTorch loop: a small network learns two moons, recorded in a run folder.

python examples/plain_loop.py
"""

import math

import torch

import vario


def two_moons(num_points: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(num_points) * math.pi
    labels = torch.randint(2, (num_points,))
    signs = 1.0 - 2.0 * labels
    x = torch.stack([torch.cos(angles) * signs + labels, torch.sin(angles) * signs + 0.4 * labels], dim=1)
    return x + 0.1 * torch.randn_like(x), labels


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with vario.watch(model, optimizer, every=1) as monitor:
        for _ in range(100):
            x, labels = two_moons(128)
            loss = torch.nn.functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item(), learning_rate=optimizer.param_groups[0]["lr"])

    run = vario.open_run(monitor.path)
    norms = run.series("4.weight", "gradient", "norm")
    print(f"{run.path}: loss {loss.item():.3f}")
    print(f"gradient norm of the last layer: from {norms.values[0]:.3g} to {norms.values[-1]:.3g}")
    print("first NaN or Inf:", vario.first_bad(run))


if __name__ == "__main__":
    main()
