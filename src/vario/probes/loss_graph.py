"""Whether what a loss is computed by changes."""

from __future__ import annotations

import math
from collections import defaultdict
from time import perf_counter
from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.loss_graphs import LossGraph, LossGraphs
from vario.core.quantities import GRAPH_CHANGE, GRAPH_SINCE, GRAPH_UNSEEN, GRAPH_WAS
from vario.probes import Needs, Recorder
from vario.probes.graph_watch import GraphWatch, part_of

MOST_PASSES = 3
"""The backward passes of a step whose graphs are read."""
FIRST_STEPS, FIRST_GAP = 32, 4
"""The step before which a graph is read every few steps, so that it is known soon."""
LEAST_GAP, SHARE = 7, 0.01
"""The fewest steps between two looks, and the share of the time that reading may take."""
SPREAD = 5
"""Looks come up to so many steps later, unevenly: what happens in every 16th step is not met each time."""
MOST_IN_VAIN = 8
"""Looks in a row that met no graph, or one too large, before no more are taken."""


class LossGraphProbe:
    """`graph_change/constant Div factor@encoder` and the like: another number, or other operations, behind the loss.

    `graph_was/...`: the number, or how many such operations there were, before. `graph_since/...`: the first look that
    met it, `graph_unseen/...`: the step after the look before that. Read from the graph that backward goes through,
    every few steps.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (LossGraphs,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to losses, also those of light steps."""
        self._recorder, self._clock = recorder, backend.clock
        self._watches = defaultdict[int, GraphWatch](GraphWatch)
        self._step, self._pass, self._num_in_vain = -1, 0, 0
        self._due, self._reads = 1, False
        self._looked_at, self._when, self._step_seconds = 0, perf_counter(), 0.0
        self._cost: dict[int, float] = {}
        """The seconds that reading the graph of each pass takes."""
        graphs = needed(backend, LossGraphs)
        graphs.read_loss_graphs(self._may_read, recorder.guarded("loss_graph", self._graph_came))

    def _may_read(self) -> bool:
        step = self._clock.step
        self._pass, self._step = self._pass + 1 if step == self._step else 0, step
        if not self._pass:
            self._reads = step >= self._due and self._num_in_vain < MOST_IN_VAIN
        if not self._reads or self._pass >= MOST_PASSES or self._watches[self._pass].is_done:
            return False
        self._num_in_vain += 1
        return True

    def _graph_came(self, graph: LossGraph) -> None:
        step, self._num_in_vain = self._clock.step, 0
        watch = self._watches[self._pass]
        for change in watch.look(step, graph):
            place = change.place or self._part(graph)
            key = f"{change.what}@{place}" + (f" (pass {self._pass + 1})" if self._pass else "")
            self._recorder.log(
                **{
                    GRAPH_CHANGE + key: change.now,
                    GRAPH_WAS + key: change.was,
                    GRAPH_SINCE + key: float(change.since),
                    GRAPH_UNSEEN + key: float(change.unseen_from),
                }
            )
        self._due = self._next(step, graph.seconds)

    def _part(self, graph: LossGraph) -> str:
        """The part of the model that this loss is of, if others are of other parts, as in a GAN."""
        parts = {watch.part for watch in self._watches.values()}
        return part_of(graph) if len(parts) > 1 else ""

    def _next(self, step: int, seconds: float) -> int:
        """The step of the next look: at once if something is unusual, else as often as it may cost."""
        now = perf_counter()
        if step != self._looked_at:
            self._step_seconds = (now - self._when) / (step - self._looked_at)
            self._looked_at, self._when = step, now
        # The quickest: others were interrupted by other work of the machine.
        self._cost[self._pass] = min(seconds, self._cost.get(self._pass, seconds))
        if any(watch.is_unsure for watch in self._watches.values()):
            # A setting of the model that was changed says more: it is looked at now, if it was not.
            self._recorder.costs.full_before = max(self._recorder.costs.full_before, step + 2)
            return step + 1
        if step < FIRST_STEPS:
            return step + FIRST_GAP
        gap = max(LEAST_GAP, math.ceil(sum(self._cost.values()) / SHARE / max(self._step_seconds, 1e-6)))
        return step + gap + (step * 7919 // 13) % SPREAD
