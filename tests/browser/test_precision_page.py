"""The precision screen in a real browser."""

import pytest
import torch
from playwright.sync_api import expect
from web_client import serving

import vario
from vario.runs.views.tensors.precision import share_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    with torch.no_grad():
        model[0].bias[77] = 90.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    quantities = ["gradient", "weight", "moment", "activation", "activation_gradient", "distribution", "channel"]
    every = {"distribution": 2, "channel": 10}
    with vario.watch(
        model, optimizer, quantities=quantities, every=every, directory=folder, name="run", overhead="off"
    ) as monitor:
        for step in range(121):
            optimizer.zero_grad()
            loss = model(torch.randn(64, 64)).square().mean() * 10.0 ** (-step / 40)
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    with vario.start("plain", directory=folder) as run:
        run.log(a=1)
    with serving(folder) as found:
        found.folder = folder
        yield found


def test_the_table_says_what_is_lost_and_a_tensor_has_its_picture(visit, server):
    page = visit("?run=run")
    page.get_by_role("link", name="Precision").click()
    table = page.get_by_role("region", name="What each tensor would lose")
    expect(table).to_be_visible()
    expect(page.get_by_text("step 120").first).to_be_visible()
    page.get_by_label("Find a tensor").fill("0.weight")
    row = table.get_by_role("row").filter(has=page.get_by_role("cell", name="gradient", exact=True))
    lost = next(
        one for one in vario.open_run(server.folder / "run").precision("gradient").tensors if one.target == "0.weight"
    )
    assert lost.as_is["fp16"].flushed.low > 0
    expect(row).to_contain_text(f"{share_text(lost.as_is['fp16'].flushed)} to zero")
    row.get_by_role("button", name="0.weight").click()
    expect(page.get_by_role("heading", name="0.weight gradient")).to_be_visible()
    picture = page.get_by_role("img", name="Step 120")
    expect(picture).to_be_visible()
    assert picture.evaluate("canvas => canvas.width") == 61
    # A canvas is there before it is painted.
    page.wait_for_function(
        """canvas => {
            const column = canvas.getContext('2d').getImageData(canvas.width - 1, 0, 1, canvas.height).data;
            const rows = Array.from({length: canvas.height}, (_, y) => column.slice(4 * y, 4 * y + 3).join());
            return new Set(rows).size > 5;
        }""",
        arg=picture.element_handle(),
    )
    picture.hover()
    expect(page.get_by_text("% of the elements are from 2^").first).to_be_visible()
    expect(page.get_by_text("fp16 ends")).to_be_visible()


def test_channels_are_a_table_of_their_own(visit):
    page = visit("?run=run&screen=precision")
    table = page.get_by_role("region", name="Largest channels")
    expect(table.get_by_role("row").nth(1)).to_contain_text("77 (9")


def test_a_run_without_them_has_no_such_tab(visit):
    page = visit("?run=plain")
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    expect(page.get_by_role("link", name="Precision")).to_have_count(0)
    page = visit("?run=plain&screen=precision")
    expect(page.get_by_role("heading", name="No distributions yet")).to_be_visible()
