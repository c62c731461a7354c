# `make demo` and `make test` work on a fresh clone: whatever they need is installed into .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PAGE := src/vario/web/built/index.html
NATIVE := src/vario/backends/native/reduce.so

# Always write bytecode: without it each test process would compile torch again, which is more than half of its import time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: grafana help demo check test test-all quick-tests ready page-checks attack audit lowest lint docs site site-serve changelog coverage dist peers mindspore page browser sshd matrix bench world clean

help:
	@echo "make demo   train a small transformer for a minute, live in the dashboard, and break it"
	@echo "make check  for everyday work, two minutes: lint, types and the quick tests"
	@echo "make test   what CI runs: lint, types, tests; lists the 50 slowest at the end"
	@echo "make test-all   make test plus the thorough tests (twice the time)"
	@echo "make attack  damaged and malicious runs, logs, configs and requests: ten times as many as in make test"
	@echo "make audit  check the pinned packages for known vulnerabilities (needs an advisory service)"
	@echo "make lowest  tests that need no torch, on the oldest packages that pyproject.toml allows"
	@echo "make grafana  check the dashboard for Grafana against the types that Grafana publishes (npm)"
	@echo "make lint   only ruff, mypy and vermin"
	@echo "make page   build the dashboard from frontend/ (Node 20)"
	@echo "make docs   regenerate docs/config.md, cli.md, rules.md and frontend/src/api.ts"
	@echo "make site   build the documentation site into site/"
	@echo "make changelog   preview the changelog from changes/; RELEASE=1 moves it into CHANGELOG.md"
	@echo "make coverage   coverage of the reading half by the fast tests (15 minutes); fails below a threshold"
	@echo "make dist   build the wheel and the source archive into dist/"
	@echo "make peers  install packages that tests compare with into .peers: mindstudio-probe, torchao, DeepSpeed, Megatron"
	@echo "make mindspore  install MindSpore into .mindspore (800 MB), for the tests that train with it"
	@echo "make matrix TORCH=2.8.0   the torch tests on that release (several GB); TRANSFORMERS=4.57.6 sets transformers"
	@echo "make bench  overhead, store, memory and progress figures for this machine"
	@echo "make world  watch programs that do not use vario, including other packages' loops; writes docs/world.md"
	@echo "make clean  remove .venv and caches"

# Python compiles modules when they are imported: compiling all of torch and its company first takes a minute.
INSTALL := pip install --quiet --no-compile
PIP := bin/$(INSTALL)

# torch comes first, on its own line, so that an index of CPU wheels can be given with PIP_EXTRA_INDEX_URL.
$(READY): pyproject.toml requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) torch==2.13.0
	$(BIN)/$(INSTALL) -r requirements-dev.txt
	$(BIN)/$(INSTALL) --editable .
	touch $@

# The dashboard. Building a wheel builds it too; an editable install does not.
page: $(PAGE)

$(PAGE): $(shell find frontend -type f -not -path '*/node_modules/*' -not -path '*/.tests/*')
	cd frontend && npm ci --silent --no-audit --no-fund && npm run --silent build
	touch $@

# Tests open the page in a real browser.
browser:
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  (apt-get update -qq && apt-get install -y -qq chromium >/dev/null)

# Tests of runs on other hosts log in to a real SSH server.
sshd:
	test -x /usr/sbin/sshd || (apt-get update -qq && apt-get install -y -qq --no-install-recommends openssh-server >/dev/null)

# Installing builds it too. Without a C compiler there is none, and vario does without it.
$(NATIVE): src/vario/backends/native/reduce.c tools/build_native.py
	$(PYTHON) tools/build_native.py

demo: $(READY) page
	$(BIN)/vario demo --serve

# Files in the order of tests/conftest.py, not the one with most tests first: those are short.
BY_FILE := --dist loadfile --no-loadscope-reorder

