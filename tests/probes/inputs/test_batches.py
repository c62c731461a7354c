"""Which rows of batches were seen before, against a memory that forgets nothing and counts by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from models import Language, Nested, Perceptron, batch, ids, language_loss
from vario.probes.inputs.batch_row_history import BatchRowHistory
from watching import scalar, watch

NAMES = ("batch_repeated", "batch_distance", "batch_checksum")


class Rows(nn.Module):
    """Is called with anything and learns from nothing of it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, *args, **kwargs):
        return self.weight.sum()


def fingerprints(*batches, call=lambda model, found: model(found), micro_steps=1):
    """The three numbers of each step, None where there is none."""
    model = Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for at, found in enumerate(batches, start=1):
            call(model, found).backward()
            if at % micro_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    series = [scalar(monitor, name) for name in NAMES]
    return [tuple(one.get(step) for one in series) for step in range(len(batches) // micro_steps)]


def tokens(seed, num_rows=4, length=6):
    return torch.randint(0, 1000, (num_rows, length), generator=torch.Generator().manual_seed(seed))


def test_epochs_repeat_every_row_after_all_the_others():
    epoch = [tokens(seed) for seed in range(5)]
    found = fingerprints(*epoch, *epoch)
    assert [one[0] for one in found] == [0.0] * 5 + [1.0] * 5
    assert [one[1] for one in found[:5]] == [None] * 5
    assert [one[1] for one in found[5:]] == [19 / 20] * 5
    assert [one[2] for one in found[:5]] == [one[2] for one in found[5:]]
    assert len({one[2] for one in found}) == 5


def test_a_loader_that_is_stuck_repeats_what_came_just_before():
    found = fingerprints(*(tokens(seed) for seed in range(5)), tokens(4), tokens(4))
    assert [one[:2] for one in found[5:]] == [(1.0, 3 / 20), (1.0, 3 / 20)]


def test_the_share_of_repeated_rows_is_that_of_all_micro_steps():
    found = fingerprints(tokens(0), tokens(1), tokens(0), tokens(2), micro_steps=2)
    assert [one[0] for one in found] == [0.0, 0.5]
    assert found[1][1] == 7 / 8
    assert found[0][2] == fingerprints(tokens(1), tokens(0), micro_steps=2)[0][2]


def test_a_row_that_comes_twice_in_one_batch_was_seen_before():
    rows = tokens(0)
    assert fingerprints(torch.cat([rows, rows[:1]]))[0][:2] == (0.2, 3 / 4)


def test_the_checksum_does_not_depend_on_the_order_of_rows_but_on_the_order_within_them():
    rows = tokens(0)
    swapped = rows.clone()
    swapped[0, [1, 2]] = rows[0, [2, 1]]
    first, turned, other = (one[2] for one in fingerprints(rows, rows.flip(0), swapped))
    assert first == turned != other
    assert 0 < first < 2**53
    assert first == int(first)


def test_any_changed_element_makes_another_row():
    rows = tokens(0, 1, 50)
    variants = [rows]
    for place in range(50):
        for difference in (1, -1, 256):
            variants.append(rows.clone())
            variants[-1][0, place] += difference
    assert {one[0] for one in fingerprints(*variants)} == {0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_floats_count_where_there_are_no_whole_numbers(dtype):
    images = torch.randn(3, 2, 5, 5).to(dtype)
    other = images.clone()
    other[1] = -other[1]
    found = fingerprints(images, other)
    assert found[1][0] == pytest.approx(2 / 3)


def test_the_largest_whole_numbers_stand_for_the_batch():
    rows = tokens(0)

    def call(model, found):
        nest = {"images": torch.randn(4, 100), "inner": [found, (torch.arange(4),)]}
        return model(torch.tensor(3), nest, extra=torch.arange(5))

    first, second = fingerprints(rows, rows, call=call)
    assert first[0] == 0.0
    assert second[0] == 1.0
    assert first[2] == fingerprints(rows)[0][2]


def test_masks_and_positions_are_no_rows_of_a_batch():
    def call(model, found):
        positions = torch.arange(6).expand(3, 4, 6)
        return model(attention_mask=torch.ones(4, 6, dtype=torch.int64), position_ids=positions, input_ids=found)

    found = fingerprints(tokens(0), tokens(1), call=call)
    assert [one[0] for one in found] == [0.0, 0.0]
    assert found[0][2] == fingerprints(tokens(0))[0][2]


def test_labels_of_the_same_size_belong_to_their_rows():
    def call(model, found):
        return model(tokens(0), labels=found)

    assert [one[0] for one in fingerprints(tokens(1), tokens(2), tokens(1), call=call)] == [0.0, 0.0, 1.0]


def test_very_large_batches_are_sampled():
    rows = torch.randint(0, 1000, (3000, 20))
    long = torch.randint(0, 1000, (2, 100_000))
    found = fingerprints(rows, rows, long, long)
    assert [one[0] for one in found] == [0.0, 1.0, 0.0, 1.0]


def test_where_nothing_fits_there_are_no_numbers():
    found = fingerprints(None, torch.tensor(3.0), torch.ones(2, dtype=torch.bool), [])
    assert found == [(None, None, None)] * 4


def test_evaluations_are_not_counted():
    model = Language()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(2):
            with torch.no_grad():
                model(ids(1))
            language_loss(model, ids(step)).backward()
            optimizer.step()
    assert scalar(monitor, "batch_repeated") == {0: 0.0, 1: 0.0}


def test_checkpointing_does_not_show_a_batch_twice():
    model = Language(checkpointing="non-reentrant")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(2):
            torch.utils.checkpoint.checkpoint(model, ids(step), use_reentrant=False)["logits"].sum().backward()
            optimizer.step()
    assert scalar(monitor, "batch_repeated") == {0: 0.0, 1: 0.0}


def test_a_closure_shows_its_batch_once_however_often_it_is_called():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    num_passes = 0
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(3):

            def closure(step=step):
                nonlocal num_passes
                num_passes += 1
                optimizer.zero_grad()
                loss = model(batch(step)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    assert num_passes > 3
    assert scalar(monitor, "batch_repeated") == {0: 0.0, 1: 0.0, 2: 0.0}


def test_chunks_of_a_pipeline_that_get_the_same_batch_show_it_once():
    chunks = [Rows(), Rows()]
    optimizer = torch.optim.SGD([parameter for chunk in chunks for parameter in chunk.parameters()], lr=0.1)
    with watch(chunks, optimizer, ["gradient"]) as monitor:
        for step in range(3):
            (chunks[0](tokens(step)) + chunks[1](tokens(step))).backward()
            optimizer.step()
    assert scalar(monitor, "batch_repeated") == {0: 0.0, 1: 0.0, 2: 0.0}


def test_a_loop_may_show_its_batches_by_itself():
    model = Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(3):
            for micro_step in range(2):
                monitor.batch({"texts": [tokens(2 * step + micro_step if step < 2 else 0)], "weights": torch.ones(100)})
                model((batch(7), batch(7)), options={"scale": 1.0}).score.square().mean().backward()
            optimizer.step()
    shown = fingerprints(*(tokens(seed) for seed in (0, 1, 2, 3, 0, 0)), micro_steps=2)
    assert [scalar(monitor, name).get(step) for step in range(3) for name in NAMES] == [
        number for step in shown for number in step
    ]


def test_once_shown_only_that_counts():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(4):
            if step == 2:
                monitor.batch(tokens(0))
            model(batch(0)).square().mean().backward()
            optimizer.step()
    assert scalar(monitor, "batch_repeated") == {0: 0.0, 1: 1.0, 2: 0.0}


def test_one_batch_that_goes_through_the_model_twice_before_an_update_does_not_come_again():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(4):
            for _ in range(2):
                optimizer.zero_grad()
                model(batch(step if step < 3 else 2)).square().mean().backward()
            optimizer.step()
    assert scalar(monitor, "batch_repeated") == {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0}


class Remembering:
    """What BatchRowHistory should say, by looking through everything."""

    def __init__(self):
        self.order = []

    def add(self, hashes):
        found = []
        for number in hashes.tolist():
            if number in self.order:
                at = self.order.index(number)
                found.append((len(self.order) - at - 1) / len(self.order))
                del self.order[at]
            self.order.append(number)
        return found


@pytest.mark.parametrize("max_recent", [3, 50, 10_000])
def test_the_history_counts_what_came_since(max_recent):
    generator = np.random.default_rng(0)
    seen, expected = BatchRowHistory(max_recent=max_recent), Remembering()
    for size in generator.integers(1, 40, 60):
        hashes = generator.integers(0, 300, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        assert seen.add(hashes) == expected.add(hashes)


def test_the_history_forgets_the_oldest_and_stays_small():
    seen = BatchRowHistory(max_rows=1000, max_recent=100)
    for start in range(0, 20_000, 50):
        assert not seen.add(np.arange(start, start + 50, dtype=np.uint64))
    assert 1000 <= seen.num_rows <= 1100
    assert sum(getattr(value, "nbytes", 0) for value in vars(seen).values()) < 60_000
    assert len(seen.add(np.arange(19_000, 20_000, dtype=np.uint64))) == 1000
    assert not seen.add(np.arange(10_000, dtype=np.uint64))
