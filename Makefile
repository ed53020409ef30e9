# All files are created in .venv, .dagster_home and .airflow_home in this folder. Requires GNU make 3.81 or later.
.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
PORT ?= 3000
AIRFLOW_PORT ?= 8080
ARGS ?=

export DAGSTER_HOME := $(CURDIR)/.dagster_home
# Tests start many processes: without bytecode on disk, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

UV := $(shell command -v uv 2>/dev/null)
# uv selects the torch build for this machine, which is much smaller without a GPU. `UV_TORCH_BACKEND=` disables this.
UV_TORCH_BACKEND ?= auto
BACKEND := $(if $(UV_TORCH_BACKEND),UV_TORCH_BACKEND=$(UV_TORCH_BACKEND))
unexport UV_TORCH_BACKEND
# `make setup CONSTRAINTS=` selects the newest versions that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
PINNED := $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
# Without uv: the first supported Python on PATH. `make setup PYTHON=/path/to/python3.12` overrides it, with uv too.
FITS := >=3.11,<3.15
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
	&& command -v $$python && break; done)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

.PHONY: setup
setup: .venv/.ui home ## Create .venv with the package, Dagster, torch and UI, in the versions of constraints.txt

.PHONY: setup-dev
setup-dev: .venv/.dev home ## Add the packages for tests and lint

.PHONY: home
home:
	@mkdir -p "$(DAGSTER_HOME)"
	@cmp -s dagster.local.yaml "$(DAGSTER_HOME)/dagster.yaml" || cp dagster.local.yaml "$(DAGSTER_HOME)/dagster.yaml"

# A stamp for each extra: .venv/.ui, .venv/.dev, .venv/.docs.
.venv/.%: pyproject.toml $(CONSTRAINTS)
ifneq ($(UV),)
	test -x $(BIN)/python || uv venv --python '$(if $(filter file,$(origin PYTHON)),$(FITS),$(PYTHON))' .venv
	$(BACKEND) uv pip install --python $(BIN)/python $(PINNED) -e '.[$*]'
else
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.14 is needed and none is on PATH: install one, or uv, or name one with PYTHON=/path/to/python" >&2; exit 1; }
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
	@echo "To see it in Dagster: make ui"

.PHONY: demo-leak
demo-leak: setup ## Run it with a memorizing generator: publication is blocked, exit status is not 0
	$(BIN)/privacy-assets demo --leak

# The runs of the demo have no code location, so Dagster's first page does not show them. The log level hides the address
# of that page.
.PHONY: ui
ui: setup ## Open Dagster on http://localhost:3000/asset-groups (PORT=...), with the demo run in it
	@$(BIN)/python -c 'import dagster; raise SystemExit(not dagster.DagsterInstance.get().get_runs_count())' \
	|| $(BIN)/privacy-assets demo
	@echo "Open http://localhost:$(PORT)/asset-groups after about 30 seconds, when Dagster has started"
	$(BIN)/dg dev --port $(PORT) --log-level warning

# Airflow stores all files in .airflow_home, sends no data, loads no examples, and its UI listens on the loopback only.
# The demo prints the messages of the gate only; a table, not a traceback, shows the reason why a table is blocked.
ON_AIRFLOW := demo-airflow demo-airflow-leak ui-airflow
$(ON_AIRFLOW): export AIRFLOW_HOME := $(CURDIR)/.airflow_home
$(ON_AIRFLOW): export AIRFLOW__CORE__DAGS_FOLDER := $(CURDIR)/examples/airflow/demo
$(ON_AIRFLOW): export AIRFLOW__CORE__LOAD_EXAMPLES := false
$(ON_AIRFLOW): export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS := true
$(ON_AIRFLOW): export AIRFLOW__API__HOST := 127.0.0.1
$(ON_AIRFLOW): export AIRFLOW__API__PORT := $(AIRFLOW_PORT)
$(ON_AIRFLOW): export AIRFLOW__API__BASE_URL := http://localhost:$(AIRFLOW_PORT)
$(ON_AIRFLOW): export PRIVACY_ASSETS_RELEASES := $(CURDIR)/.airflow_home/gate/releases
$(ON_AIRFLOW): export PYTHONWARNINGS := ignore
demo-airflow demo-airflow-leak: export AIRFLOW__LOGGING__LOGGING_LEVEL := ERROR
demo-airflow demo-airflow-leak: export AIRFLOW__LOGGING__NAMESPACE_LEVELS := airflow.task.operators=INFO,task=CRITICAL
demo-airflow demo-airflow-leak: export AIRFLOW__LOGGING__LOG_FORMAT := %(message)s
LOOK := To see the graph, and to run it there: make ui-airflow

