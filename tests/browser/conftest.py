import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

# Trainings and the server that tests start serve other tests too, so they lie above and beside.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "web"))

from browsing import MARKUP_NAME, Visitor, open_browser
from web_client import serving

import little_trainings

HERE = Path(__file__).parent
_kept = ExitStack()
"""Holds the browser between files."""
_found = []


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, one for all files of this folder that come one after the other."""
    if not _found:
        _found.append(_kept.enter_context(open_browser()))
    return _found[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Close it before tests of other folders: beside it there cannot be an event loop of their own."""
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _found.clear()
            _kept.close()


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


@pytest.fixture(scope="module")
def sweep_server(sweep):
    """The thirty runs of a sweep, to read."""
    with serving(sweep) as found:
        yield found


@pytest.fixture
def open_list(browser, sweep_server):
    """Open pages over the thirty runs of a sweep."""
    visitor = Visitor(browser, f"http://127.0.0.1:{sweep_server.port}/")
    yield visitor
    visitor.leave()


@pytest.fixture(scope="module")
def writable_sweep(sweep):
    """The same, where notes can be written: pages have all their controls."""
    with serving(sweep, is_writable=True) as found:
        yield found


@pytest.fixture
def visit_below(browser, tmp_path):
    """Open pages over whatever lies below `tmp_path`."""
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        yield visitor
        visitor.leave()
