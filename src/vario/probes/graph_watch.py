"""What a loss is computed by, compared with its own past: an operation that is new or gone, a constant that changed.

Code that a flag, a global or a config chooses leaves no attribute to watch, but it leaves other operations in the graph
of the loss, in another order, or with other numbers. Graphs that vary on purpose, with experts, regularisers of every
16th step or random depth, teach which of their features say nothing.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vario.backends.protocols.loss_graphs import INPUTS, LossGraph
from vario.rules.api.findings import common_name

KNOWN, KNOWN_STEPS = 6, 20
"""Looks, and the steps they span, after which a feature of the graph is known."""
LASTING = 5
"""Looks in a row, at consecutive steps, that make a change."""
MOST_CHANGES = 2
"""Changes of one graph that are told: one that changes more often is meant to."""
MOST_NAMED = 3
ALL = "*"
"""The place of what has changed in several parts of the model."""
IDLE = frozenset({"Alias", "Clone", "Slice", "ToCopy"})
"""Operations that come and go with the length of a row or a dtype, and change no number."""
ORDER, COUNT, CONSTANT, NEW, GONE = "order", "count", "constant", "new", "gone"

Feature = tuple[str, ...]
"""`order`, `count OPERATION`, or `constant OPERATION ARGUMENT NUMBER`."""


class GraphChange(NamedTuple):
    """Something about a graph that has changed for good."""

    what: str
    """`constant Div factor`, `new Softmax+Log`, `gone NativeDropout` or `order`."""
    place: str
    """The part of the model in which it was computed; `*`: several; empty: behind all parameters, where the loss is."""
    was: float
    now: float
    since: int
    """The first look that met it."""
    unseen_from: int
    """The step after the look before."""


class _Pending(NamedTuple):
    """A feature that has another value than usual."""

    value: float
    looks: int
    since: int
    unseen_from: int


class _Shift(NamedTuple):
    """A feature that has changed for good."""

    was: float
    now: float
    since: int
    unseen_from: int


class GraphWatch:
    """Knows the graph of one backward pass of a loop's steps."""

    def __init__(self) -> None:
        self._usual: dict[Feature, float] = {}
        self._known_from: dict[Feature, tuple[int, int]] = {}
        """The look and the step in which each feature took its usual value."""
        self._pending: dict[Feature, _Pending] = {}
        self._varying: set[Feature] = set()
        self._last: LossGraph | None = None
        """The last graph without anything unusual."""
        self._looks = self._num_changes = 0
        self._next = 0
        """The step after the last look: what is new may have begun there."""

    @property
    def is_unsure(self) -> bool:
        """Whether the next step should be looked at, too."""
        return bool(self._pending)

    @property
    def is_done(self) -> bool:
        """Whether this graph has changed so often that it is meant to."""
        return self._num_changes >= MOST_CHANGES

    @property
    def part(self) -> str:
        """The part of the model that the loss is of."""
        return "" if self._last is None else part_of(self._last)

    def look(self, step: int, graph: LossGraph) -> Sequence[GraphChange]:
        """Compare the graph of a step; return what has changed for good, when that is certain."""
        self._looks += 1
        last, unseen_from, self._next = self._last, self._next, step + 1
        if last is not None and graph[:1] == last[:1] and graph.constants == last.constants:
            self._varying.update(self._pending)  # it went there and back
            self._pending.clear()
            return ()
        found = self._follow(step, unseen_from, _features(graph))
        if not self._pending:
            self._last = graph
        if not found or last is None:
            return ()
        self._num_changes += 1
        return _described(found, last, graph)

    def _follow(self, step: int, unseen_from: int, now: Mapping[Feature, float]) -> dict[Feature, _Shift]:
        """Learn the features of a graph; return those that have changed for good."""
        found: dict[Feature, _Shift] = {}
        differ = {
            feature for feature in now.keys() | self._usual.keys() if now.get(feature) != self._usual.get(feature)
        }
        for feature in self._pending.keys() - differ:
            self._varying.add(feature)
            del self._pending[feature]
        for feature in differ:
            value, usual = now.get(feature, 0.0), self._usual.get(feature, 0.0)
            look, first = self._known_from.get(feature, (1, 0) if feature[0] == COUNT else (self._looks, step))
            is_known = self._looks - look >= KNOWN and step - first >= KNOWN_STEPS and feature not in self._varying
            before = self._pending.pop(feature, None)
            if is_known and before is not None and before.value != value:
                self._varying.add(feature)
            elif is_known:
                first_seen = _Pending(value, 0, step, unseen_from) if before is None else before
                self._pending[feature] = first_seen._replace(looks=first_seen.looks + 1)
                if first_seen.looks + 1 < LASTING:
                    continue
                del self._pending[feature]
                found[feature] = _Shift(usual, value, first_seen.since, first_seen.unseen_from)
            self._known_from[feature] = self._looks, step
            if feature in now:
                self._usual[feature] = value
            else:
                self._usual.pop(feature, None)
        return found


