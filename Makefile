# What a contributor and a newcomer do. Everything happens in .venv.
PYTHON ?= python3
MUTATIONS ?= 1000000
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# pytest-xdist may wait for ever for what replaces a worker that died: better an end.
WORKERS := --numprocesses 2 --max-worker-restart 0
LINTERS := ruff-check ruff-format mypy lint-imports

.PHONY: demo test test-fast test-faults lint $(LINTERS) format tables docs papers bench \
	clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # knows --group
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[all]' \
		--group dev
	# pip would take one core, and compile what nothing here imports
	$(BIN)/python -m compileall -qq -j 0 -x '^\./\.|/tests/|/transformers/models/[^a]' \
		$(VENV)/lib . || true
	mkdir -p .pkg && ln -sfn .. .pkg/comm_plan
	touch $@

demo: $(STAMP)  ## profile, benchmark the network, solve, train: the whole loop
	$(BIN)/comm-plan demo

test: lint  ## lint, then every test that this machine can run
	$(BIN)/python -m pytest $(WORKERS) --dist loadgroup

test-fast: $(STAMP)  ## the tests that need no ranks in processes of their own
	$(BIN)/python -m pytest -m 'not slow' $(WORKERS)

test-faults: $(STAMP)  ## what takes hours: kills, stress, MUTATIONS of hostile files
	$(BIN)/python -m pytest -m faults
	$(BIN)/python -m pytest tests/test_fuzzing.py --mutations $(MUTATIONS) \
		--timeout 0 $(WORKERS)

lint: $(LINTERS)  ## style, formatting, types, the direction of imports; pre-commit too

ruff-check: $(STAMP)
	$(BIN)/ruff check .

ruff-format: $(STAMP)
	$(BIN)/ruff format --check .

mypy: $(STAMP)
	$(BIN)/mypy

lint-imports: $(STAMP)
	$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the code as the linters want it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: $(STAMP)  ## write again what is made from code and results: schemas, tables
	$(BIN)/python -m comm_plan.plans.schemas
	$(BIN)/python -m comm_plan.plans.compression.table
	$(BIN)/python -m comm_plan.tests.runtime.semantics
	$(BIN)/python -m comm_plan.benchmarks.predictions_tables

docs: $(STAMP)  ## the site, in site/; a broken link is an error
	$(BIN)/mkdocs build --strict --quiet

papers: $(STAMP)  ## docs/reproduction.md: the papers' figures beside ours
	$(BIN)/comm-plan reproduce -o docs/reproduction.md --trainings reproduction/data

bench: $(STAMP)  ## measure on emulated hosts (root on Linux); results in benchmarks/results
	$(BIN)/python -m comm_plan.benchmarks.fits_on_hosts
	$(BIN)/python -m comm_plan.benchmarks.aggregations_on_hosts
	$(BIN)/python -m comm_plan.benchmarks.gtopk_overlap
	$(BIN)/python -m comm_plan.benchmarks.sparse_volume
	$(BIN)/python -m comm_plan.benchmarks.engine_on_ranks
	$(BIN)/python -m comm_plan.benchmarks.compiled_blocks
	$(BIN)/python -m comm_plan.benchmarks.growing_ratio
	$(BIN)/python -m pip install --quiet -c constraints.txt --group benchmarks
	for task in digits char-lm resnet20-mnist; do \
		$(BIN)/python -m comm_plan.benchmarks.accuracy measure $$task || exit 1; done
	$(BIN)/python -m comm_plan.benchmarks.accuracy table
	$(BIN)/python -m comm_plan.benchmarks.steadiness
	$(BIN)/python -m comm_plan.benchmarks.time_to_accuracy --task digits
	for task in char-lm char-lm-rates; do \
		$(BIN)/python -m comm_plan.benchmarks.time_to_accuracy --task $$task \
			--rates 100mbit --seeds 1 || exit 1; done
	$(BIN)/python -m comm_plan.benchmarks.time_to_accuracy --task char-lm-2x --rates 100mbit
	$(BIN)/python -m comm_plan.benchmarks.time_to_accuracy --task cnn-digits --rates 1gbit
	for rate in 100mbit 1gbit 10gbit none; do for workload in cnn replay; do \
		$(BIN)/python -m comm_plan.benchmarks.predictions_on_hosts \
			--rate $$rate --workload $$workload || exit 1; done; done
	$(BIN)/python -m comm_plan.benchmarks.predictions_on_hosts \
		--hosts 8 --network-hosts 4 --rate 1gbit --workload replay
	$(BIN)/python -m comm_plan.benchmarks.predictions_on_hosts \
		--hosts 8 --network-hosts 4 --rate 100mbit --workload replay-small
	$(BIN)/python -m comm_plan.benchmarks.predictions_tables
# What judges, and so may end this, comes last.
	$(BIN)/python -m comm_plan.benchmarks.soak
	$(BIN)/python -m comm_plan.benchmarks.deaths

clean:
	rm -rf $(VENV) .pkg build dist site demo-output *.egg-info
