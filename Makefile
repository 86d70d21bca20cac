# `make demo`, `make serve` and `make test` each do all the set-up themselves: Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo

# Python keeps what it compiled, or each of the many processes of the tests would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo serve test test-slow test-torture bench reproduce lint clean

help:
	@echo "make demo          set up, train on the sample shop, show recommendations and a completed bundle"
	@echo "make serve         set up, then the live service and its page with the sample shop, on http://127.0.0.1:8000/"
	@echo "make test          set up, check style, types and imports, run the tests (some minutes)"
	@echo "make test-slow     the tests that take minutes each"
	@echo "make test-torture  fuzzed requests and kills against the live service (20 minutes)"
	@echo "make bench         speed and memory as one table, and in runs/bench.json (half an hour without a GPU)"
	@echo "make reproduce     the paper's tables on Youshu (BUNDLEMAGE_DATA names the data; a day without a GPU)"
	@echo "make lint          only style, types and imports"
	@echo "make clean         remove the environment, runs and caches"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Versions are pinned for the build, too, which -c alone would not do.
$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (once; a few minutes on a slow network) ..."
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.serve: $(VENV)/.core
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.core
	@printf "\n%s\n\n" "── The sample shop ─────────────────────────────────────────────────────────────────"
	@$(BIN)/bundlemage data stats
	@printf "\n%s\n\n" "── Training on it, and how good the model is ───────────────────────────────────────"
	@$(BIN)/bundlemage train --output $(DEMO) --overwrite
	@printf "\n%s\n\n" "── Bundles for the user u0007 ──────────────────────────────────────────────────────"
	@$(BIN)/bundlemage recommend $(DEMO) --user u0007 -k 3
	@printf "\n%s\n\n" "── Two games of a series: what else belongs into the bundle, for this user? ────────"
	@$(BIN)/bundlemage complete $(DEMO) --user u0007 --items g0022,g0401 -k 5
	@printf "\n%s\n" "Live, with a page: make serve"
	@printf "%s\n" "Your own shop: $(BIN)/bundlemage train FOLDER -o MODEL  (README.md says what goes into FOLDER)"

# Options go in SERVE: make serve SERVE='--port 9000'
serve: $(VENV)/.serve
	@mkdir -p runs
	@cd runs && ../$(BIN)/bundlemage serve $(SERVE)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --verbose > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }

# Three processes for two cores: tests often wait for a service, a database or a browser.
test: lint
	$(BIN)/python -m pytest -n 3 --durations 20

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow --timeout 3600

# Options go in TORTURE: make test-torture TORTURE='--requests 5000 --kills 20 --db sqlite'
test-torture: $(VENV)/.dev
	$(BIN)/python -m tests.torture $(TORTURE)

# Options go in BENCH: make bench BENCH='--only epoch --repeat 3'
bench: $(VENV)/.core
	$(BIN)/python -m benchmarks.speed --json runs/bench.json $(BENCH)

reproduce: $(VENV)/.dev
	$(BIN)/bundlemage reproduce youshu --data $${BUNDLEMAGE_DATA:-../shared/datasets}/youshu -o runs/youshu

clean:
	rm -rf $(VENV) runs build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src -name '*.egg-info' -prune -exec rm -rf {} +
