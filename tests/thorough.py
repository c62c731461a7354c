"""Second-line tests: further cases of what a faster test shows. `make test-all` runs them, `make test` does not."""

import pytest

thorough = pytest.mark.thorough


def cases(names, first):
    """Parameters of a test of which only the `first` ones are part of `make test`."""
    return [name if name in first else pytest.param(name, marks=thorough) for name in names]


def wanted(request, names, first):
    """Those of `names` that a module's fixture has to run: all where a thorough test of the module was chosen."""
    chosen = (item for item in request.session.items if item.path == request.path)
    everything = any(item.get_closest_marker("thorough") for item in chosen)
    return [name for name in names if everything or name in first]
