# Everything a person does here is a verb below; `make` alone prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SEEDS ?= 200
FROM ?= 1000
SECONDS ?= 60
SEED ?= 7
WORKERS ?= 5
N ?= 3
HISTORIES := tests/unit/test_one_engine.py
# The files with tests that run alone: to collect all the others for them would take most of a minute.
ALONE = $(shell grep --recursive --files-with-matches --include 'test_*.py' 'mark\.alone' tests)

.DEFAULT_GOAL := help
.PHONY: help setup lock native demo up docs terminal wheel fmt check test tests parallel alone histories nightly mutants sim chaos \
	bench fairness policies hosts gpu-kit clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

PIP := $(BIN)/pip --disable-pip-version-check install
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet

# What `weft demo` and `weft up` need; a compiler in a wheel only where the machine has none.
$(VENV)/.demo: embedded.lock sharing.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r embedded.lock
	command -v cc >/dev/null || $(PIP) --require-hashes -r sharing.lock
	$(PIP) --quiet --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.done: requirements.lock $(VENV)/.demo
	$(PIP) --require-hashes -r requirements.lock
	touch $@

setup: $(VENV)/.done ## make .venv from the locked, hashed requirements

lock: ## resolve the three locks again from pyproject.toml (needs uv)
	$(LOCK) --extra embedded --extra sharing --extra report --extra ssh --extra data --extra dev --output-file requirements.lock
	$(LOCK) --extra embedded --extra build --constraint requirements.lock --output-file embedded.lock
	awk '/^[^ ]/ { mine = index($$0, "ziglang==") == 1 } mine' requirements.lock >sharing.lock

native: setup ## compile what jobs that share a GPU are given, and the emulated driver (needs cc or ziglang)
	@$(BIN)/python -m weft.sharing.native && $(BIN)/python -m weft.emulation.native

demo: $(VENV)/.demo ## the main job: real work on an embedded cluster, about two minutes
	@$(BIN)/weft demo

up: $(VENV)/.demo ## a local cluster that stays until Ctrl-C
	@$(BIN)/weft up

docs: setup ## build the documentation, which the gateway serves at /docs, for the wheel and the image
	@$(BIN)/python -m tests.support.site

terminal: ## fetch xterm.js, the terminal of the dashboard, into the package (needs npm)
	@$(PYTHON) deploy/terminal.py

wheel: docs ## build the wheel into dist/
	$(BIN)/pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

fmt: setup ## format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: setup ## formatting, lints, strict types, import walls, wording of new text
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.prose

test: check tests ## check, then the tests of each push: about 20 minutes on two cores

tests: setup
	@$(MAKE) --no-print-directory --keep-going parallel alone TIER="and not nightly"

parallel:
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 30 -m "not alone $(TIER)" \
		$(if $(WITHOUT),--ignore $(WITHOUT))

alone:
	$(BIN)/pytest --durations 30 -m "alone $(TIER)" $(ALONE)

# `parallel` gives a file to one worker, whose servers all its tests share. This one has thousands and needs none.
histories:
	$(BIN)/pytest -n $(WORKERS) --dist load --durations 30 $(HISTORIES)

nightly: check ## check, then every test, each with all its seeds and variants: hours
	@failed=0; WEFT_TESTS=nightly PYTEST_ADDOPTS="--timeout 600" $(MAKE) --no-print-directory --keep-going \
	parallel alone histories WITHOUT=$(HISTORIES) || failed=1; \
	$(MAKE) --no-print-directory --keep-going mutants sim chaos SEEDS=1000 SECONDS=300 FAILOVER=1 || failed=1; exit $$failed

mutants: setup ## ONLY="walk.py": small mistakes in the product, each of which its tests must find, about five minutes
	@$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

sim: setup ## SEEDS=200 FROM=1000: whole clusters in virtual time, each seed with its own troubles
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM)

bench: setup ## what Weft is for, measured on this machine
	@$(BIN)/python -m tests.bench

fairness: setup ## SEED=7: what a quiet tenant notices of a hostile one, about fifteen minutes
	@$(BIN)/python -m tests.bench fairness --seed $(SEED)

policies: setup ## the tables of tests/bench/measured/pal.md, from WEFT_DATA: about an hour
	@$(BIN)/python -m tests.bench.policies

chaos: setup ## faults, a hostile tenant and a rogue node on real servers, then an audit: make chaos SECONDS=60 SEED=7 FAILOVER=1 HOSTS=3
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED) $(if $(FAILOVER),--failover) $(if $(HOSTS),--hosts $(HOSTS))

hosts: setup ## N=3: hosts to try a cluster on, each with a Docker engine of its own, until Ctrl-C (needs root)
	@$(BIN)/python -m tests.hosts --count $(N)

gpu-kit: setup ## dist/gpu-kit.tar.gz: tests for a machine with an NVIDIA GPU and without a package index (sh run.sh --minutes 8)
	@$(BIN)/python -m tests.gpu.kit dist/gpu-kit.tar.gz

clean: ## remove what setup made; it names what `make up` keeps
	rm -rf $(VENV)
	@echo "kept: the data of \`make up\` in $${WEFT_HOME:-$${XDG_DATA_HOME:-$$HOME/.local/share}/weft}"
	@test ! -d /var/lib/weft || echo "kept: the Postgres of clusters that root started, in /var/lib/weft"
