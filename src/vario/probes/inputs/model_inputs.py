"""Whether what goes into the model changes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import InputSamples
from vario.backends.protocols.events import Inputs as PassInputs
from vario.backends.protocols.observing import Later
from vario.core.quantities import INPUT_CHANGE, INPUT_SINCE, INPUT_WAS
from vario.probes import Needs, Recorder
from vario.probes.inputs.input_watch import InputWatch

MOST_PASSES = 2
"""The passes of each step whose inputs are looked at: a GAN's critic gets real and made images in turn."""
MOST_INPUTS = 64


class Inputs:
    """`input_change/NAME:mean`, `:spread`, `:common`, `:same`: a lasting change of an input of the model.

    `input_was/...`: what it was before, `input_since/...`: the step in which that began. Looks at a few elements of
    each input at every step; healthy training has no rows.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (InputSamples,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to passes, also those of light steps."""
        self._samples, self._recorder = needed(backend, InputSamples), recorder
        self._clock = backend.clock
        self._watches: defaultdict[str, InputWatch] = defaultdict(InputWatch)
        self._num_passes: Counter[str] = Counter()
        backend.on_pass_began(recorder.guarded("inputs", self._pass_began), even_light=True)
        recorder.on_step_ended(recorder.guarded("inputs", self._step_ended))

    def _pass_began(self, root: str, inputs: PassInputs) -> None:
        number = self._num_passes[root]
        if number >= MOST_PASSES:
            return
        self._num_passes[root] = number + 1
        if not number:
            self._samples.hold_inputs(root, inputs)  # the batch, if gradients turn out not to be finite
        if not self._recorder.costs.may_look(self._clock.step):
            return
        prefix = f"{root}:" if root else ""
        suffix = f" (pass {number + 1})" if number else ""
        samples = [(f"{prefix}{name}{suffix}", fetch) for name, fetch in self._samples.input_samples(inputs)]
        if not samples:
            return

        step = self._clock.step

        def fill(scalars: dict[str, float]) -> None:
            for name, fetch in samples:
                self._look(step, name, fetch, scalars)

        self._recorder.frames.log_when(self._recorder.guarded("inputs", fill))

    def _look(self, step: int, name: str, fetch: Later, scalars: dict[str, float]) -> None:
        if name not in self._watches and len(self._watches) >= MOST_INPUTS:
            return
        for what, was, now, since in self._watches[name].look(step, fetch().reshape(-1)):
            scalars[f"{INPUT_CHANGE}{name}:{what}"] = now
            scalars[f"{INPUT_WAS}{name}:{what}"] = was
            scalars[f"{INPUT_SINCE}{name}:{what}"] = float(since)

    def _step_ended(self, seconds: float) -> None:
        self._num_passes.clear()
