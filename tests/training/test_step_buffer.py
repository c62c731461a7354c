"""The rows of a step in progress, as the reference backend reduces them."""

import numpy as np

from vario.backends.numpy import NumpySummaries
from vario.core.records import COUNT, SUM
from vario.training.step_buffer import StepFrames


class Arrays(NumpySummaries):
    """Those of NumPy, which note under which names lists come; None stands for a tensor without numbers."""

    def __init__(self):
        super().__init__(1e-8)
        self.lists = []

    def observe_many(self, tensors, scale=None, again=""):
        self.lists.append(again)
        return super().observe_many(tensors, scale, again)


def made():
    skipped = []
    summaries = Arrays()
    return StepFrames(summaries, lambda *args: skipped.append(args)), summaries, skipped


def test_a_target_seen_again_in_a_micro_step_is_merged():
    frames, _, _ = made()
    for values in ([1.0, 2.0], [3.0]):
        frames.observe("activation", 1, "layer", values)
    frames.observe("activation", 1, "other", [5.0])
    (frame,) = frames.end(7, 0.0)().frames
    assert (frame.quantity, frame.step, frame.micro_step) == ("activation", 7, 1)
    assert list(frame.targets) == ["layer", "other"]
    assert frame.summaries[:, COUNT].tolist() == [3, 1]
    assert frame.summaries[:, SUM].tolist() == [6, 5]
    assert frame.order.tolist() == [0, 2]


def test_the_last_list_of_a_step_wins():
    frames, _, _ = made()
    frames.observe_all("gradient", ["a", "b"], [[1.0], [2.0]])
    frames.observe_all("gradient", ["b"], [[9.0]], 3.0)
    (frame,) = frames.end(0, 0.0)().frames
    assert dict(zip(frame.targets, frame.summaries[:, SUM], strict=True)) == {"a": 1.0, "b": 3.0}


def test_only_a_list_of_the_same_targets_takes_the_rows_of_an_earlier_one():
    frames, summaries, _ = made()
    for names in (["a:gradient", "b:gradient"], ["a:weight", "b:weight"], ["a:gradient", "b:gradient"]):
        frames.observe_all("checksum", names, [[1.0], [2.0]])
    assert summaries.lists[0] == summaries.lists[2] != summaries.lists[1]


def test_lists_after_a_seal_do_not_take_the_rows_of_lists_before_it():
    frames, summaries, _ = made()
    frames.observe_all("gradient", ["a"], [[1.0]])
    frames.seal()
    frames.observe_all("gradient", ["b"], [[2.0]])
    assert summaries.lists[0] != summaries.lists[1]
    (frame,) = frames.end(0, 0.0)().frames
    assert list(frame.targets) == ["a", "b"]


def test_what_has_no_numbers_is_told_and_leaves_no_row():
    frames, _, skipped = made()
    assert frames.observe("activation", 0, "meta", None) is None
    frames.observe_all("gradient", ["none"], [None])
    assert skipped == [("activation", "meta", None), ("gradient", "none", None)]
    assert frames.end(0, 0.0)().frames == []


def test_a_new_step_starts_empty_and_the_old_one_can_be_built_later():
    frames, _, _ = made()
    frames.observe("activation", 0, "a", [1.0])
    frames.log("loss", 2.0)
    build = frames.end(3, 12.5)
    assert not frames.has_rows
    frames.log("loss", 5.0)
    record = build()
    assert record.scalars.values == {"loss": 2.0}
    assert (record.step, record.scalars.time) == (3, 12.5)
    assert frames.has_rows


def late(targets, *sums):
    table = np.zeros((len(targets), 8))
    table[:, SUM] = sums
    return lambda: (targets, table)


def test_rows_that_are_made_late_come_in_one_frame_and_the_last_of_a_target_wins():
    frames, _, _ = made()
    frames.observe("weight", 0, "a", [1.0])
    frames.add_later("update", late(["a", "b"], 1.0, 2.0), 4)
    frames.add_later("update", late(["b", "c"], 5.0, 6.0), 2)
    frames.observe("weight", 0, "z", [1.0])
    weight, update = frames.end(3, 0.0)().frames
    assert (update.quantity, update.step, update.micro_step) == ("update", 3, 0)
    assert dict(zip(update.targets, update.summaries[:, SUM], strict=True)) == {"a": 1.0, "b": 5.0, "c": 6.0}
    assert update.order.tolist() == [1, 5, 6]
    assert weight.order.tolist() == [0, 7]
    assert not frames.end(4, 0.0)().frames


def test_late_rows_that_turn_out_to_be_none_leave_no_frame():
    frames, _, _ = made()
    frames.add_later("unexpected_change", late([]), 4)
    assert frames.has_rows
    assert not frames.end(0, 0.0)().frames


def test_plain_numbers_may_be_made_when_the_record_is_built():
    frames, _, _ = made()
    ready = []
    frames.log("loss", 1.0)
    frames.log_when(lambda scalars: scalars.update(repeated=ready[0]))
    build = frames.end(0, 0.0)
    ready.append(0.5)
    assert build().scalars.values == {"loss": 1.0, "repeated": 0.5}
    assert frames.end(1, 0.0)().scalars.values == {}
