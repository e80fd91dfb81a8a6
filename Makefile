# Every target sets up what it needs, once: a virtual environment with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: demo test test-all lint types docs check results release container clean

demo: $(VENV)/.installed  ## learn handwritten digits as multisets; the model and pictures go to demo-run/
	$(BIN)/omniset demo --out demo-run --replace true

test: $(VENV)/.installed-dev  ## what protects every change, docstring examples included: all tests not marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow"

test-all: $(VENV)/.installed-dev  ## all tests: also kills, processes, the browser, pages of the docs, studies
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-dev  ## docs/_build/html; a warning is an error
	@rm -rf docs/api  # pages of names that are gone
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going -q -E -b html docs docs/_build/html

check: lint types docs

results: $(VENV)/.installed-dev  ## measure again what README and docs quote; takes about an hour
	$(BIN)/python -m benchmarks exactness
	$(BIN)/python -m benchmarks author
	$(BIN)/python -m benchmarks demo
	$(BIN)/python -m benchmarks examples
	$(BIN)/python -m benchmarks speed
	$(BIN)/python -m benchmarks grid
	$(BIN)/python -m benchmarks batches
	$(BIN)/python -m benchmarks multisets
	$(BIN)/python -m benchmarks scale
	$(BIN)/python -m benchmarks memory
	$(BIN)/python -m benchmarks ensembles
	$(BIN)/python -m benchmarks busy
	$(BIN)/python -m benchmarks held_back
	$(BIN)/python -m benchmarks interruptions
	@# Hours, and data found through OMNISET_DATA: python -m benchmarks genomes, cells, regions, microbiomes
	$(BIN)/python -m benchmarks tables

release: $(VENV)/.installed-dev  ## make release VERSION=1.2.3: version, changelog, checks, a commit and a tag
	$(BIN)/python tools/release.py "$(VERSION)"

container:  ## build and use the image of packaging/Containerfile, with buildah, as root; ten minutes
	.ci/container

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Omniset needs Python 3.11 or later; \
	choose one with: make PYTHON=python3.12")'
	@echo "setting up $(VENV) (once, a few minutes)"
	$(PYTHON) -m venv $(VENV)
	@# The build without CUDA where pip offers one, else the standard build of the same version.
	$(PIP) "torch==$(TORCH)+cpu" 2>/dev/null || $(PIP) "torch==$(TORCH)"
	$(PIP) -c constraints.txt -e ".[all]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -c constraints.txt -e ".[test,dev,docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/api demo-run
