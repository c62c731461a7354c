import sys
from pathlib import Path

import pytest

# Trainings and the server that tests start serve other tests too, so they lie above and beside.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "web"))

from browsing import MARKUP_NAME, Visitor, open_browser
from web_client import serving

import little_trainings


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, one for each file of tests."""
    with open_browser() as found:
        yield found


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Runs that were really trained: one in order, one like it but for one weight, one that broke, one badly named."""
    place = tmp_path_factory.mktemp("shown")
    little_trainings.train(place / "healthy", steps=60, quantities=["gradient", "weight", "activation", "update"])
    little_trainings.train(place / "changed", steps=60, fault=little_trainings.scale_a_weight, fault_step=30)
    little_trainings.train(place / "deeper" / "broken", steps=60, nan_step=45)
    little_trainings.train(place / MARKUP_NAME, steps=4)
    return place


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as found:
        yield found


@pytest.fixture
def visit(browser, server):
    """Open a page of the dashboard: `visit("?run=healthy")`. Whatever the page complains of fails the test."""
    visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
    yield visitor
    visitor.leave()


@pytest.fixture
def visit_below(browser, tmp_path):
    """Open pages over whatever lies below `tmp_path`."""
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        yield visitor
        visitor.leave()
