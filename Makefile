# make demo | make test | make check | make check-docs | make docs: each sets up .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-browser check check-docs docs format benchmarks clean

demo: $(VENV)/.package
	$(BIN)/mcddpm demo --out demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadfile

test-browser: $(VENV)/.browser
	$(BIN)/python -m pytest -m browser tests/browser

# Do pages say what rows and code say?
check-docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest -m docs tests/docs

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict
	@echo "look at site/index.html"

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
	rm -rf $(VENV) demo site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(PIP) --editable ".[dev]"
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --editable ".[docs]"
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) --editable ".[browser]"
	touch $@
