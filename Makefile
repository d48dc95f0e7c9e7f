# make demo | make test | make check: each sets up .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-browser check format benchmarks clean

demo: $(VENV)/.package
	$(BIN)/mcddpm demo --out demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest

test-browser: $(VENV)/.browser
	$(BIN)/python -m pytest -m browser tests/browser

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmarks: $(VENV)/.dev
	$(BIN)/python benchmarks/calls_to_posterior.py
	$(BIN)/python benchmarks/sampler_overhead.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/reconstruct.py

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(PIP) --editable ".[dev]"
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) --editable ".[browser]"
	touch $@
