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

# Trains a small attention network on scikit-learn's digits, scores it, draws its heads;
# then trains one layer to imitate a convolution and draws the way of its heads.
demo: $(RUNTIME)
	$(MAIN) --config=configs/quickstart.py --workdir=runs/demo
	$(MAIN) --mode=evaluate --workdir=runs/demo --checkpoint=last
	$(BIN)/python -m attn_cnn_jax.analyze --workdir=runs/demo --images=0-7
	@echo
	@echo "When does attention compute a convolution? A layer learns one, from 8 random starts:"
	$(BIN)/python -m attn_cnn_jax.theory fit --output=runs/demo/theorem
	@echo
	@echo "Results lie in runs/demo: metrics.jsonl, tensorboard/, checkpoints/, config.json;"
	@echo "in runs/demo/analysis the figures (PNG and PDF), heads.csv with the numbers of"
	@echo "every head, and viewer.html: open it in a browser and move over the image."
	@echo "Continue from there with a row of the paper's table on the same digits, enlarged:"
	@echo "  $(MAIN) --config=configs/quadratic_isotropic.py:digits"
	@echo "or on CIFAR-10, of which you have a copy in PATH:"
	@echo "  $(BIN)/python -m attn_cnn_jax.prepare_data --source=PATH"
	@echo "  $(MAIN) --config=configs/laptop.py"

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
	touch $@

$(DEVELOPMENT): requirements-dev.txt | $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(PEERS): benchmarks/requirements.txt | $(DEVELOPMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
