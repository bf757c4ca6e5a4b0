# Every target sets up what it needs: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test unit check walks format clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## train a small sparse CNN on handwritten digits (about a minute)
	$(BIN)/softprune demo

test: check unit  ## everything CI runs: lint, types, import contracts, tests

unit: $(READY)  ## the tests alone
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)  ## lint, format, types, import contracts, assertion check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_assertions.py tests
	$(BIN)/python tools/house.py --no-walks --check

walks: $(READY)  ## how many files a step, a run and the like pass, and whether docs/architecture.md shows them
	$(BIN)/python tools/house.py --check
	$(BIN)/python tools/pictures.py

format: $(READY)  ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and run folders
	rm -rf $(VENV) runs
