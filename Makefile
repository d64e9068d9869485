# Two commands on a fresh machine: make demo, make test.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m attn_cnn_jax.main

.PHONY: demo test lint types unit soak clean

# Trains a small attention network on scikit-learn's digits and scores it.
demo: $(VENV)/.installed
	$(RUN) --config=configs/quickstart.py --workdir=runs/demo
	$(RUN) --mode=evaluate --workdir=runs/demo --checkpoint=last
	@echo
	@echo "Results lie in runs/demo: metrics.jsonl, tensorboard/, checkpoints/, config.json."
	@echo "Continue from here with a run on CIFAR-10 (see Data in README.md):"
	@echo "  $(RUN) --config=configs/laptop.py"

# Environment, lint, static types and all tests.
test: lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/basedpyright --pythonpath $(BIN)/python

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not soak"

# Many kills, many damages: long repetition of what the tests do once.
soak: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m soak

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
