"""The C library against numpy in float64, and what happens where there is none."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vario.backends import native
from vario.backends.torch.reduce import cpu, native_lists
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS

ROOT = Path(__file__).parents[3]
ALL = frozenset(COLUMNS)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = [1, 3, 15, 16, 17, 100, 4095, 4096, 4097, 4112, 70_001]

has_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="there is no C compiler"
)


@pytest.fixture(autouse=True)
def library(request):
    """These tests need the library, which `make test` builds."""
    if native.library is None and "without" not in request.node.name:
        pytest.skip("the native library is not built: python tools/build_native.py")


def oracle(tensor: torch.Tensor, eps: float) -> np.ndarray:
    values = tensor.double().numpy()
    with np.errstate(all="ignore"):
        low, high = (np.nan, np.nan) if np.isnan(values).all() else (np.nanmin(values), np.nanmax(values))
        zeros = (np.abs(values) < eps).sum() if eps else (values == 0).sum()
        squares = np.sum(values * values)
        return np.array(
            [len(values), values.sum(), squares, low, high, np.isnan(values).sum(), np.isinf(values).sum(), zeros]
        )


def agree(found: np.ndarray, expected: np.ndarray, magnitude: float) -> None:
    exact = [COUNT, MIN, MAX, NANS, INFS, ZEROS]
    np.testing.assert_array_equal(found[exact], expected[exact])
    # Sums of float64 in another order: a few roundings of the largest partial sum.
    np.testing.assert_allclose(found[SUM], expected[SUM], rtol=0, atol=1e-12 * max(magnitude, 1e-300))
    np.testing.assert_allclose(found[SUM_SQUARES], expected[SUM_SQUARES], rtol=1e-12)


def filled(size: int, dtype: torch.dtype, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    if kind == "subnormal":
        values = (
            values * {torch.float32: 1e-41, torch.float64: 1e-312, torch.bfloat16: 1e-39, torch.float16: 1e-6}[dtype]
        )
    elif kind == "special":
        for value in (torch.nan, torch.inf, -torch.inf, 0.0, -0.0):
            values[torch.randint(0, size, (1 + size // 50,), generator=generator)] = value
    elif kind == "nan":
        values[:] = torch.nan
    elif kind == "constant":
        values[:] = 3.25
    return values.to(dtype)


@pytest.mark.parametrize("eps", [0.0, 1e-10, 0.5])
@pytest.mark.parametrize("kind", ["normal", "subnormal", "special", "nan", "constant"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_summaries_equal_those_of_numpy(dtype, kind, eps):
    tensors = [filled(size, dtype, kind) for size in SIZES]
    table = native_lists.summaries(tensors, eps, ALL)
    for tensor, row in zip(tensors, table, strict=True):
        agree(row, oracle(tensor, eps), tensor.double().abs().nan_to_num(0, 0, 0).sum().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_pattern_of_two_bytes_is_read_as_torch_reads_it(dtype):
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    for tensor in (patterns, patterns[~patterns.isnan()], patterns[patterns.isfinite()]):
        finite = tensor.double()[tensor.isfinite()]
        agree(np.array(native_lists.summary(tensor, 0.0, ALL)), oracle(tensor, 0.0), finite.abs().sum().item())
    for pattern in patterns[patterns.isfinite()][::97]:
        assert native_lists.summary(pattern.reshape(1).clone(), 0.0, ALL)[SUM] == pattern.item()


def test_flushing_subnormals_in_torch_does_not_hide_those_of_half_precision():
    tensor = torch.full((4096,), 6e-8, dtype=torch.float16)
    before = native_lists.summary(tensor, 0.0, ALL)
    is_possible = torch.set_flush_denormal(True)
    try:
        assert native_lists.summary(tensor, 0.0, ALL) == before
    finally:
        torch.set_flush_denormal(False)
    assert is_possible
    assert before[ZEROS] == 0
    assert before[MAX] > 5e-8


def test_an_eps_between_two_floats_counts_exactly_what_is_below():
    below, above = np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1))
    tensor = torch.tensor([below, above, -below, 0.0] * 8)
    assert native_lists.summary(tensor, (float(below) + float(above)) / 2, ALL)[ZEROS] == 24
    assert native_lists.summary(tensor, 1e-60, ALL)[ZEROS] == 8


def test_offsets_scales_and_mixed_types_in_one_list():
    base = torch.randn(1000)
    tensors = [base[3:777], base.double()[1:], base.half(), torch.ones(5)]
    table = native_lists.summaries(tensors, 0.01, ALL, scale=4.0)
    for tensor, row in zip(tensors, table, strict=True):
        agree(row, oracle(tensor.double() / 4, 0.01), tensor.double().abs().sum().item())


def test_columns_that_nobody_asked_for_are_as_without_the_library(monkeypatch):
    tensor = torch.randn(100)
    for columns in (frozenset({"count", "sum"}), frozenset({"sum_squares"}), frozenset({"min"}), frozenset({"zeros"})):
        found = cpu.summarise(tensor, 0.1, columns)
        with monkeypatch.context() as patch:
            patch.setattr(native, "library", None)
            np.testing.assert_allclose(found, cpu.summarise(tensor, 0.1, columns), rtol=1e-6, atol=1e-5)


def test_what_the_library_cannot_read_is_reduced_by_torch():
    for tensor in (torch.arange(9), torch.randn(4, 4).t(), torch.randn(3, dtype=torch.complex64), torch.empty(0)):
        assert native_lists.summaries([tensor], 0.0, ALL) is None
        assert native_lists.readable_summary(tensor, 0.0, ALL) is None
    summaries = TorchSummaries(0.0, ALL)
    matrix = torch.randn(4, 5)
    rows = summaries.observe_many([matrix.t(), torch.arange(4.0)])
    table = summaries.collect()()
    agree(table[rows[0]], oracle(matrix.flatten(), 0.0), 20)


def test_a_list_of_the_same_name_replaces_the_earlier_rows_unless_its_sizes_differ():
    summaries = TorchSummaries(0.0, ALL)
    first = summaries.observe_many([torch.ones(4), torch.ones(2)], None, "gradient")
    again = summaries.observe_many([torch.full((4,), 2.0), torch.full((2,), 3.0)], None, "gradient")
    others = summaries.observe_many([torch.ones(7)], None, "gradient")
    assert list(first) == list(again)
    assert not set(first) & set(others)
    table = summaries.collect()()
    assert table[list(again), SUM].tolist() == [8.0, 6.0]
    assert table[list(others), SUM].tolist() == [7.0]


def test_squares_equal_those_of_numpy():
    tensors = [filled(size, dtype, "normal") for size in SIZES for dtype in DTYPES]
    found = native_lists.squares(tensors)
    np.testing.assert_allclose(found, [oracle(tensor, 0.0)[SUM_SQUARES] for tensor in tensors], rtol=1e-12)


def test_training_gives_the_same_rows_with_numpy_alone(tmp_path):
    code = """