.PHONY: demo-airflow
demo-airflow: .venv/.airflow ## Run the demo on Airflow 3, with SQLite in .airflow_home and without background processes
	@$(BIN)/airflow db migrate >/dev/null
	@echo "patients: a non-leaking generator, by airflow dags test"
	@$(BIN)/airflow dags test patients
	@echo "releases  $$PRIVACY_ASSETS_RELEASES" && echo "$(LOOK)"

.PHONY: demo-airflow-leak
demo-airflow-leak: .venv/.airflow ## Run it with a memorizing generator: task attest fails and the table is not published
	@$(BIN)/airflow db migrate >/dev/null
	@echo "patients_leak: a generator that memorizes, by airflow dags test"
	@$(BIN)/airflow dags test patients_leak || { \
	echo "release   none: attest failed, and so publish did not run"; echo "$(LOOK)"; exit 1; }

.PHONY: ui-airflow
ui-airflow: .venv/.airflow ## Open Airflow on http://localhost:8080 (AIRFLOW_PORT=...), no password: trigger patients_leak there
	PATH="$(CURDIR)/$(BIN):$$PATH" airflow standalone  # it starts its components by this name

.PHONY: lint
lint: setup-dev ## Check style, format, types, English, and the density of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.plain_english --count
	$(BIN)/python -m tests.mutations --check
	$(BIN)/python -m tests.code_density

.PHONY: fix
fix: setup-dev ## Repair style and format where ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: .venv/.docs ## Build the documentation site in build/docs; warnings, such as a broken link, are errors
	$(BIN)/python -m sphinx -c docs -W --keep-going -q . build/docs
	@echo "Open build/docs/index.html"

.PHONY: links
links: .venv/.docs ## Check the external links of the documentation, which needs the network
	$(BIN)/python -m sphinx -c docs -b linkcheck -q . build/links

.PHONY: english
english: setup-dev ## List sentences that readers stumble over
	$(BIN)/python -m tests.plain_english

.PHONY: count
count: setup-dev ## Count files, code lines, importers, import cycles and documented arguments (ARGS=-v lists them)
	$(BIN)/python -m tests.code_counts $(ARGS)

# Workers with one test each are faster than threads inside one. Three run on two cores, because tests also wait for
# processes and disks. An idle worker takes half of the remaining tests.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

.PHONY: test
test: setup-dev ## Run all tests except the slow ones
	$(PYTEST) $(ARGS)

.PHONY: test-slow
test-slow: setup-dev ## Run the slow tests only, without the weekly ones
	$(PYTEST) -m 'slow and not weekly' $(ARGS)

.PHONY: test-weekly
test-weekly: setup-dev ## Run the weekly tests only: studies, calibrations, and more cases of long tests
	$(PYTEST) -m weekly $(ARGS)

.PHONY: test-all
test-all: setup-dev ## Run all tests
	$(PYTEST) -m 'slow or not slow' $(ARGS)

.PHONY: coverage
coverage: setup-dev ## Run all tests except the slow ones, and print how much of the package they reach
	$(PYTEST) --cov --cov-report=term:skip-covered $(ARGS)

.PHONY: mutations
mutations: setup-dev ## Apply known faults to a copy of the package; a test must detect each (ARGS="seed" selects some)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutations $(ARGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output (runs and releases in .dagster_home stay)
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
