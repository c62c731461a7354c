"""torch.compile: the rows of eager code, zero graph breaks, a bounded number of graphs."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

import vario
from models import Language, ids, language_loss
from vario.backends.torch.releases import CAN_HOOK_IN_GRAPHS
from watching import EVERYTHING, check_same, records, rows, watch

pytestmark = pytest.mark.filterwarnings("ignore")  # what inductor and dynamo warn of is theirs

MICRO_STEPS = 2


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Training:
    """A few steps of a small model, compiled and watched in one of several orders."""

    def __init__(self, checkpointing=None):
        torch.manual_seed(0)
        self.model = Language(num_blocks=2, checkpointing=checkpointing)
        self.called = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses = []

    def run(self, steps=3):
        for _ in range(steps):
            step = len(self.losses)
            for micro_step in range(MICRO_STEPS):
                loss = language_loss(self.called, ids(10 * step + micro_step))
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
            with torch.no_grad():
                self.called(ids(99))


def compiled_then_watched(training, fullgraph):
    training.called = torch.compile(training.model, fullgraph=fullgraph)
    return watch(training.called, training.optimizer)


def watched_then_compiled(training, fullgraph):
    monitor = watch(training.model, training.optimizer)
    training.called = torch.compile(training.model, fullgraph=fullgraph)
    return monitor


def compiled_in_place(training, fullgraph):
    training.model.compile(fullgraph=fullgraph)
    return watch(training.model, training.optimizer)


def compiled_by_layer(training, fullgraph):
    for layer in training.model.layers:
        layer.compile(fullgraph=True)
    return watch(training.model, training.optimizer)


@pytest.fixture(scope="module")
def eager_rows():
    training = Training()
    monitor = watch(training.model, training.optimizer)
    training.run()
    monitor.close()
    assert {key[1] for key in rows(monitor)} == set(EVERYTHING)
    return of_this_release(monitor)


def of_this_release(monitor):
    """All rows, as far as this torch can record them from inside compiled graphs."""
    return {key: row for key, row in rows(monitor).items() if CAN_HOOK_IN_GRAPHS or key[1] != "activation_gradient"}


@pytest.fixture(scope="module")
def expected_rows(eager_rows):
    """Known: an output of a compiled graph that is also used inside it shows only the gradient from outside."""
    unseen = ("activation_gradient", "root:output.hidden.0")
    return {key: row for key, row in eager_rows.items() if (key[1], key[3]) != unseen}


@pytest.mark.parametrize(
    ("prepare", "most_graphs"),
    [(compiled_then_watched, 2), (watched_then_compiled, 2), (compiled_in_place, 2), (compiled_by_layer, 2)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_compiled_model_leaves_the_rows_of_an_eager_one(prepare, most_graphs, eager_rows, expected_rows):
    training = Training()
    monitor = prepare(training, True)
    training.run()
    monitor.close()
    assert sum(counters["graph_break"].values()) == 0
    assert 0 < counters["stats"]["unique_graphs"] <= most_graphs
    check_same(of_this_release(monitor), eager_rows if prepare is compiled_by_layer else expected_rows, rtol=1e-3)


@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
def test_layers_compiled_one_by_one_are_counted_once_under_checkpointing(checkpointing, eager_rows):
    training = Training(checkpointing)
    monitor = compiled_by_layer(training, True)
    training.run()
    monitor.close()
    assert sum(counters["graph_break"].values()) == 0
    check_same(of_this_release(monitor), eager_rows, rtol=1e-3)


def test_a_model_that_ran_compiled_before_is_watched_from_then_on(expected_rows):
    training = Training()
    training.called = torch.compile(training.model, fullgraph=True)
    state = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    training.run(1)
    training.losses.clear()
    training.model.load_state_dict(state)
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=0.01)
    monitor = watch(training.called, training.optimizer)
    training.run()
    monitor.close()
    assert sum(counters["graph_break"].values()) == 0
    check_same(of_this_release(monitor), expected_rows, rtol=1e-3)


def test_after_close_the_compiled_model_runs_on_and_records_nothing():
    training, plain = Training(), Training()
    monitor = watched_then_compiled(training, True)
    training.run(1)
    monitor.close()
    recorded = len(records(monitor))
    training.run(2)
    plain.run(3)
    # Compiled code rounds otherwise than eager code; that watching changes nothing of it is a test of its own, by bits.
    assert training.losses == pytest.approx(plain.losses, rel=1e-4)
    assert len(records(monitor)) == recorded == 1
    assert monitor.step_number == 1


def test_a_compiled_training_is_watched_again_after_a_close(expected_rows):
    training = Training()
    training.called = torch.compile(training.model, fullgraph=True)
    monitor = watch(training.called, training.optimizer)
    training.run(1)
    monitor.close()
    second = watch(training.called, training.optimizer, first_step=1)
    training.run(2)
    second.close()
    assert sum(counters["graph_break"].values()) == 0
    check_same({**of_this_release(monitor), **of_this_release(second)}, expected_rows, rtol=1e-3)


def test_steps_outside_the_schedule_leave_no_rows_of_a_compiled_model(expected_rows):
    training = Training()
    monitor = watch(training.model, training.optimizer, every=2)
    training.called = torch.compile(training.model, fullgraph=True)
    training.run()
    monitor.close()
    assert counters["stats"]["unique_graphs"] <= 2
    check_same(of_this_release(monitor), {key: row for key, row in expected_rows.items() if key[0] != 1}, rtol=1e-3)


def test_compiled_weights_and_losses_do_not_depend_on_watching():
    watched, plain = Training(), Training()
    monitor = compiled_then_watched(watched, True)
    watched.run()
    monitor.close()
    torch._dynamo.reset()
    plain.called = torch.compile(plain.model, fullgraph=True)
    plain.run()
    assert watched.losses == plain.losses
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, watched.model.state_dict()[name]), name


class WithLoss(torch.nn.Module):
    """Returns its loss, as models of transformers do: the compiler traces backward from one number."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x, targets):
        return torch.nn.functional.cross_entropy(self.second(torch.tanh(self.first(x))), targets)


@pytest.mark.parametrize("which", ["watched", "another"])
def test_a_compiler_that_traces_a_loss_is_no_backward_pass(which, tmp_path):
    torch.manual_seed(0)
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="aot_eager") if which == "watched" else model
    other = torch.compile(WithLoss(), backend="aot_eager")
    losses = []
    with vario.watch(model, optimizer, directory=tmp_path, strict=True) as monitor:
        for step in range(6):
            size = 4 if step < 4 else 6  # the second size compiles again
            loss = compiled(torch.randn(size, 4), torch.randint(0, 3, (size,)))
            loss.backward()
            if step == 3 and which == "another":
                other(torch.randn(4, 4), torch.randint(0, 3, (4,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    found = vario.open_run(monitor.path).series("loss_local", "scalar")
    assert found.values.tolist() == pytest.approx(losses)
