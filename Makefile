# Everything happens in .venv and .dagster_home, inside this folder. Works with GNU make 3.81 and later.
.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
PORT ?= 3000
ARGS ?=

export DAGSTER_HOME := $(CURDIR)/.dagster_home

UV := $(shell command -v uv 2>/dev/null)
# uv takes the torch that fits the machine: without a GPU a much smaller one. `UV_TORCH_BACKEND=` takes the usual one.
UV_TORCH_BACKEND ?= auto
BACKEND := $(if $(UV_TORCH_BACKEND),UV_TORCH_BACKEND=$(UV_TORCH_BACKEND))
unexport UV_TORCH_BACKEND
# `make setup CONSTRAINTS=` takes the newest versions that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
PINNED := $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
# Without uv: the first Python on PATH that fits; `make setup PYTHON=/path/to/python3.12` picks another, with uv too.
FITS := >=3.11,<3.14
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& command -v $$python && break; done)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: .venv/.ui home ## Create .venv with engine, Dagster, torch and UI, in the versions of constraints.txt

.PHONY: setup-dev
setup-dev: .venv/.dev home ## Add what tests and lint need

.PHONY: home
home:
	@mkdir -p "$(DAGSTER_HOME)"
	@cmp -s dagster.yaml "$(DAGSTER_HOME)/dagster.yaml" || cp dagster.yaml "$(DAGSTER_HOME)/dagster.yaml"

# A stamp for each extra: .venv/.ui and .venv/.dev.
.venv/.%: pyproject.toml $(CONSTRAINTS)
ifneq ($(UV),)
	test -x $(BIN)/python || uv venv --python '$(if $(filter file,$(origin PYTHON)),$(FITS),$(PYTHON))' .venv
	$(BACKEND) uv pip install --python $(BIN)/python $(PINNED) -e '.[$*]'
else
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed and none is on PATH: install one, or uv, or name one with PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Installing with pip. On Linux its torch brings some GB of CUDA libraries; uv leaves them out where there is no GPU."
	test -x $(BIN)/pip || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install $(PINNED) -e '.[$*]'
endif
	@touch $@
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch", version("torch"), end=", ")'
	@echo "$$(du -sm .venv | cut -f1) MB in .venv"

.PHONY: demo
demo: setup ## Run the patients table from source to published
	$(BIN)/privacy-assets demo

.PHONY: demo-leak
demo-leak: setup ## The same with a generator that memorises: publication is blocked, exit status is not 0
	$(BIN)/privacy-assets demo --leak

.PHONY: ui
ui: setup ## Open Dagster on http://localhost:3000 (PORT=...), with the demo run in it
	@$(BIN)/python -c 'import dagster; raise SystemExit(not dagster.DagsterInstance.get().get_runs_count())' \
	|| $(BIN)/privacy-assets demo
	$(BIN)/dg dev --port $(PORT)

.PHONY: lint
lint: setup-dev ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Workers on one test each are quicker than threads inside one; three on two cores, since tests wait for processes and
# disks too. Who is done first takes half of what is left.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

.PHONY: test
test: setup-dev ## Run the tests but for the slow ones
	$(PYTEST) $(ARGS)

.PHONY: test-slow
test-slow: setup-dev ## Run the slow tests only
	$(PYTEST) -m slow $(ARGS)

.PHONY: test-all
test-all: setup-dev ## Run all tests
	$(PYTEST) -m 'slow or not slow' $(ARGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output (runs and releases in .dagster_home stay)
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
