# Strandline's chores. `make` alone lists them. CI calls the same targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
STAMP := $(VENV)/.stamp
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Processes that run tests at once. A third of their time they wait for disks and other processes.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(($(CORES) * 3 / 2)))
# Further arguments: make test PYTEST_ARGS="-k layers", make demo DEMO_ARGS="--scale 1".
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
# How many histories `make sim` plays, and the first one's seed.
SEEDS ?= 2000
SEED ?= 1
# How many processes `make kills` kills; SEED decides where.
KILLS ?= 300
# How many transactions `make histories` runs in eight processes, 100 of which are killed.
TRANSACTIONS ?= 10000

RULES := $(BIN)/ruff check
FORMAT := $(BIN)/ruff format --check
TYPES := $(BIN)/mypy
# Tests marked spark share one session, so one worker runs all of them.
PYTEST := $(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## make .venv with the pinned dependencies and this checkout

$(PYTHON):
	@tools/make-venv $(VENV)

# Build isolation is off: what builds the package is pinned in the lock file too.
$(STAMP): $(PYTHON) pyproject.toml requirements.lock
	@echo "Installing the pinned dependencies into $(VENV). The first time this takes minutes."
	$(PYTHON) -m pip install --quiet -r requirements.lock
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: $(STAMP) ## import real data on Spark and show what the system does (DEMO_ARGS=...)
	@$(BIN)/strandline demo $(DEMO_ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff: rules and format
	@$(RULES)
	@$(FORMAT)

.PHONY: types
types: $(STAMP) ## mypy, strict
	@$(TYPES)

# Everything runs, whatever fails before it; pytest last, so that its closing line is the last.
# No make within make: a recipe with one runs even when `make -n` should print it alone.
.PHONY: test
test: $(STAMP) ## lint, types and all quick tests, within 10 minutes on 2 cores
	@status=0; \
	$(RULES) || status=1; \
	$(FORMAT) || status=1; \
	$(TYPES) || status=1; \
	$(PYTEST) -m "not slow" $(PYTEST_ARGS) || status=1; \
	exit $$status

.PHONY: test-slow
test-slow: $(STAMP) ## the tests that are too long for `make test`
	@$(PYTEST) -m slow --timeout 3600 $(PYTEST_ARGS)

.PHONY: damage
damage: $(STAMP) ## flip every bit of everything that a small database stores, and read it
	@STRANDLINE_DAMAGE=full $(PYTEST) -m slow --timeout 7200 tests/tables/test_damage_everywhere.py $(PYTEST_ARGS)

.PHONY: sim
sim: $(STAMP) ## play many seeded histories in the simulator (SEEDS=2000 SEED=1)
	@$(PYTHON) -m strandline.testing.simulator --seeds $(SEEDS) --first $(SEED)

.PHONY: kills
kills: $(STAMP) ## kill processes before and after storage calls (KILLS=300 SEED=1)
	@$(PYTHON) -m tests.crash.kills --kills $(KILLS) --seed $(SEED)

.PHONY: histories
histories: $(STAMP) ## kill processes amid transactions, check what they saw (TRANSACTIONS=10000 SEED=1)
	@$(PYTHON) -m tests.txn.histories --transactions $(TRANSACTIONS) --seed $(SEED)

.PHONY: bench
bench: $(STAMP) ## run the benchmarks and print their ratios (BENCH_ARGS=...)
	@$(PYTHON) -m benchmarks $(BENCH_ARGS)

.PHONY: docs
docs: $(STAMP) ## write the generated parts of docs/ anew
	@$(PYTHON) tools/docs.py

# Stubs come from protoc itself.
.PHONY: proto
proto: $(STAMP) ## generate the protobuf modules and their stubs
	@$(PYTHON) -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/strandline/state/*.proto

.PHONY: lock
lock: ## resolve the dependencies anew and write requirements.lock
	@test -x $(PYTHON) || tools/make-venv $(VENV)
	@$(PYTHON) tools/lock.py > requirements.lock.new
	@mv requirements.lock.new requirements.lock

.PHONY: wheel
wheel: $(STAMP) ## build the wheel into dist/
	@rm -rf dist
	@$(PYTHON) -m build --wheel --no-isolation --outdir dist .

.PHONY: clean
clean: ## remove everything that the targets made, the environment included
	rm -rf $(VENV) build dist demo-lake .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
