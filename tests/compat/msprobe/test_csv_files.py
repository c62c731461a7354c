"""Numbers and rows as CSV text."""

import csv
import io

import numpy as np
import pytest

from vario.compat.msprobe.blocks import Block, Rows
from vario.compat.msprobe.csv_files import CsvFiles, block_text, drop_from_step, rounded

COLUMNS = ("norm", "nans", "shape", "mean", "dtype")


def make_block(values, names=("0:a", '1:b, "c"'), forms=(((2, 3), "torch.float32"), ((), "torch.bfloat16"))):
    return Block(Rows("actv", "actv", COLUMNS, names, [0, 1]), np.array(values), list(forms), [0, 1])


def test_rows_are_quoted_where_they_must_be():
    text = block_text(make_block([[1.0, 0.0, -0.5], [np.nan, 2.0, np.inf]]), 7, 6)
    assert text.splitlines() == [
        '0,a,7,0,1.0,0,"[2, 3]",-0.5,torch.float32',
        '1,"b, ""c""",7,1,nan,2,[],inf,torch.bfloat16',
    ]
    assert list(csv.reader(io.StringIO(text)))[1][1] == 'b, "c"'


def test_what_was_made_for_one_step_does_not_leak_into_the_next():
    block = make_block([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])
    block_text(block, 0, 6)
    longer = Block(block.rows, block.values * 2, [((9,), "torch.int8"), ((), "torch.bfloat16")], block.order)
    assert block_text(longer, 1, 6).splitlines()[0] == "0,a,1,0,2.0,0,[9],2.0,torch.int8"


@pytest.mark.parametrize("ndigits", [1, 6, 12, 16, 20])
def test_rounding_agrees_with_formatting_by_python(ndigits):
    generator = np.random.default_rng(0)
    values = generator.standard_normal(2000) * 10.0 ** generator.integers(-30, 12, 2000)
    expected = [round(value, ndigits) if abs(value) >= 1 else float(f"{value:.{ndigits}g}") for value in values]
    # About the last place of a double: multiplying and dividing by a power of ten rounds too.
    np.testing.assert_allclose(rounded(values, ndigits), expected, rtol=6e-16)


def test_no_digits_are_made_up_for_small_numbers():
    assert [repr(float(value)) for value in rounded(np.array([6.6660750993204e-12, 1.0 / 3e30]), 12)] == [
        "6.66607509932e-12",
        "3.33333333333e-31",
    ]


def test_nothing_small_becomes_zero_and_nothing_large_infinite():
    values = np.array([5e-324, -3.3e-310, 1.23456789e-9, 0.0, 1.7e308, -np.inf, np.nan])
    found = rounded(values, 6)
    assert found[:2].tolist() == values[:2].tolist()
    assert found[2] == 1.23457e-9
    assert found[3:6].tolist() == [0.0, 1.7e308, -np.inf]
    assert np.isnan(found[6])


def test_steps_from_one_on_are_dropped_from_a_file(tmp_path):
    path = tmp_path / "grad_reduced_0-3.csv"
    path.write_text('vpp_stage,name,step,norm\n0,"a,b",1,0.5\n0,c,2,0.5\n0,c,3\n0,c')
    drop_from_step(path, 2)
    assert path.read_text() == 'vpp_stage,name,step,norm\n0,"a,b",1,0.5\n'
    drop_from_step(tmp_path / "none.csv", 2)
    assert not (tmp_path / "none.csv").exists()


def test_a_header_stands_once_however_many_blocks_a_file_gets(tmp_path):
    for _ in range(2):
        files = CsvFiles(tmp_path, 6, 10)
        for step in (3, 4):
            files.write(make_block([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]), step)
            files.flush()
    lines = (tmp_path / "actv_0-9.csv").read_text().splitlines()
    assert lines[0] == "vpp_stage,name,step,micro_step,norm,nans,shape,mean,dtype"
    assert len(lines) == 1 + 8
    assert sum(line.startswith("vpp_stage") for line in lines) == 1
