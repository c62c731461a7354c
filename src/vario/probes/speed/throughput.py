"""How much a run trains on, and how much computing that takes."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.loop_capabilities import PassWork
from vario.probes import Needs, Recorder

COUNT_AFTER = 2
"""Operations are counted in one of the steps after these first, which may compile."""
MODEL_FLOPS, PEAK_FLOPS = "model_flops/", "peak_flops/"
"""Prefixes of plain numbers, by precision."""


class Throughput:
    """`samples_seen`, `tokens_seen`: rows and token ids of this rank's batches since watching began.

    `model_flops/PRECISION`: operations of the model in forward and backward of one step, counted once;
    `peak_flops/PRECISION`: how many a second the device can do, if it is known.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (PassWork,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to passes and batches."""
        self._work = needed(backend, PassWork)
        self._clock = backend.clock
        self._recorder = recorder
        self._root: str | None = None
        self._is_shown = self._knows_tokens = self._is_over = self._sees_ends = False
        self._samples = self._tokens = 0
        self._num_steps = 0
        self._counts_in: int | None = None
        """The step whose operations are counted."""
        # What it does with matrices would be counted as the model's.
        watches = "attention" in recorder.config.quantities
        self._attention_every = recorder.config.schedule("attention").every if watches else 0
        guarded = recorder.guarded
        backend.on_pass_began(guarded("throughput", self._pass_began), even_light=True)
        backend.on_pass_ended(guarded("flops", self._pass_ended))
        backend.on_batch(guarded("throughput", self._shown))
        recorder.on_step_ended(guarded("throughput", self._step_ended))
        self._log_counted = guarded("flops", self._counted)

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        if self._root is None:
            self._root = root
        if root == self._root and not self._is_shown:
            self._count_batch(inputs)
        # Where a model is not called as a whole, nothing tells that a pass has ended before what is done to the loss.
        if self._sees_ends and not self._is_over and self._num_steps >= COUNT_AFTER:
            self._begin_count()

    def _shown(self, batch: Any) -> None:
        if not self._is_shown:
            self._is_shown, self._samples, self._tokens = True, 0, 0
        self._count_batch(batch)

    def _count_batch(self, batch: Any) -> None:
        size = self._work.batch_size(batch)
        if size is not None:
            self._samples += size.rows
            self._tokens += size.tokens or 0
            self._knows_tokens = self._knows_tokens or size.tokens is not None

    def _begin_count(self) -> None:
        self._work.end_count()  # a pass that raised
        step = self._clock.step
        if self._counts_in is None and not self._watches_attention(step):
            self._counts_in = step
        if self._counts_in == step and not self._work.begin_count():
            self._is_over, self._counts_in = True, None

    def _watches_attention(self, step: int) -> bool:
        return self._attention_every > 0 and step % self._attention_every == 0

    def _pass_ended(self, output: Any) -> None:
        self._sees_ends = True
        self._work.end_count()

    def _step_ended(self, seconds: float) -> None:
        self._num_steps += 1
        is_counted = self._counts_in is not None and not self._is_over
        if is_counted:
            self._is_over = True
            self._work.end_count()
            self._log_counted()
        if self._samples and (is_counted or not self._recorder.costs.is_sparse_step):
            self._recorder.log(samples_seen=float(self._samples))
            if self._knows_tokens:
                self._recorder.log(tokens_seen=float(self._tokens))

    def _counted(self) -> None:
        for precision, (flops, peak) in self._work.counted().items():
            self._recorder.log(**{MODEL_FLOPS + precision: flops})
            if peak is not None:
                self._recorder.log(**{PEAK_FLOPS + precision: peak})
