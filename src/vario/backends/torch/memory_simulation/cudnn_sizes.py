"""How much memory cuDNN needs for recurrent layers.

Measured on an H200 with cuDNN 9.19 (`bench/memory_recurrent.py`). What is kept for the backward pass follows a rule
exactly. The workspace depends on the algorithms cuDNN may choose; each rule was seen to hold for the sizes named with
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vario.backends.gpus import MIB, Gpu

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
KEPT = {"lstm": 5, "gru": 6, "rnn": 1}
"""Numbers kept per unit and row: gates, and what they were computed from."""
PERSISTENT = {"lstm": 16, "gru": 14, "rnn": 9}
"""Additional numbers per unit and row of an algorithm that keeps the weights on the chip."""
SMALL = {"lstm": 128, "gru": 128, "rnn": 384}
"""With at most this many units cuDNN may choose that algorithm itself."""
LONG = 384
"""From about this many steps on (256 and 512 were seen) the weights' gradient of an LSTM is computed in pieces."""
PACKED = {"lstm": 3, "gru": 2, "rnn": 1}
DROPOUT_STATE_BYTES = 6_488_064
"""Kept from the first layer with dropout on: the state of its random numbers."""
_FIXED = 8 * MIB
_ROUNDING = 256


@dataclass(frozen=True)
class Recurrence:
    """One call of a recurrent module."""

    kind: str
    """lstm, gru or rnn."""
    num_rows: int
    """Steps of all samples."""
    num_samples: int
    input_size: int
    hidden_size: int
    output_size: int
    """Smaller than the hidden size with a projection."""
    num_layers: int
    num_directions: int
    element_bytes: int
    has_dropout: bool = False
    is_packed: bool = False
    is_half: bool = False
    """Whether it runs in float16, for which torch may ask for the persistent algorithm."""

    @property
    def _weights(self) -> int:
        sizes = [self.input_size] + [self.output_size * self.num_directions] * (self.num_layers - 1)
        gates = GATES[self.kind] * self.hidden_size
        projection = self.hidden_size * self.output_size if self._is_projected else 0
        return self.num_directions * sum(gates * (size + self.output_size) + projection for size in sizes)

    @property
    def _is_projected(self) -> bool:
        return self.output_size != self.hidden_size

    @property
    def flat_weights(self) -> int:
        """Elements of the single buffer with all weights; it has room for biases even if there are none."""
        return self._weights + 2 * GATES[self.kind] * self.hidden_size * self.num_layers * self.num_directions

    @property
    def kept_bytes(self) -> int:
        """What is kept for the backward pass."""
        inner = self.num_layers - 1
        per_layer = KEPT[self.kind] * self.hidden_size
        if self._is_projected:
            per_layer += self.hidden_size + self.output_size
        rows = self.num_rows * self.num_directions
        bits = rows * self.num_directions * inner * self.output_size if self.has_dropout else 0
        numbers = rows * (self.num_layers * per_layer + inner * self.hidden_size)
        return numbers * self.element_bytes + bits // 8 + _ROUNDING

    def workspace_bytes(self, gpu: Gpu, is_forward: bool = True) -> int:
        """Return what the forward pass needs while it runs, and the backward pass twice, one after the other."""
        per_row, per_sample = self._numbers(gpu)
        if is_forward and self.num_directions == 2 and self._is_small and not self.is_packed:
            per_row += PERSISTENT[self.kind] * self.hidden_size
        if self._is_projected and self.is_packed:
            per_row += self.hidden_size
        elif self._is_projected:
            per_sample += 11 * self.num_directions * self.hidden_size
        numbers = self.num_rows * (per_row + self.input_size) + self.num_samples * per_sample + self._weights
        return int(numbers * self.element_bytes) + self.num_layers * self.num_directions * _FIXED + _ROUNDING

    def _numbers(self, gpu: Gpu) -> tuple[float, float]:
        """Return numbers per row and per sample, besides the inputs and a copy of the weights."""
        if self.is_packed:
            return self._packed_numbers()
        if self.num_directions == 2:
            return self._bidirectional_numbers()
        units, layers, inputs = self.hidden_size, self.num_layers, self.input_size
        dropped = units if self.has_dropout and self.kind != "rnn" else 0
        wide = inputs + max(0, inputs - units)
        general = 4 * units + dropped + (wide if layers == 1 or inputs > units else 0)
        if self.kind == "rnn" and layers > 1 and inputs <= units:
            general = 3 * units + inputs
        more = PERSISTENT[self.kind] * units if self._is_persistent(gpu) else 0
        if self.kind == "lstm":
            own = (5 if self.num_rows < LONG * self.num_samples else 4) * units + dropped + more
            return max(own, general + (12 * units if more else 0)), 10 * layers * units
        return general + more, (9 * layers + 8 if self.kind == "rnn" and layers > 1 else 5 * layers) * units

    def _bidirectional_numbers(self) -> tuple[float, float]:
        units, layers = self.hidden_size, self.num_layers
        if self.kind == "lstm":
            return 14 * units, 24 * layers * units
        first = 12 if self.kind == "gru" else 10.5
        return (first if layers == 1 else 12.5) * units, 14 * layers * units

    def _packed_numbers(self) -> tuple[float, float]:
        units, layers = self.hidden_size, self.num_layers
        per_sample = 2 * PACKED[self.kind] * layers * units
        if self.num_directions == 2:
            return {"lstm": 12, "gru": 10, "rnn": 7.5}[self.kind] * units, per_sample
        dropped = units if self.has_dropout and self.kind != "rnn" else 0
        return PACKED[self.kind] * units + self.input_size + dropped, per_sample

    @property
    def _is_small(self) -> bool:
        is_fit = self.hidden_size <= SMALL[self.kind] and not self._is_projected
        return is_fit and (self.element_bytes != 2 or self.is_half)

    def _is_persistent(self, gpu: Gpu) -> bool:
        if self._is_small:
            return True
        # What torch itself requests, in float16.
        is_fit = self.num_layers == 1 and self.hidden_size <= 1024 and self.num_samples <= 128
        is_round = self.hidden_size % 128 == 0 and self.input_size % 128 == 0 and self.num_samples % 8 == 0
        is_large = gpu.capability[0] >= 8 and gpu.capability[1] != 6 and gpu.num_multiprocessors >= 98
        if self.kind == "rnn":
            is_fit = is_fit and (self.num_samples < 96 or self.hidden_size < 896)
        is_fit = is_fit and not self._is_projected
        return self.is_half and is_fit and is_round and is_large and self.kind != "gru"
