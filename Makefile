# Two commands on a fresh machine: make demo, make test.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MAIN := $(BIN)/python -m attn_cnn_jax.main

# An environment is installed once for each content of the requirements.
stamp = $(VENV)/.installed-$(shell cat $(1) | cksum | cut -d" " -f1)
RUNTIME := $(call stamp,requirements.txt)
DEVELOPMENT := $(call stamp,requirements.txt requirements-dev.txt)-dev
PEERS := $(call stamp,benchmarks/requirements.txt)-peers

.PHONY: demo test lint types unit browser soak peers clean

# Trains a small attention network on scikit-learn's digits and says what its heads do;
# then one layer learns to imitate a convolution.
demo: $(RUNTIME)
	@$(MAIN) --config=configs/quickstart.py --workdir=runs/demo
	@echo
	@$(BIN)/python -m attn_cnn_jax.analyze --workdir=runs/demo --images=0-7 --figure=all
	@echo
	@echo "And can a layer learn a given convolution? Its heads, from 8 random starts:"
	@$(BIN)/python -m attn_cnn_jax.theory fit --output=runs/demo/theorem
	@echo
	@echo "Open runs/demo/analysis/viewer.html in a browser and move over the image. Next:"
	@echo "  $(BIN)/attn-cnn list"
	@echo "  $(BIN)/attn-cnn train --config=quadratic_isotropic:digits,short"

# Environment, lint, static types and all tests.
test: lint types unit

lint: $(DEVELOPMENT)
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .

types: $(DEVELOPMENT)
	$(BIN)/python -m basedpyright --pythonpath $(BIN)/python

unit: $(DEVELOPMENT) browser
	$(BIN)/python -m pytest -m "not soak" --numprocesses=auto --maxprocesses=4 --dist=loadfile

# Debian's Chromium for the tests of the viewer, where we may install it.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
		echo "Installing Chromium for the tests of the viewer."; \
		export DEBIAN_FRONTEND=noninteractive; { apt-get update && \
		apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 || \
		echo "Chromium could not be installed."; }

# Kills at random moments, 60 steps of every config at full size, the demo's seeds.
soak: $(DEVELOPMENT)
	$(BIN)/python -m pytest -m soak

# PyTorch, for benchmarks/ and its tests.
peers: $(PEERS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
		{ echo "Python 3.11 or 3.12 is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) has no venv (on Debian: apt-get install python3-venv)."; exit 1; }

$(RUNTIME): requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(DEVELOPMENT): requirements-dev.txt | $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(PEERS): benchmarks/requirements.txt | $(DEVELOPMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