# Three files of tests at a time, also on two cores: trainings of several ranks wait more than they compute. Before that,
# two parts of the set-up. Runs are written to memory where there is enough of it.
IN_MEMORY := $(shell test "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 6000000 2>/dev/null && echo TMPDIR=/dev/shm)
test: ready
	$(IN_MEMORY) $(BIN)/python -m pytest -n 3 $(BY_FILE) -m "not thorough" --durations 50 --durations-min 1

# Chosen by measured time: no processes that train, no browser, no compiler, no trainers of other packages.
NOT_QUICK := $(addprefix tests/,cli/test_memory_command.py cli/test_progress_command.py cli/test_run_command.py \
  reports/test_progress_plot.py store/test_holding.py store/test_rollups.py sinks/test_store_kill.py \
  sinks/test_live_sinks.py logs/test_odd_files.py core/test_step_turns.py rules/test_healthy_loops.py) \
  $(addprefix tests/runs/,files/test_bombs.py views/test_big_grid.py compare/test_difference.py views/test_heat.py \
  views/test_heat_ranks.py live/test_run_watch.py findings/test_diagnosis.py findings/test_time_verdict.py \
  views/test_curves.py)
QUICK := $(filter-out $(NOT_QUICK),$(wildcard $(addsuffix /test_*.py,$(addprefix tests/,core core/* rules statistics sinks \
  store logs runs runs/* runs/views/* reports cli)))) $(addprefix tests/,test_architecture.py test_config.py test_public_api.py test_versions.py) \
  tests/contract/test_contract.py tests/backends/numpy/test_numpy_backend.py \
  $(addprefix tests/backends/torch/test_,hooks.py activations.py summaries.py checksums.py host_copy.py uncalled_models.py) \
  $(addprefix tests/probes/,tensors/test_gradients.py tensors/test_moments.py test_passes.py inputs/test_batches.py \
  optimizer/test_learning_rate.py)
check:
	$(MAKE) --no-print-directory -j 2 --output-sync=target lint quick-tests

quick-tests: $(READY)
	$(IN_MEMORY) $(BIN)/python -m pytest -n 2 $(BY_FILE) -m "not thorough and not slow" $(QUICK)

test-all: ready
	$(IN_MEMORY) $(BIN)/python -m pytest -n 3 $(BY_FILE)

ready:
	$(MAKE) --no-print-directory -j 2 page-checks lint peers mindspore browser sshd $(NATIVE)

page-checks: page
	cd frontend && npm run --silent check && npm run --silent lint && npm test --silent

# The cases are the same every time; it ends after a quarter of an hour at the latest.
ATTACKS := tests/attack tests/runs/files/test_untrusted_folders.py tests/runs/files/test_bombs.py tests/cli/test_escaped_names.py \
  tests/test_odd_names.py tests/web/test_connections.py tests/web/test_slow_reading.py tests/web/test_web_safety.py \
  tests/web/test_web_fuzz.py
attack: $(READY) page
	VARIO_ATTACK=10 timeout 900 $(BIN)/python -m pytest -n 2 --dist worksteal --least-cases 20000 $(ATTACKS)

# pip-audit has an environment of its own: it brings versions of what .venv pins otherwise.
audit: .audit/.ready
	.audit/bin/python tools/audit.py .audit/bin/pip-audit

.audit/.ready: Makefile
	test -x .audit/bin/python || $(PYTHON) -m venv .audit
	.audit/$(PIP) pip-audit==2.10.1
	touch $@

# What reads runs, logs and configs needs no torch: all such tests but those that import it, and a few that train in a
# process. Older packages call what newer ones warn of, and pyarrow 15 imports pandas wherever it is installed.
READING_TESTS := $(wildcard $(addsuffix /test_*.py,$(addprefix tests/,rules sinks statistics store runs runs/* \
  runs/views/* reports logs cli)))
IMPORT_TORCH := $(shell grep -lE '^(import|from) (torch|little_trainings|slowed_trainings|sweep)\b' $(READING_TESTS))
READING_HALF := $(filter-out $(IMPORT_TORCH) $(addprefix tests/,sinks/test_opentelemetry.py rules/test_healthy_loops.py runs/table/test_effects.py \
    runs/notes/test_notes.py reports/test_progress_plot.py cli/test_convert_and_import.py cli/test_ls_columns.py), \
    $(READING_TESTS)) \
  tests/contract tests/backends/numpy tests/attack tests/web/test_odd_runs.py tests/web/test_slow_reading.py \
  $(addprefix tests/,test_config.py training/test_folders.py training/test_step_buffer.py training/test_writer.py) \
  $(addprefix tests/core/test_,records.py registry.py schedule.py selector.py text.py)
lowest: .lowest/.ready
	.lowest/bin/python -m pytest -W ignore::DeprecationWarning $(READING_HALF) \
	  --deselect tests/runs/views/test_curves.py::test_looking_at_a_run_imports_neither_pandas_nor_a_framework

.lowest/.ready: pyproject.toml tools/lowest_bounds.py
	test -x .lowest/bin/python || $(PYTHON) -m venv .lowest
	$(PYTHON) tools/lowest_bounds.py torch transformers tensorboard wandb mlflow trackio mcp otel remote > .lowest/requirements.txt
	.lowest/$(PIP) -r .lowest/requirements.txt $(shell grep -E '^pytest' requirements-dev.txt)
	.lowest/$(PIP) --no-deps --editable .
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
# Everything runs on Python 3.10: its grammar, and what its standard library has.
	$(BIN)/vermin --quiet --violations --no-tips --target=3.10- --exclude str.decode --exclude long src bench tools examples tests

docs: $(READY)
	$(BIN)/python tools/make_docs.py

# In a folder of its own: the types are needed for this alone.
grafana:
	$(PYTHON) tools/check_grafana.py .grafana

# MkDocs has an environment of its own: it reads vario's sources and imports none of them.
site: .site/.ready
	NO_MKDOCS_2_WARNING=1 .site/bin/mkdocs build --strict --quiet

site-serve: .site/.ready
	NO_MKDOCS_2_WARNING=1 .site/bin/mkdocs serve

.site/.ready: requirements-site.txt
	test -x .site/bin/python || $(PYTHON) -m venv .site
	.site/$(PIP) -r requirements-site.txt
	touch $@

# The version stands in one place; a release is the commit that raises it there and runs `make changelog RELEASE=1`.
VERSION = $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' src/vario/core/package.py)
changelog: .site/.ready
	.site/bin/towncrier build --version $(VERSION) $(if $(RELEASE),--yes,--draft)

# The page goes into both: whoever installs from them needs no Node.
dist: $(READY) page
	rm -rf dist
	$(BIN)/python -m hatchling build

# pytest-cov stays out of .venv: it would slow down every other call of pytest there.
# 93 % of lines were measured on 2026-11-19; parts of the server and of commands run only in other tests.
FAST_TESTS := $(READING_HALF) $(READING_TESTS)
LEAST_COVERAGE := 91
coverage: $(READY) page .coverage-tools/.ready
	PYTHONPATH=.coverage-tools COVERAGE_FILE=.coverage-tools/.coverage $(BIN)/python -m pytest $(FAST_TESTS) \
	  -m "not thorough and not slow" --cov --cov-report=term:skip-covered --cov-fail-under=$(LEAST_COVERAGE)

.coverage-tools/.ready: Makefile | $(READY)
	$(BIN)/$(INSTALL) --no-deps --target .coverage-tools pytest-cov==7.1.0 coverage==7.17.2
	touch $@

# Tests read what mindstudio-probe writes and compare with what it computes: each release in a folder of its own, used
# through PYTHONPATH on top of .venv. 1.3.0 and 8.3.0 are older than numpy 2, so they get the numpy and pandas they ask for.
# torchao stays out of .venv because transformers imports whatever torchao it finds, and warns of it; DeepSpeed and
# Megatron because mindstudio-probe and the trainers behave otherwise where they can be imported.
PEERS := 26.2.0 8.3.0 1.3.0
peers: .peers/.ready

.peers/.ready: requirements-peers.txt requirements-engines.txt Makefile | $(READY)
	rm -rf .peers
	$(BIN)/$(INSTALL) --no-deps --target .peers/common -r requirements-peers.txt
	$(BIN)/$(INSTALL) --no-deps --target .peers/older numpy==1.26.4 pandas==2.0.3
	for v in $(PEERS); do $(BIN)/$(INSTALL) --no-deps --target .peers/$$v mindstudio-probe==$$v || exit 1; done
	$(BIN)/$(INSTALL) --no-deps --target .peers/torchao torchao==0.18.0
	DS_BUILD_OPS=0 $(BIN)/$(INSTALL) --no-deps --target .peers/engines -r requirements-engines.txt
	touch $@

# MindSpore needs an older numpy than the rest. Where there is no wheel of it, the tests that train with it are skipped and
# say why; where there is one, it has to be installable.
mindspore: .mindspore/.ready

HAS_MINDSPORE := import sys, platform; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 12) and \
  sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")))
.mindspore/.ready: requirements-mindspore.txt
	test -d .mindspore || $(PYTHON) -m venv .mindspore
	if $(PYTHON) -c '$(HAS_MINDSPORE)'; then .mindspore/$(PIP) --only-binary :all: -r requirements-mindspore.txt; \
	  else echo "there is no MindSpore for this Python and system" | tee .mindspore/missing.txt; fi
	touch $@

# The torch half of the tests on another release of torch and of transformers, from the package index, in an environment
# of its own. What else tests need has the versions of .venv. `docs/versions.md` keeps the results.
TORCH ?= 2.6.0
TRANSFORMERS ?= $(if $(filter 2.6.% 2.7.% 2.8.%,$(TORCH)),4.57.6,5.17.0)
MATRIX := .matrix-$(TORCH)-$(TRANSFORMERS)
TORCH_HALF := tests/backends tests/contract tests/probes tests/integrations tests/end_to_end tests/analysis tests/engines/test_choice.py \
  tests/engines/test_torch_engines.py tests/engines/test_trainer_engines.py tests/training/test_actions.py \
  tests/training/test_failure_policy.py tests/training/test_launch.py tests/training/test_monitor.py tests/core/test_clock.py tests/test_versions.py
NOT_IN_MATRIX := torch|transformers|mypy|ruff|vermin|playwright|schemathesis|pandas-stubs|pyarrow-stubs|types-PyYAML

# Compiled graphs are cached by their operators: what another version of these has left would be found again.
matrix: $(MATRIX)/.ready | .peers/torchao
	rm -rf $(MATRIX)/inductor
	TORCHINDUCTOR_CACHE_DIR=$(abspath $(MATRIX)/inductor) $(MATRIX)/bin/python -m pytest -n 2 $(BY_FILE) -m "not thorough" --color=no \
	  --junitxml=$(MATRIX)/results.xml $(TORCH_HALF)

$(MATRIX)/.ready: pyproject.toml requirements-dev.txt
	test -x $(MATRIX)/bin/python || $(PYTHON) -m venv $(MATRIX)
	$(MATRIX)/bin/pip install --quiet --no-cache-dir torch==$(TORCH)
	grep -vE '^($(NOT_IN_MATRIX))==' requirements-dev.txt > $(MATRIX)/requirements.txt
	$(MATRIX)/bin/pip install --quiet --no-cache-dir -r $(MATRIX)/requirements.txt transformers==$(TRANSFORMERS)
	$(MATRIX)/bin/pip install --quiet --no-cache-dir --no-deps --editable .
	touch $@

# One of these tests quantizes with torchao; `make peers` brings everything that others need.
.peers/torchao: | $(MATRIX)/.ready
	$(MATRIX)/bin/pip install --quiet --no-deps --target $@ torchao==0.18.0

# The tools that vario is measured against stay out of .venv.
.venv-bench/.ready: pyproject.toml requirements-bench.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet torch==2.13.0
	.venv-bench/bin/pip install --quiet -r requirements-bench.txt
	.venv-bench/bin/pip install --quiet --editable .
	touch $@

bench: .venv-bench/.ready
	.venv-bench/bin/python bench/overhead.py --cpu
	.venv-bench/bin/python bench/overhead.py --distributed
	.venv-bench/bin/python bench/collectives.py
	.venv-bench/bin/python bench/store.py
	.venv-bench/bin/python bench/dashboard.py
	.venv-bench/bin/python bench/memory.py
	.venv-bench/bin/python bench/progress.py
	.venv-bench/bin/python bench/scale.py tensors 10000
	.venv-bench/bin/python bench/scale.py numbers 10000
	.venv-bench/bin/python bench/scale.py memory 10000

# Real packages with loops of their own, in an environment of its own: they pull each other's versions up and down.
.world/.ready: pyproject.toml requirements-world.txt
	test -x .world/bin/python || $(PYTHON) -m venv .world
	.world/bin/pip install --quiet torch==2.13.0
	.world/bin/pip install --quiet -r requirements-world.txt
	.world/bin/pip install --quiet --editable .
	touch $@

world: .world/.ready
	.world/bin/python tests/world --write docs/world.md

clean:
	rm -rf .venv .venv-bench .world .audit .site .grafana site dist .coverage-tools .lowest .matrix-* .peers .mindspore frontend/node_modules src/vario/web/built .mypy_cache .pytest_cache .ruff_cache
