"""Draw docs/images/sweep-*.png: thirty runs of a sweep that this script trains, in a real browser.

Takes two minutes. `--runs FOLDER` reuses the runs of an earlier call, or keeps them there.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from make_screenshots import IMAGES, serving, take
from playwright.sync_api import sync_playwright
from torch import nn

import vario

RATES = (0.0003, 0.001, 0.003, 0.01, 0.1)
WIDTHS = (8, 24, 64)
OPTIMIZERS = ("SGD", "AdamW")
STEPS = 80
EVERY = 8
COLUMNS = ("lr", "width", "optimizer", "val_loss:best", "accuracy:best", "duration", "curve")
SORTED = "".join(f"&columns={name}" for name in COLUMNS) + "&sort=val_loss:best&tint=lr"

# name, address, width and height of the window, dark, what to wait for
PICTURES = (
    ("table", f"?{SORTED[1:]}", 1280, 600, False, ".runs-row:nth-child(8) .spark path"),
    ("charts", "?list=charts&by=lr&numbers=val_loss&numbers=accuracy", 1280, 700, True, ".u-over"),
    ("effects", "?list=effects", 1280, 1070, False, ".picture circle"),
)


def train_sweep(folder: Path) -> None:
    """Train the runs that do not exist yet: a small classifier with each rate, width and optimizer."""
    for lr, width, optimizer in itertools.product(RATES, WIDTHS, OPTIMIZERS):
        name = f"{optimizer.lower()}-{lr}-w{width}"
        if not (folder / name).exists():
            train(folder, name, argparse.Namespace(lr=lr, width=width, optimizer=optimizer, batch_size=64))


def train(folder: Path, name: str, args: argparse.Namespace) -> None:
    """One run; vario finds its settings in `args`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, args.width), nn.GELU(), nn.Linear(args.width, args.width), nn.GELU())
    model.append(nn.Linear(args.width, 2))
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)
    held_out = spirals(512, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    with vario.watch(model, optimizer, directory=str(folder), name=name, quantities=["gradient"]) as monitor:
        monitor.log(total_steps=STEPS)
        for step in range(STEPS):
            points, labels = spirals(args.batch_size, generator)
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
            if step % EVERY == EVERY - 1:
                with torch.no_grad():
                    found = model(held_out[0])
                correct = (found.argmax(dim=1) == held_out[1]).float().mean()
                monitor.log(val_loss=nn.functional.cross_entropy(found, held_out[1]).item(), accuracy=correct.item())


def spirals(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two spirals that turn around each other; every tenth label is wrong."""
    labels = torch.randint(2, (size,), generator=generator)
    radius = torch.rand(size, generator=generator) * 2 + 0.2
    angle = radius * 2.2 + labels * torch.pi
    noise = 0.08 * torch.randn(size, 2, generator=generator)
    wrong = torch.rand(size, generator=generator) < 0.1
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) + noise
    return points, torch.where(wrong, 1 - labels, labels)


def main() -> None:
    """Train missing runs, then draw every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folder with the runs of an earlier call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.runs or Path(scratch) / "sweep"
        train_sweep(folder)
        with serving(folder) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, query, width, height, is_dark, ready in PICTURES:
                path = IMAGES / f"sweep-{name}.png"
                path.write_bytes(take(browser, address + query, width, height, is_dark, ready))
                sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")
            browser.close()


if __name__ == "__main__":
    main()
