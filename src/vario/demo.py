"""The demo run: a small transformer trains on vario's documentation and breaks halfway.

This is an ordinary PyTorch loop plus `vario.watch(...)` and `monitor.log(...)`.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vario
from vario.core.errors import ConfigError, ModelError
from vario.core.package import docs_folder
from vario.core.process.switch import is_off

if TYPE_CHECKING:
    import torch
    from rich.console import Console

WATCHED = (
    *("weight", "gradient", "gradient_local", "gradient_applied", "activation", "activation_gradient"),
    *("moment", "update", "unexpected_change"),
)
WIDTH, DEPTH, HEADS, CONTEXT, BATCH = 128, 5, 4, 64, 8
FAULT_MODULE = 2
"""The block whose feed-forward layer gets the flipped bit."""


def documentation() -> str:
    """Return the training text: the pages of `docs/`, from the installed package or the checkout."""
    pages = sorted(docs_folder().glob("*.md"))
    if pages:
        return "\n\n".join(page.read_text(encoding="utf8") for page in pages)
    raise ModelError("demo: the documentation it trains on is missing. Reinstall vario.")


def make_model(num_characters: int) -> torch.nn.Module:
    """Build a character-level pre-norm GPT with about a million parameters."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> Any:
            batch, length, _ = x.shape
            heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(WIDTH)
            self.attention = Attention()
            self.mlp_norm = nn.LayerNorm(WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: torch.Tensor) -> Any:
            x = x + self.attention(self.attention_norm(x))
            return x + self.mlp(self.mlp_norm(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.characters = nn.Embedding(num_characters, WIDTH)
            self.positions = nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, num_characters)

        def forward(self, characters: torch.Tensor) -> Any:
            places = torch.arange(characters.shape[1], device=characters.device)
            return self.head(self.norm(self.blocks(self.characters(characters) + self.positions(places))))

    return Transformer()


def flip_exponent_bit(weight: torch.Tensor) -> None:
    """Flip the highest exponent bit of the first element, as a faulty memory cell would."""
    import torch

    with torch.no_grad():
        bits = weight.view(-1)[:1].view(torch.int32)
        bits ^= 1 << 30


def train(*, seconds: float, steps: int | None, fault: bool, directory: str, console: Console) -> Path:
    """Train under vario for about that long, or exactly that many steps, and return the run's folder."""
    try:
        import torch
    except ImportError:
        raise ModelError("demo: needs PyTorch: pip install torch") from None
    if is_off():
        raise ConfigError("demo: VARIO=off is set, so there is nothing to watch. Unset it.")
    torch.manual_seed(0)
    text = documentation()
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(character) for character in text])
    model: Any = make_model(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    console.print(
        f"Training a transformer with {num_parameters:,} parameters on {len(text):,} characters of documentation."
    )

    pace = Pace(seconds, steps)
    flipped = not fault
    # Everything at every step, to have something to look at: no budget could hold.
    watch = vario.watch(model, optimizer, quantities=WATCHED, every=1, overhead="off", directory=directory)
    with watch as monitor, pace.bar(console) as bar:
        step = 0
        if steps is not None:
            monitor.log(total_steps=steps)
        while step == 0 or pace.share(step) < 1.0:
            starts = torch.randint(len(tokens) - CONTEXT - 1, (BATCH, 1))
            window = tokens[starts + torch.arange(CONTEXT + 1)]
            scores = model(window[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            monitor.log(loss=loss.item())
            step += 1
            bar.update(0, completed=pace.share(step), loss=f"{loss.item():.3f}", step=step)
            if not flipped and pace.share(step) >= 0.5:
                flipped = True
                flip_exponent_bit(model.blocks[FAULT_MODULE].mlp[2].weight)
                bar.console.print(f"Step {step}: one bit of blocks.{FAULT_MODULE}.mlp.2.weight was flipped.")
        bar.update(0, completed=1.0)
        if not math.isfinite(loss.item()):
            bar.console.print(f"The loss is {loss.item()}.")
    assert monitor.path is not None  # the store is on
    return monitor.path


class Pace:
    """Progress of the training, by time or by steps."""

    def __init__(self, seconds: float, steps: int | None) -> None:
        self.seconds = seconds
        self.steps = steps
        self.started = time.monotonic()

    def share(self, step: int) -> float:
        """The fraction of the training that is done, from 0 to 1."""
        done = step / self.steps if self.steps else (time.monotonic() - self.started) / self.seconds
        return min(done, 1.0)

    def bar(self, console: Console) -> Any:
        """Build a progress bar with step and loss."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        shown = ("training", BarColumn(), TextColumn("step {task.fields[step]}  loss {task.fields[loss]}"))
        progress = Progress(*shown, TimeElapsedColumn(), console=console)
        progress.add_task("training", total=1.0, loss="-", step=0)
        return progress
