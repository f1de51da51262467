# A fresh machine needs Python 3.11+ and a package index; everything else is made here.
#   make demo    the main job on the embedded model
#   make test    the tests          make check    what CI runs: format, lint, types, tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pinned requirements go in first, so that installing the package itself can pull in nothing else.
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_ARGS ?=
TEST_ARGS ?=

.PHONY: help venv fetch demo test lint check format clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "entmtp needs Python 3.11 or newer; pass one with PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.core: requirements.txt pyproject.toml $(VENV)/.made
	$(PIP) install --quiet --requirement requirements.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.core
	$(PIP) install --quiet --requirement requirements-dev.txt
	touch $@

venv: $(VENV)/.dev

# Does nothing, and needs no network, once the model is in the cache.
fetch: $(VENV)/.core
	$(BIN)/entmtp fetch smollm2-135m

demo: fetch
	$(BIN)/entmtp demo $(DEMO_ARGS)

test: $(VENV)/.dev fetch
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(TEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
