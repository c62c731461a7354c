"""Watch a loop with accelerate: batches are accumulated, and what you log is recorded in the run.

python examples/accelerate_loop.py && vario report
"""

import torch
from accelerate import Accelerator

import vario
from vario.integrations.accelerate import watch


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))

    with watch(accelerator, model, optimizer, print_model_summary=True, check_gradients=True, every=1) as monitor:
        for _ in range(120):
            rows = torch.randn(32, 8, device=accelerator.device)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.log({"loss": loss.item()})
    accelerator.end_training()

    run = vario.open_run(monitor.path)
    losses = run.series("loss", "scalar")
    print(f"{run.path}: {len(losses)} steps, loss from {losses.values[0]:.2f} to {losses.values[-1]:.2f}")
    print("first NaN or Inf:", vario.first_bad(run))


if __name__ == "__main__":
    main()
