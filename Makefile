# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint types lower-bounds bench attack browser docs clean

demo: $(VENV)/installed
	$(BIN)/apportion demo

test: $(VENV)/installed lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/pyrefly check --summary=none

# The lower bounds of pyproject.toml, in a virtual environment of their own, and the tests of the library. Not
# the lower bound of torch: only torch 2.13.0 has a CPU build in the index that our machines use.
LIBRARY_TESTS = $(filter-out $(wildcard tests/test_cli*.py tests/test_report.py tests/test_model_page.py tests/test_browser.py \
	tests/test_build_results.py tests/test_examples.py tests/test_parallel.py \
	tests/test_recipes.py tests/test_run*.py tests/test_timed_runs.py), $(wildcard tests/test_*.py))

lower-bounds: requirements/lower_bounds.py pyproject.toml
	$(PYTHON) -m venv $(VENV)-lower-bounds
	$(PYTHON) requirements/lower_bounds.py > $(VENV)-lower-bounds/pins.txt
	$(VENV)-lower-bounds/bin/python -m pip install -q -r $(VENV)-lower-bounds/pins.txt torch==2.13.0 pytest hypothesis -e .
	$(VENV)-lower-bounds/bin/python -m pytest -W ignore::DeprecationWarning $(LIBRARY_TESTS)

# Chromium from the system's packages, and what drives it: for the test of the report's page
browser: $(VENV)/installed
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -e '.[browser]'
	command -v chromium > /dev/null || sh -c '[ $$(id -u) = 0 ] || s=sudo; $$s apt-get update -q && $$s apt-get install -y -q --no-install-recommends chromium'

attack: $(VENV)/installed
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -e '.[fuzz]'
	$(BIN)/python benchmarks/kill.py moments
	$(BIN)/python benchmarks/kill.py writes
	$(BIN)/python benchmarks/kill.py many
	$(BIN)/python benchmarks/fuzz.py

bench: $(VENV)/installed
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/loop.py

docs: $(VENV)/installed
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -e '.[docs]'
	$(BIN)/zensical build -f mkdocs.yml

$(VENV)/installed: pyproject.toml requirements/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c requirements/constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-lower-bounds runs build dist .pytest_cache .ruff_cache
