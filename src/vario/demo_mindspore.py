"""The demo run with MindSpore: the same small transformer, in PyNative mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vario
from vario.core.errors import ConfigError, ModelError
from vario.core.process.switch import is_off
from vario.demo import BATCH, CONTEXT, DEPTH, FAULT_MODULE, HEADS, WATCHED, WIDTH, Pace, documentation

if TYPE_CHECKING:
    from rich.console import Console


def make_model(num_characters: int) -> Any:
    """Build a character-level pre-norm GPT with about a million parameters."""
    import mindspore
    from mindspore import Parameter, Tensor, nn, ops

    size = WIDTH // HEADS
    ahead = Tensor(np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1))

    class Attention(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)

        def construct(self, x: Any) -> Any:
            query, key, value = (
                part.reshape(-1, CONTEXT, HEADS, size).swapaxes(1, 2) for part in self.qkv(x).chunk(3, -1)
            )
            scores = ops.matmul(query, key.swapaxes(2, 3)) / size**0.5 + ahead
            return self.out(ops.matmul(ops.softmax(scores), value).swapaxes(1, 2).reshape(-1, CONTEXT, WIDTH))

    class Block(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.attention = nn.LayerNorm([WIDTH]), Attention()
            self.mlp_norm = nn.LayerNorm([WIDTH])
            self.mlp = nn.SequentialCell(nn.Dense(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dense(4 * WIDTH, WIDTH))

        def construct(self, x: Any) -> Any:
            x = x + self.attention(self.attention_norm(x))
            return x + self.mlp(self.mlp_norm(x))

    class Transformer(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.characters = nn.Embedding(num_characters, WIDTH)
            places = np.random.default_rng(0).normal(scale=0.02, size=(CONTEXT, WIDTH)).astype(np.float32)
            self.positions = Parameter(Tensor(places), name="positions")
            self.blocks = nn.SequentialCell([Block() for _ in range(DEPTH)])
            self.norm, self.head = nn.LayerNorm([WIDTH]), nn.Dense(WIDTH, num_characters)

        def construct(self, characters: Any) -> Any:
            return self.head(self.norm(self.blocks(self.characters(characters) + self.positions)))

    mindspore.set_seed(0)
    return Transformer()


def flip_exponent_bit(weight: Any) -> None:
    """Flip the highest exponent bit of the first element, as a faulty memory cell would."""
    from mindspore import Tensor

    values = weight.asnumpy().copy()
    values.reshape(-1)[:1].view(np.int32)[0] ^= 1 << 30
    weight.set_data(Tensor(values))


def train(*, seconds: float, steps: int | None, fault: bool, directory: str, console: Console) -> Path:
    """Train under vario for about that long, or exactly that many steps, and return the run's folder."""
    try:
        import mindspore
    except ImportError:
        raise ModelError("demo: --mindspore needs MindSpore: pip install mindspore==2.10.0 'numpy<2'") from None
    if is_off():
        raise ConfigError("demo: VARIO=off is set, so there is nothing to watch. Unset it.")
    from mindspore import Tensor, nn, ops

    text = documentation()
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    tokens = np.array([alphabet[character] for character in text], np.int32)
    model = make_model(len(alphabet))
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-3)
    num_parameters = sum(parameter.size for parameter in model.trainable_params())
    console.print(
        f"Training a MindSpore transformer with {num_parameters:,} parameters on {len(text):,} characters of "
        "documentation."
    )

    def loss_of(characters: Any, following: Any) -> Any:
        return ops.cross_entropy(model(characters).reshape(-1, len(alphabet)), following.reshape(-1))

    gradients_of = mindspore.value_and_grad(loss_of, None, optimizer.parameters)
    generator = np.random.default_rng(0)
    pace = Pace(seconds, steps)
    flipped = not fault
    watch = vario.watch(model, optimizer, quantities=WATCHED, every=1, overhead="off", directory=directory)
    with watch as monitor, pace.bar(console) as bar:
        step = 0
        while step == 0 or pace.share(step) < 1.0:
            starts = generator.integers(len(tokens) - CONTEXT - 1, size=(BATCH, 1))
            window = tokens[starts + np.arange(CONTEXT + 1)]
            loss, gradients = gradients_of(Tensor(window[:, :-1]), Tensor(window[:, 1:]))
            optimizer(ops.clip_by_global_norm(gradients, 1.0))
            number = float(loss.asnumpy())
            monitor.log(loss=number)
            step += 1
            bar.update(0, completed=pace.share(step), loss=f"{number:.3f}", step=step)
            if not flipped and pace.share(step) >= 0.5:
                flipped = True
                flip_exponent_bit(model.blocks[FAULT_MODULE].mlp[2].weight)
                bar.console.print(f"Step {step}: one bit of blocks.{FAULT_MODULE}.mlp.2.weight was flipped.")
        bar.update(0, completed=1.0)
    assert monitor.path is not None  # the store is on
    return monitor.path
