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

bench: $(READY)
	$(BIN)/python bench/overhead.py --cpu
	$(BIN)/python bench/store.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
