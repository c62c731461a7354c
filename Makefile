# `make demo` and `make test` work on a fresh clone: whatever they need is installed into .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo test lint docs bench clean

help:
	@echo "make demo   train a small transformer for a minute, break it, see what vario says"
	@echo "make test   everything CI checks: lint, types, tests"
	@echo "make lint   ruff and mypy alone"
	@echo "make docs   write docs/config.md and docs/cli.md anew"
	@echo "make bench  overhead and store figures for this machine"
	@echo "make clean  forget .venv and caches"

# torch comes first, on its own line, so that an index of CPU wheels can be given with PIP_EXTRA_INDEX_URL.
$(READY): pyproject.toml requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -r requirements-dev.txt
	$(BIN)/pip install --quiet --editable .
	touch $@

demo: $(READY)
	$(BIN)/vario demo

test: lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python tools/make_docs.py

# The tools that vario is measured against stay out of .venv.
.venv-bench/.ready: pyproject.toml requirements-bench.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet torch==2.13.0
	.venv-bench/bin/pip install --quiet -r requirements-bench.txt
	.venv-bench/bin/pip install --quiet --editable .
	touch $@

bench: .venv-bench/.ready
	.venv-bench/bin/python bench/overhead.py --cpu
	.venv-bench/bin/python bench/store.py

clean:
	rm -rf .venv .venv-bench .mypy_cache .pytest_cache .ruff_cache