def _features(graph: LossGraph) -> dict[Feature, float]:
    found: dict[Feature, float] = {(ORDER,): float(zlib.crc32(" ".join(graph.operations).encode()))}
    counts = Counter(graph.operations)
    found.update({(COUNT, name): float(number) for name, number in counts.items()})
    nth = defaultdict[tuple[str, str], int](int)
    for constant in graph.constants:
        kind = graph.operations[constant.operation]
        # Their numbers mean the same only among as many operations.
        key = (CONSTANT, kind, constant.name, str(nth[kind, constant.name]), str(counts[kind]))
        nth[kind, constant.name] += 1
        found[key] = constant.value
    return found


def _described(found: Mapping[Feature, _Shift], before: LossGraph, after: LossGraph) -> list[GraphChange]:
    """Name what has changed, the constants first: they say most."""
    counted = [feature[1] for feature in found if feature[0] == COUNT]
    if counted and all(plain(kind) in IDLE for kind in counted):
        return []
    changes = _constants(found, before, after)
    if changes:
        return changes
    old, new = _differing(before.operations, after.operations)
    place = _place(after, *new) if new[0] < new[1] else _place(before, *old)
    first = min(found.values(), key=lambda shift: shift.since)
    for label, sign in ((NEW, 1), (GONE, -1)):
        kinds = sorted(
            (_is_common(feature[1]), -abs(shift.now - shift.was), feature[1])
            for feature, shift in found.items()
            if feature[0] == COUNT and sign * (shift.now - shift.was) > 0
        )
        if kinds:
            most = found[COUNT, kinds[0][-1]]
            names = "+".join(plain(kind) for *_, kind in kinds[:MOST_NAMED])
            changes.append(GraphChange(f"{label} {names}", place, most.was, most.now, first.since, first.unseen_from))
    if not changes and (ORDER,) in found:
        return [GraphChange(ORDER, place, 0.0, 1.0, first.since, first.unseen_from)]
    return changes


def _constants(found: Mapping[Feature, _Shift], before: LossGraph, after: LossGraph) -> list[GraphChange]:
    """The constants that have changed; those of several layers that did so alike are one."""
    known = _features(before).keys() & _features(after).keys()
    changes: dict[tuple[str, str, float, float], GraphChange] = {}
    for feature, shift in found.items():
        if feature[0] != CONSTANT or feature not in known:
            continue
        _, kind, name, nth, _ = feature
        if name == INPUTS and any(other[0] == COUNT for other in found):
            continue  # where operations came or went, that says more
        place, key = _place(after, *_at(after, kind, name, int(nth))), (kind, name, shift.was, shift.now)
        if key in changes:
            place = common_name([changes[key].place, place]) or ALL
        changes[key] = GraphChange(f"{CONSTANT} {plain(kind)} {name}", place, *shift)
    return list(changes.values())[:MOST_NAMED]


_COMMON = re.compile(
    r"(View|UnsafeView|Transpose|T|Permute|Clone|Expand|Alias|ToCopy|Unsqueeze|Squeeze|Reshape\w*)\d?$"
)


def _is_common(kind: str) -> bool:
    """Whether an operation only moves numbers, which says less about what is computed."""
    return _COMMON.match(plain(kind)) is not None


def plain(kind: str) -> str:
    """Return an operation's name without the ending that torch gives to its backward."""
    return re.sub(r"Backward\d*$", "", kind.rpartition("::")[2]) or kind


def _at(graph: LossGraph, kind: str, name: str, nth: int) -> tuple[int, int]:
    places = [
        each.operation for each in graph.constants if graph.operations[each.operation] == kind and each.name == name
    ]
    return places[nth], places[nth] + 1


def _differing(before: Sequence[str], after: Sequence[str]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The stretches of two sequences that differ, without what they begin and end with alike."""
    shorter = min(len(before), len(after))
    first = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    last = next((at for at in range(shorter - first) if before[-1 - at] != after[-1 - at]), shorter - first)
    return (first, len(before) - last), (first, len(after) - last)


def _place(graph: LossGraph, begin: int, end: int) -> str:
    """The part of the model in which these operations ran; empty if that was behind its last parameter."""
    inside = [_module(name) for name in graph.parameters[begin:end] if name]
    if inside:
        return common_name(inside) or ALL
    after = next((_module(name) for name in graph.parameters[end:] if name), "")
    before = next((_module(name) for name in reversed(graph.parameters[:begin]) if name), "")
    if not after or not before:
        return after
    return common_name([before, after]) or before  # what follows a module is more often its own than the next one's


def part_of(graph: LossGraph) -> str:
    """Return the part of the model that a loss is of; empty if it is the whole."""
    return common_name([_module(name) for name in graph.parameters if name])


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter
