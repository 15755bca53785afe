# The commands of a newcomer: `make demo`, `make test`. Needs Python 3.11 or newer, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-all lint format protos clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

setup: $(STAMP) ## create the virtual environment with everything in it

demo: $(STAMP) ## the main job: Envoy, extproc, two emulated vLLM servers, load, a table
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

protos: $(STAMP) ## regenerate extproc/wire from protos/
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. protos/extproc/wire/*.proto

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
