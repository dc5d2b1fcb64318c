# What a contributor and a newcomer do. Everything happens in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := hypothesis import-linter mypy pre-commit pytest pytest-timeout ruff

.PHONY: demo test lint format schemas bench clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all]' $(DEV)
	mkdir -p .pkg && ln -sfn .. .pkg/comm_plan
	touch $@

demo: $(STAMP)  ## profile, benchmark the network, solve, train: the whole loop
	$(BIN)/comm-plan demo

test: lint  ## lint, then every test that this machine can run
	$(BIN)/python -m pytest

lint: $(STAMP)  ## formatting, style, types, the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the code as the linters want it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(STAMP)  ## write the JSON Schemas of the documents again
	$(BIN)/python -m comm_plan.plans.schemas

bench: $(STAMP)  ## measure on emulated hosts (root on Linux); results in benchmarks/results
	$(BIN)/python -m comm_plan.benchmarks.fits_on_hosts
	$(BIN)/python -m comm_plan.benchmarks.solvers_on_hosts
	$(BIN)/python -m comm_plan.benchmarks.aggregations_on_hosts
	$(BIN)/python -m comm_plan.benchmarks.lags_on_hosts

clean:
	rm -rf $(VENV) .pkg build dist demo-output *.egg-info
