# make demo   the whole way on this machine: engine, sidecar, Locust, analysis, report
# make test   lint, types and every test
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

.PHONY: demo test test-units test-end-to-end lint install bench validate clean

demo: $(VENV)/.runtime
	$(BIN)/knee demo

# Tests with real load mostly wait, and must not run beside each other: all others run beside them.
test: $(STAMP) lint
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-units test-end-to-end

test-units:
	$(BIN)/python -m pytest -m "not end_to_end"

test-end-to-end:
	$(BIN)/python -m pytest -m end_to_end

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

# CPU and truth of the load generator beside a C server and client: make bench REFEREE=... REFCLIENT=...
bench: $(STAMP)
	$(BIN)/python tests/perf/bench.py --referee "$(REFEREE)" --refclient "$(REFCLIENT)"

# The knee rule against 1,000 ladders of known truth.
validate: $(STAMP)
	$(BIN)/python tests/perf/validate.py

# What a user installs; the tests' tools come on top of it.
$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(STAMP): $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm -f $(VENV)/.installed-*
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
