# The commands of this project; `make` alone lists them. Each one makes .venv when it is missing or
# older than what it was made from. The first time takes minutes: torch is a large download.

PYTHON ?= python3
# Where torch comes from. PyPI's Linux build holds CUDA (gigabytes); for the small CPU build:
#   make test TORCH_PIP="--index-url https://download.pytorch.org/whl/cpu"
TORCH_PIP ?=
# Optional parts to install for the tests, and those of the laboratory in reproduction/; add "text"
# to the latter for the language pipeline (about 1 GB).
EXTRAS ?= dev,docs,molecules,serve,export
LAB ?= images
# More arguments for pytest, as in: make test PYTEST="-k bundle"
PYTEST ?=
# How many tests run at a time; 0 for one after the other in this process.
WORKERS ?= auto

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests' graphs are tiny: more threads only wait for each other, and on a machine with two
# cores they make everything slower. `make bench` and `make demo` choose for themselves.
test test-all: export OMP_NUM_THREADS ?= 1
# New random examples where time is not short; `make test` repeats the same ones.
test-all: export HYPOTHESIS_PROFILE ?= search

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench results clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

demo: .venv/.installed  ## train a model on generated data, and judge it where the data shift
	$(BIN)/gduq train cbas/color/concept

test: lint  ## lint, types, then all tests but the slow ones
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m "not slow" $(PYTEST)

test-all: lint  ## the same with the slow tests
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(PYTEST)

lint: .venv/.installed-tests  ## style and types only
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: .venv/.installed-tests  ## the table of speed
	$(BIN)/python reproduction/benchmarks/speed.py

results: .venv/.installed-tests  ## the pages of results, from results/comparison-*.csv
	$(BIN)/python -m gduq_reproduction.pages

clean:  ## remove outputs and caches; `rm -rf .venv` starts over entirely
	rm -rf out dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# -- the environment ---------------------------------------------------------------------------

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "gduq needs Python 3.10 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  $(PYTHON) -m venv --clear .venv
	@echo "Installing into .venv ..."
	$(PIP) $(TORCH_PIP) torch
	$(PIP) --editable '.[molecules,serve]'
	@touch $@

.venv/.installed-tests: .venv/.installed reproduction/pyproject.toml requirements-oracles.txt
	$(PIP) --editable '.[$(EXTRAS)]' --editable './reproduction[$(LAB)]'
	$(PIP) --no-deps --requirement requirements-oracles.txt
	@touch $@
