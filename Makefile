# What can be made here: `make help`. Everything happens in this checkout: the virtual environment is .venv, pip's
# downloads go to .cache, and what runs keeps its data in a temporary directory that is removed afterwards. Only compiled
# modules are kept elsewhere: in ~/.cache/querator/compiled, which all checkouts share, or in QUERATOR_COMPILED_CACHE.

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
    $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
PYTEST_ARGS ?=
ROUNDS ?= 200
export PIP_CACHE_DIR ?= $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# Java 17 or newer: with it the pipelines are installed and tested, without it everything else is.
JAVA := $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -XX:-UsePerfData -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p')
ifeq ($(shell [ "0$(JAVA)" -ge 17 ] && echo yes),yes)
SPARK := ,spark
SPARK_ONLY := [spark]
SPARK_NAME := -with-spark
else
JAVA_HINT := @echo 'note: no Java 17 or newer, so nothing with Spark here; apt-get install openjdk-17-jre-headless' >&2
endif

# Benchmarks run on the system's Python if it can be used: the peers are the system's too, and an interpreter that was
# compiled without profile-guided optimisation, as pyenv does by default, is a fifth slower.
BENCH_VENV ?= .venv-bench
BENCH_BIN := $(BENCH_VENV)/bin
BENCH_PYTHON ?= $(or $(shell /usr/bin/python3 -c 'import ensurepip, os, sys, sysconfig; sys.version_info >= (3, 11) and \
    os.path.isfile(sysconfig.get_paths()["include"] + "/Python.h") and print("/usr/bin/python3")' 2>/dev/null),$(PYTHON))
MADE_FOR_BENCH := $(BENCH_VENV)/.made-for-bench

MADE_FOR_DEMO := $(VENV)/.made-for-demo$(SPARK_NAME)
MADE_FOR_WORK := $(VENV)/.made-for-work$(SPARK_NAME)

# pytest keeps the directories of its last runs; a temporary directory of our own goes away with the run.
IN_TEMPORARY_DIRECTORY = directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && trap 'exit 130' INT TERM && \
    TMPDIR="$$directory"

.PHONY: help demo test test-slow compiled plain lint format generate check-generated picture bench bench-scale dist clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(MADE_FOR_DEMO) ## install, start a daemon in a temporary directory, and show the main things it does
	$(JAVA_HINT)
	@$(BIN)/python demo/demo.py

test: $(MADE_FOR_WORK) ## install and run the test suite
	$(JAVA_HINT)
	@$(IN_TEMPORARY_DIRECTORY) $(BIN)/python -m pytest -n 3 $(PYTEST_ARGS)

test-slow: $(MADE_FOR_WORK) ## what `make test` leaves out: maintenance under load, big Spark runs, ROUNDS=200 of kill -9
	@$(IN_TEMPORARY_DIRECTORY) $(BIN)/python -m pytest --timeout 7200 -m slow $(PYTEST_ARGS)
	@$(IN_TEMPORARY_DIRECTORY) QUERATOR_TORTURE_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest --timeout 7200 tests/torture
	@$(IN_TEMPORARY_DIRECTORY) QUERATOR_LOST_ROUNDS=50 $(BIN)/python -m pytest --timeout 7200 tests/archive/test_machine_lost.py \
		tests/archive/test_one_owner.py

compiled: $(MADE_FOR_WORK) ## compile the hot path into this checkout, or copy it from the cache; tests then run on it
	@$(BIN)/python packaging/compiling.py

plain: ## remove the compiled modules from this checkout
	@find querator -name '*.so' -delete

lint: $(MADE_FOR_WORK) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(MADE_FOR_WORK) ## let ruff lay out the code and put imports in order
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

generate: $(MADE_FOR_WORK) ## write completions, man pages, protobuf modules and the OpenAPI file anew
	$(BIN)/python packaging/generate.py
	$(BIN)/python -m querator.wire.generate

check-generated: $(MADE_FOR_WORK) ## fail if one of them is stale
	$(BIN)/python packaging/generate.py --check
	$(BIN)/python -m querator.wire.generate --check

picture: $(MADE_FOR_WORK) ## record the terminal picture of the README anew
	$(BIN)/python demo/picture.py docs/terminal.svg

bench: $(MADE_FOR_BENCH) ## the life of an item against Redis, PostgreSQL, RabbitMQ, beanstalkd, SQLite; 10 minutes
	$(BENCH_BIN)/python packaging/compiling.py
	$(BENCH_BIN)/python -m bench.compare --docs docs

bench-scale: $(MADE_FOR_BENCH) ## this daemon as queues, partitions and payloads grow; 10 minutes
	$(BENCH_BIN)/python packaging/compiling.py
	$(BENCH_BIN)/python -m bench.scale --docs docs

dist: $(MADE_FOR_WORK) ## the wheel, in dist/; compiled, unless QUERATOR_PURE=1
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean: plain ## remove all that was made here, the virtual environment included
	rm -rf $(VENV) $(BENCH_VENV) .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo 'error: no Python 3.11 or newer; apt-get install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo 'error: $(PYTHON) cannot make a virtual environment; apt-get install python3-venv' >&2; exit 1; }

$(MADE_FOR_DEMO): pyproject.toml | $(BIN)/python
	@echo 'installing into $(VENV), which takes a minute the first time' >&2
	@$(BIN)/pip install --quiet --editable '.$(SPARK_ONLY)'
	@touch '$@'

$(MADE_FOR_WORK): pyproject.toml | $(BIN)/python
	@echo 'installing into $(VENV), which takes a minute the first time' >&2
	@$(BIN)/pip install --quiet --editable '.[dev$(SPARK)]'
	@touch '$@'

$(MADE_FOR_BENCH): pyproject.toml
	@echo 'installing into $(BENCH_VENV), which takes a minute the first time' >&2
	@$(BENCH_PYTHON) -m venv $(BENCH_VENV)
	@$(BENCH_BIN)/pip install --quiet --editable '.[dev]'
	@touch '$@'