import sys, torch, vario
from vario.backends import native
assert (native.library is None) == (sys.argv[2] == "off")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.GELU(), torch.nn.Linear(300, 1))
optimizer = torch.optim.AdamW(model.parameters())
everything = ["weight", "gradient", "moment", "activation", "activation_gradient"]
with vario.watch(model, optimizer, directory=sys.argv[1], quantities=everything, every=1, strict=True) as monitor:
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
run = vario.open_run(monitor.path)
for quantity in everything:
    for target in run.targets(quantity):
        for statistic in ("norm", "mean", "max", "min", "zeros"):
            values = run.series(target, quantity, statistic).values
            print(quantity, target, statistic, *[f"{value:.6e}" for value in values])
"""
    said = []
    for setting in ("on", "off"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / setting), setting],
            env={**os.environ, "VARIO_NATIVE": setting},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said.append([line.split() for line in done.stdout.splitlines()])
    assert len(said[0]) > 100
    for one, other in zip(*said, strict=True):
        assert one[:3] == other[:3]
        # Six digits, and float32 blocks of larger tensors without the library.
        np.testing.assert_allclose(np.float64(one[3:]), np.float64(other[3:]), rtol=1e-5, atol=1e-8)


def _builder():
    spec = importlib.util.spec_from_file_location("build_native", ROOT / "tools" / "build_native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@has_compiler
def test_the_library_is_built_once_and_without_special_functions_if_need_be(tmp_path):
    builder = _builder()
    folder = tmp_path / builder.FOLDER
    folder.mkdir(parents=True)
    shutil.copy(ROOT / builder.FOLDER / builder.SOURCE, folder)
    assert builder.build(tmp_path) is None
    made = (folder / builder.BUILT).stat().st_mtime_ns
    assert builder.build(tmp_path) is None
    assert (folder / builder.BUILT).stat().st_mtime_ns == made
    subprocess.run(
        ["cc", *builder.FLAGS, "-DVARIO_NO_CLONES", "-o", folder / "plain.so", folder / builder.SOURCE, "-lm"],
        check=True,
    )
    tensor = torch.randn(5000)
    where = np.array([tensor.data_ptr()]), np.array([5000])
    tables = [native.Library(folder / name).summarise(*where, 0, 1e-3) for name in (builder.BUILT, "plain.so")]
    np.testing.assert_allclose(*tables, rtol=1e-12, atol=1e-9)


def test_without_a_compiler_the_reason_is_said(monkeypatch, tmp_path):
    builder = _builder()
    (tmp_path / builder.FOLDER).mkdir(parents=True)
    (tmp_path / builder.FOLDER / builder.SOURCE).write_text("int x;")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert builder.build(tmp_path) == "there is no C compiler"
    monkeypatch.setenv("CC", "no-such-compiler-here")
    assert "no-such-compiler-here" in builder.build(tmp_path)


@has_compiler
def test_without_the_right_version_the_library_is_refused(tmp_path):
    source = tmp_path / "other.c"
    source.write_text("int vario_native_version(void) { return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "other.so", source], check=True)
    with pytest.raises(OSError, match="another version"):
        native.Library(tmp_path / "other.so")
