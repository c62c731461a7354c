"""The kernels and everything asynchronous, on a CUDA device."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from models import Attentive, Language, Perceptron, batch, ids, language_loss
from vario.backends.torch.modules.attention import attention_rows
from vario.backends.torch.modules.spectra import SpectralNorms, stable_rank
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.backends.torch.releases import CAN_HOOK_IN_GRAPHS
from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES
from watching import EVERYTHING, check, check_same, records, rows, scalar, summary, watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ALL = frozenset(COLUMNS)
INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
OTHERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128]


def numbers(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.complex(*torch.randn((2, *shape), generator=generator)).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.3
    return torch.randint(0 if dtype is torch.uint8 else -100, 100, shape, generator=generator).to(dtype)


def one_by_one(tensors, eps=1e-8, columns=ALL, scale=None):
    summaries = TorchSummaries(eps, columns)
    placed = [summaries.observe(tensor, scale) for tensor in tensors]
    table = summaries.collect()()
    return [None if number is None else table[number] for number in placed]


def in_a_list(tensors, eps=1e-8, columns=ALL, scale=None):
    summaries = TorchSummaries(eps, columns)
    placed = summaries.observe_many(list(tensors), scale, "list")
    table = summaries.collect()()
    return [None if number is None else table[number] for number in placed]


both = pytest.mark.parametrize("reduced", [one_by_one, in_a_list])


@pytest.fixture
def small_capacity(monkeypatch):
    """So few partial rows that several folds happen in one step."""
    from vario.backends.torch.reduce import cuda

    monkeypatch.setattr(cuda, "_CAPACITY", 8)


@both
@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
def test_every_dtype_and_size_gets_the_numbers_of_numpy(reduced, dtype):
    tensors = [
        numbers(dtype, shape) for shape in [(), (1,), (0,), (1023,), (1024,), (1025,), (300, 301), (65536 * 3 + 5,)]
    ]
    for row, tensor in zip(reduced([tensor.cuda() for tensor in tensors]), tensors, strict=True):
        check(row, tensor)


@both
@pytest.mark.parametrize(
    "view", [lambda x: x.T, lambda x: x[::2, 1::3], lambda x: x[1:, 2:], lambda x: x[:1].expand(9, -1)]
)
def test_views_show_their_own_elements_only(reduced, view):
    tensor = view(numbers(torch.float32, (70, 90)))
    (row,) = reduced([view(numbers(torch.float32, (70, 90)).cuda())])
    check(row, tensor)


@both
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_tensors_that_begin_at_an_odd_address_are_read_right(reduced, offset):
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        tensor = numbers(dtype, (70_001,))
        (row,) = reduced([tensor.cuda()[offset:]])
        check(row, tensor[offset:])


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "values", [[NAN], [NAN, -1.0, 4.0], [INF, 1.0], [INF, -INF, 2.0], [INF, NAN, 0.0], [-INF, -INF]]
)
def test_minimum_and_maximum_ignore_a_nan_but_it_is_counted(reduced, values, dtype):
    for tensor in (torch.tensor(values, dtype=dtype), torch.tensor(values * 70_000, dtype=dtype)):
        (row,) = reduced([tensor.cuda()])
        check(row, tensor)
        assert row[NANS] == int(tensor.isnan().sum())
        assert row[INFS] == int(tensor.isinf().sum())


@both
@pytest.mark.parametrize("magnitude", [1e30, 3e38, 1e-30])
def test_squares_that_overflow_float32_are_finite(reduced, magnitude):
    tensor = torch.full((100_000,), magnitude)
    tensor[::2] *= -1
    (row,) = reduced([tensor.cuda()])
    check(row, tensor)
    assert np.isfinite(row).all()


@both
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.5])
def test_zeros_are_what_lies_below_eps(reduced, eps):
    tensor = torch.tensor([0.0, -0.0, 1e-20, -1e-9, 0.25, -0.25, 0.5, 3.0, NAN, INF])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        (row,) = reduced([tensor.to(dtype).cuda()], eps=eps)
        check(row, tensor.to(dtype), eps=eps)


@both
def test_a_loss_scale_on_the_device_is_divided_out(reduced):
    tensor = numbers(torch.float32, (5000,)) * 1e-3
    (row,) = reduced([tensor.cuda() * 1024.0], eps=1e-4, scale=torch.tensor(1024.0, device="cuda"))
    check(row, tensor, eps=1e-4)


@both
@pytest.mark.parametrize("left_out", [{"sum_squares"}, {"zeros"}, {"min", "max"}])
def test_a_column_nobody_asked_for_does_not_change_the_others(reduced, left_out):
    tensor = torch.cat([numbers(torch.float32, (300_000,)), torch.tensor([NAN, INF, 0.0])])
    (row,) = reduced([tensor.cuda()], columns=ALL - left_out)
    kept = [COLUMNS.index(name) for name in ALL - left_out]
    np.testing.assert_allclose(row[kept], summary(tensor)[kept], rtol=1e-5)


def test_a_later_list_under_the_same_name_takes_the_rows_of_the_earlier_one():
    summaries = TorchSummaries(1e-8, ALL)
    for round_ in range(3):
        tensors = [
            numbers(dtype, (n,), seed=round_ + n).cuda()
            for dtype in (torch.float32, torch.bfloat16)
            for n in (5, 70_000)
        ]
        placed = summaries.observe_many(tensors, None, "gradient/0")
        other = summaries.observe(tensors[1])
    table = summaries.collect()()
    for number, tensor in zip(placed, tensors, strict=True):
        check(table[number], tensor)
    check(table[other], tensors[1])


def test_lists_of_changing_members_and_sizes_are_told_apart():
    summaries = TorchSummaries(1e-8, ALL)
    first = [torch.ones(5, device="cuda"), torch.ones(70_000, device="cuda")]
    second = [torch.full((9,), 2.0, device="cuda"), torch.full((70_000,), 2.0, device="cuda")]
    third = [torch.full((9,), 3.0, device="cuda")]
    placed = [summaries.observe_many(tensors, None, "gradient/0") for tensors in (first, second, third)]
    table = summaries.collect()()
    check(table[placed[1][1]], second[1])
    check(table[placed[2][0]], third[0])


def test_several_folds_in_one_step_lose_nothing(small_capacity):
    summaries = TorchSummaries(1e-8, ALL)
    placed = []
    for seed in range(40):
        tensor = numbers(torch.float32, (1000 * seed + 1,), seed)
        placed.append((summaries.observe(tensor.cuda()), tensor))
        if seed % 5 == 0:
            many = [numbers(torch.bfloat16, (70_000 * (k + 1),), seed + k) for k in range(3)]
            placed += zip(summaries.observe_many([t.cuda() for t in many], None, f"list/{seed}"), many, strict=True)
            placed += zip(summaries.observe_many([t.cuda() for t in many], None, f"list/{seed}"), many, strict=True)
    table = summaries.collect()()
    for number, tensor in placed:
        check(table[number], tensor)


def test_steps_follow_each_other_while_earlier_ones_are_not_fetched_yet(small_capacity):
    summaries = TorchSummaries(1e-8, ALL)
    waiting = []
    for step in range(20):
        number = summaries.observe(torch.full((100_000,), float(step), device="cuda"))
        waiting.append((summaries.collect(), number, step))
    for fetch, number, step in waiting:
        assert fetch()[number][SUM] == 100_000 * step


def test_tensors_of_side_streams_are_read_after_they_are_written():
    summaries = TorchSummaries(1e-8, ALL)
    streams = [torch.cuda.Stream() for _ in range(3)]
    placed = []
    for step in range(12):
        with torch.cuda.stream(streams[step % 3]):
            tensor = torch.zeros(4_000_000, device="cuda")
            for _ in range(20):
                tensor += 1.0
            placed.append(summaries.observe(tensor))
            tensor.zero_()
    table = summaries.collect()()
    for number in placed:
        assert (table[number][MIN], table[number][MAX]) == (20.0, 20.0)


def test_a_billion_elements_are_summed_to_five_digits():
    tensor = torch.empty(1_000_000_000, dtype=torch.bfloat16, device="cuda").uniform_(-1, 3)
    squares = sum(part.double().square().sum().item() for part in tensor.split(100_000_000))
    total = sum(part.double().sum().item() for part in tensor.split(100_000_000))
    for reduced in (one_by_one, in_a_list):
        (row,) = reduced([tensor])
        assert row[COUNT] == 1_000_000_000
        np.testing.assert_allclose(row[SUM_SQUARES], squares, rtol=1e-5)
        np.testing.assert_allclose(row[SUM], total, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_a_sparse_tensor_that_would_wait_for_the_device_is_passed_over():
    indices, values = torch.tensor([[0, 2, 2]]), torch.tensor([1.0, 2.0, -5.0])
    tensor = torch.sparse_coo_tensor(indices, values, (6,), check_invariants=False).cuda()
    assert one_by_one([tensor]) == [None]
    (row,) = one_by_one([tensor.coalesce()])
    check(row, tensor.cpu().to_dense())


# Whole trainings


def train_language(model, optimizer, steps, losses, forward=None):
    for step in range(steps):
        for micro_step in range(2):
            loss = language_loss(model if forward is None else forward, ids(10 * step + micro_step).cuda())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())


def made_language(**options):
    torch.manual_seed(0)
    model = Language(**options).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def test_no_hook_waits_for_the_device():
    model, optimizer = made_language()
    monitor = watch(model, optimizer)
    tokens = ids(0).cuda()

    def step():
        loss = language_loss(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monitor.close()
    assert len(records(monitor)) == 8
    assert sorted(scalar(monitor, "loss")) == list(range(8))
    assert {key[1] for key in rows(monitor)} == set(EVERYTHING)


def test_the_memory_of_the_device_stays_flat():
    model, optimizer = made_language()
    with watch(model, optimizer, every=1) as monitor:
        allocated = []
        for _ in range(4):
            train_language(model, optimizer, 10, [])
            monitor.wait()
            torch.cuda.synchronize()
            allocated.append(torch.cuda.memory_allocated())
    # The first ten steps allocate what the others use.
    assert len(set(allocated[1:])) == 1, allocated


def test_losses_and_weights_are_the_same_bits_with_and_without():
    results = []
    for watched in (True, False):
        model, optimizer = made_language()
        losses = []
        if watched:
            with watch(model, optimizer):
                train_language(model, optimizer, 5, losses)
        else:
            train_language(model, optimizer, 5, losses)
        results.append((torch.stack(losses), model.state_dict()))
    assert torch.equal(results[0][0], results[1][0])
    for name, tensor in results[1][1].items():
        assert torch.equal(results[0][1][name], tensor), name


def test_a_training_on_the_device_leaves_the_rows_of_one_on_the_host():
    found = []
    for device in ("cuda", "cpu"):
        torch.manual_seed(0)
        model = Perceptron(dropout=0.0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with watch(model, optimizer) as monitor:
            for step in range(3):
                optimizer.zero_grad()
                model(batch(step).to(device)).square().mean().backward()
                optimizer.step()
        found.append(rows(monitor))
    check_same(found[0], found[1], rtol=1e-3)


@pytest.mark.parametrize("is_fused", [True, False])
def test_half_precision_with_a_scaler_is_unscaled_and_marks_skipped_steps(is_fused):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=is_fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    monitor = watch(model, optimizer)
    expected = []
    for step in range(4):
        optimizer.zero_grad()
        twin = copy.deepcopy(model)
        x = batch(step).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            twin_loss = twin(x).float().square().mean()
            loss = model(x).float().square().mean()
        twin_loss.backward()
        expected.append({name: p.grad for name, p in twin.named_parameters()})
        scaler.scale(loss * INF if step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.log(loss=loss)
    monitor.close()
    recorded = rows(monitor)
    assert scalar(monitor, "skipped_step") == {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}
    assert sorted(scalar(monitor, "loss")) == [0, 1, 2, 3]
    for step in (0, 2, 3):
        for name, gradient in expected[step].items():
            for quantity in ("gradient", "gradient_local", "gradient_applied"):
                row = recorded[step, quantity, 0, name]
                assert math.sqrt(row[SUM_SQUARES]) == pytest.approx(gradient.norm().item(), rel=2e-2), (quantity, name)
    bad = recorded[1, "gradient", 0, "up.weight"]
    assert bad[NANS] + bad[INFS] > 0


IN_GRAPHS = [name for name in EVERYTHING if CAN_HOOK_IN_GRAPHS or name != "activation_gradient"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["whole", "in place", "by layer"])
def test_a_compiled_model_on_the_device_leaves_the_rows_of_an_eager_one(how):
    import torch._dynamo
    from torch._dynamo.utils import counters

    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        model, optimizer = made_language()
        forward = model
        if compiled and how == "whole":
            forward = torch.compile(model, fullgraph=True)
        elif compiled and how == "in place":
            model.compile(fullgraph=True)
        elif compiled:
            for layer in model.layers:
                layer.compile(fullgraph=True)
        with watch(forward, optimizer, IN_GRAPHS) as monitor:
            train_language(model, optimizer, 3, [], forward)
        found.append(rows(monitor))
    assert sum(counters["graph_break"].values()) == 0
    if how != "by layer":
        # Known: an output of a compiled graph that is also used inside it shows only the gradient from outside.
        found = [{key: row for key, row in each.items() if key[3] != "root:output.hidden.0"} for each in found]
    assert found[0].keys() == found[1].keys()
    for key, row in found[0].items():
        assert found[1][key][COUNT] == row[COUNT]
        assert math.sqrt(found[1][key][SUM_SQUARES]) == pytest.approx(
            math.sqrt(row[SUM_SQUARES]), rel=1e-2, abs=1e-5
        ), key


def test_numbers_logged_from_the_device_are_not_waited_for():
    model, optimizer = made_language()
    with watch(model, optimizer, ["gradient"]) as monitor:
        train_language(model, optimizer, 1, [])
        monitor.log(
            a=torch.tensor(2.5, device="cuda"), b=torch.tensor([3], device="cuda"), c=torch.tensor(NAN, device="cuda")
        )
        with pytest.raises(ValueError, match="expected one number"):
            monitor.log(wrong=torch.ones(2, device="cuda"))
    values = records(monitor)[0].scalars.values
    assert (values["a"], values["b"]) == (2.5, 3.0)
    assert math.isnan(values["c"])
    assert values["device_memory_bytes"] > 0


def test_a_default_device_of_the_script_changes_nothing():
    torch.set_default_device("cuda")
    try:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, optimizer) as monitor:
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            (host_row,) = one_by_one([torch.ones(3, dtype=torch.bfloat16, device="cpu")])
    finally:
        torch.set_default_device(None)
    check(rows(monitor)[0, "weight", 0, "weight"], model.weight)
    assert host_row[SUM] == 3


# Attention and spectra


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_on_the_device_has_the_rows_of_the_host(dtype, causal):
    query, key = batch(0, (2, 300, 8, 64)).to(dtype), batch(1, (2, 500, 2, 64)).to(dtype)
    expected = attention_rows(query, key, "b,s,h,d", causal=causal)
    query, key = query.cuda(), key.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = attention_rows(query, key, "b,s,h,d", causal=causal, block_elements=1 << 18)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for what, found_rows in found.items():
        torch.testing.assert_close(found_rows.cpu(), expected[what], rtol=1e-5, atol=1e-4)


def test_products_rounded_by_the_users_wish_leave_half_precision_exact():
    query, key = batch(0, (1, 256, 4, 64)).bfloat16().cuda(), batch(1, (1, 256, 4, 64)).bfloat16().cuda()
    expected = attention_rows(query, key, "b,s,h,d", causal=True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    found = attention_rows(query, key, "b,s,h,d", causal=True)
    norm = SpectralNorms().measure("w", key.float().reshape(1024, 64))
    torch.set_float32_matmul_precision(before)
    for what, found_rows in found.items():
        torch.testing.assert_close(found_rows, expected[what], rtol=1e-5, atol=1e-5)
    assert norm.item() == pytest.approx(np.linalg.norm(key.double().cpu().reshape(1024, 64).numpy(), 2), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(512, 512), (300, 1000), (4096, 64), (1, 50)], ids=str)
def test_spectra_on_the_device_are_numpys(dtype, shape):
    weight = batch(0, shape).to(dtype)
    expected, frobenius = np.linalg.norm(weight.double().numpy(), 2), np.linalg.norm(weight.double().numpy())
    on_device = weight.cuda()
    norms, found = SpectralNorms(), []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            norm = norms.measure("w", on_device)
            found.append((norm, stable_rank(on_device, norm)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for norm, rank in found:
        assert norm.item() == pytest.approx(expected, rel=1e-3)
        assert rank.item() == pytest.approx((frobenius / expected) ** 2, rel=2e-3)


def test_a_training_with_attention_and_spectra_waits_for_nothing():
    torch.manual_seed(0)
    model = Attentive().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    monitor = watch(model, optimizer, ["attention", "spectrum"], attention=["layers.*.core"])
    tokens = ids(0).cuda()

    def step():
        language_loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monitor.close()
    recorded = rows(monitor)
    assert {key[0] for key in recorded} == {0, 1, 2, 3}
    assert len(recorded) == 4 * (2 * 4 + 5 * 2)
    assert all(np.isfinite(row).all() for row in recorded.values())


class InPlace(nn.Module):
    """Changes what two of its modules return, once in a module and once by itself."""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(32, 64), nn.ReLU(inplace=True)
        self.second, self.norm = nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x):
        hidden = self.second(self.act(self.first(x)))
        hidden += x
        return self.norm(hidden)


@pytest.mark.parametrize("width", [32, 16 * 1024])
def test_activations_that_are_modified_later_have_the_numbers_they_had(width, tmp_path):
    torch.manual_seed(0)
    model = InPlace().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen, gradients = {}, {}

    def see(name):
        def returned(module, inputs, output):
            seen.setdefault(name, []).append(output.detach().double().cpu().numpy().copy())
            output.register_hook(lambda given: gradients.setdefault(name, []).append(given.double().cpu().numpy()))

        return returned

    options = {"quantities": ["activation", "activation_gradient"], "every": 1, "rules": False, "eps": 0}
    with watch(model, optimizer, **options) as monitor:
        for name, module in model.named_children():
            module.register_forward_hook(see(name), prepend=True)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(width, 32, device="cuda")).square().mean().backward()
            optimizer.step()
    found = rows(monitor)
    for quantity, truth in (("activation", seen), ("activation_gradient", gradients)):
        for name in ("first", "act", "second", "norm") if quantity == "activation" else ("norm",):
            for step in range(8):
                row = found[step, quantity, 0, f"{name}:output"]
                values = truth[name][step]
                assert row[COUNT] == values.size
                assert row[SUM_SQUARES] == pytest.approx(np.square(values).sum(), rel=1e-5)
                assert (row[MIN], row[MAX]) == pytest.approx((values.min(), values.max()))


def test_a_list_of_mixed_kinds_is_the_same_as_one_by_one():
    tensors = [
        torch.randn(100, device="cuda"),
        torch.randn(7, 9, device="cuda", dtype=torch.float64),
        torch.randn(6, 8, device="cuda").t(),
        torch.randn(3, 5, device="cuda", dtype=torch.bfloat16),
        torch.randn(40, device="cuda")[::2],
        torch.randn(50_000, device="cuda", dtype=torch.bfloat16),
    ]
    for chosen in (tensors, tensors[:1], [tensors[0], tensors[1], tensors[3], tensors[5]], [tensors[3], tensors[5]]):
        summaries = TorchSummaries(0.0, ALL)
        for _ in range(3):
            together = summaries.observe_many(chosen, None, "list")
            alone = [summaries.observe(tensor) for tensor in chosen]
            table = summaries.collect()()
            np.testing.assert_allclose(table[together], table[alone], rtol=1e-6)


def test_activations_that_keep_their_values_are_reduced_together():
    from torch._dynamo.utils import counters

    counters.clear()  # nothing waits in a process that has compiled graphs, as earlier tests have
    model, optimizer = made_language()
    with watch(model, optimizer, ["activation", "activation_gradient"]) as monitor:
        train_language(model, optimizer, 2, [])
        monitor.wait()
        launches, names = [], ("activation", "activation_gradient")
        for _ in range(3):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                train_language(model, optimizer, 1, [])
                monitor.wait()
            launches.append(sum("reduce_one" in event.name for event in profile.events()))
        found = rows(monitor)
    assert launches[-1] < len({key for key in found if key[0] == 4 and key[1] in names}) / 4, launches
    # The same targets have rows in the step that learned and in the one that waited.
    assert {key[1:] for key in found if key[0] == 0} == {key[1:] for key in found if key[0] == 4}
